"""Pages of other sites cannot use a server: foreign hosts (DNS rebinding), foreign origins, and content of forms."""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fake_models
import pytest
import requests
from served import Served, serving

from recsys.server.hosts import Hosts
from recsys.server.request_error import RequestError

EVIL = "http://evil.example"
ROWS = {"rows": [{"a": None}]}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("models")
    for version in ("1", "2"):
        fake_models.write_model(folder / "ctr" / version)
    (folder / "ctr" / "serving.json").write_text('{"version": "1"}')
    with serving(folder) as s:
        yield s


def state(served: Served) -> Any:
    return requests.post(f"{served.url}/v2/repository/index").json()


def changes() -> list[tuple[str, bytes]]:
    """Return all requests that change what is served."""
    version = json.dumps({"parameters": {"version": "2"}}).encode()
    paths = [("load", version), ("load?version=2", b""), ("unload", b""), ("unload", b"{}")]
    return [(f"/v2/repository/models/ctr/{action}", body) for action, body in paths]


@pytest.mark.parametrize(
    ("headers", "status", "message"),
    [
        ({"Origin": EVIL}, 403, "Origin http://evil.example: "),
        ({"Origin": "null"}, 403, "Origin null: "),
        ({"Origin": "http://localhost:1"}, 403, "Origin http://localhost:1: "),
        ({"Host": "evil.example:80", "Origin": "http://evil.example:80"}, 403, "Host evil.example: "),
        ({"Host": "localhost.evil.example"}, 403, "Host localhost.evil.example: "),
        ({"Host": "127.0.0.1.evil.example"}, 403, "is not a name"),
        ({"Host": "evil.example/@localhost"}, 400, "is not a host"),
        ({"Content-Type": "multipart/form-data; boundary=x"}, 415, "Content-Type multipart/form-data: "),
    ],
)
def test_pages_of_other_sites_change_nothing(
    served: Served, headers: dict[str, str], status: int, message: str
) -> None:
    before = state(served)
    for path, body in [*changes(), *([("/predict", json.dumps(ROWS).encode())] if status != 415 else [])]:
        answer = requests.post(served.url + path, data=body, headers=headers)
        assert answer.status_code == status and message in answer.json()["error"], (path, answer.text)
    assert state(served) == before


def test_curl_and_pages_of_this_machine_work(served: Served) -> None:
    """The content type of curl is that of a form."""
    load = f"{served.url}/v2/repository/models/ctr/load"
    command = ["curl", "-s", "-d", '{"parameters": {"version": "1"}}', load]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "{}"
    same = {"Origin": served.url, "Host": served.http}
    for headers in (same, *({"Host": h} for h in ("app.localhost:3000", "[::1]:8000", "10.1.2.3", "LOCALHOST."))):
        assert requests.post(f"{served.url}/predict", json=ROWS, headers=headers).status_code == 200


@pytest.mark.parametrize("path", ["/", "/docs", "/metrics", "/v2/models/ctr", "/openapi.json"])
def test_a_rebound_name_reads_nothing(served: Served, path: str) -> None:
    assert requests.get(served.url + path, headers={"Host": "evil.example"}).status_code == 403
    assert requests.get(served.url + path, headers={"Origin": EVIL}).status_code == 200  # whose answer no page gets
    assert requests.get(f"{served.url}/v2/health/ready", headers={"Host": "probe"}).status_code == 200


def test_two_hosts_are_both_checked(served: Served) -> None:
    connection = http.client.HTTPConnection(served.http)
    connection.putrequest("GET", "/", skip_host=True)
    for host in ("localhost", "evil.example"):
        connection.putheader("Host", host)
    connection.endheaders()
    assert connection.getresponse().status in (400, 403)


def test_what_browsers_can_send_does_not_reach_grpc(served: Served) -> None:
    """They speak HTTP/2 over TLS only; over TLS, a page needs a CORS answer before it may send application/grpc."""
    with socket.create_connection(("127.0.0.1", served.settings.grpc_port), timeout=10) as connection:
        path = b"/inference.GRPCInferenceService/RepositoryModelUnload"
        body = b"\x00\x00\x00\x00\x05\x12\x03ctr"
        head = b"POST " + path + b" HTTP/1.1\r\nhost: x\r\ncontent-type: application/grpc\r\ncontent-length: 10\r\n\r\n"
        connection.sendall(head + body)
        while connection.recv(4096):
            pass
    assert requests.get(f"{served.url}/v2/models/ctr/ready").status_code == 200


def test_a_proxy_in_front(tmp_path: Path) -> None:
    """One setting names the hosts of proxies and services, and of the pages that send requests through them."""
    folder = fake_models.write_model(tmp_path / "ctr")
    with serving(folder, allowed_hosts=["recsys.example.com"]) as served:
        for headers, status in (
            ({"Host": "recsys.example.com"}, 200),
            ({"Host": "recsys.example.com", "Origin": "https://recsys.example.com"}, 200),
            ({"Host": "10.0.0.7:8000", "Origin": "https://recsys.example.com"}, 200),  # the proxy writes its own Host
            ({"Host": "recsys.example.com", "Origin": EVIL}, 403),
            ({"Host": "evil.example"}, 403),
        ):
            assert requests.post(f"{served.url}/predict", json=ROWS, headers=headers).status_code == status, headers
    token = {"Authorization": "Bearer s3cret"}
    for settings in ({"allowed_hosts": ["*"]}, {"token": "s3cret"}):
        with serving(folder, **settings) as served:
            headers = {"Host": "recsys.default.svc.cluster.local", "Origin": EVIL, **token}
            assert requests.post(f"{served.url}/predict", json=ROWS, headers=headers).status_code == 200
    with serving(folder, token="s3cret") as served:  # which a page does not know
        assert requests.post(f"{served.url}/predict", json=ROWS, headers={"Origin": EVIL}).status_code == 401


def test_names_of_a_server_on_all_addresses() -> None:
    hosts = Hosts("0.0.0.0")
    for host in ("0.0.0.0:8000", "192.168.1.7", socket.gethostname()):
        hosts.check_host(host)
    for host in ("recsys.default.svc", "evil.example", "2130706433", "0x7f.1"):
        with pytest.raises(RequestError, match="is not a name of this server"):
            hosts.check_host(host)
