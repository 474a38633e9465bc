"""Security and limits: tokens, TLS, slow and greedy callers, full queues."""

from __future__ import annotations

import contextlib
import http.client
import json
import logging
import re
import shlex
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fake_models
import grpc
import numpy as np
import pytest
import requests
import tritonclient.grpc as triton
from served import Served, serving
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc
from tritonclient.utils import InferenceServerException

from recsys.base.json_log import LibraryLog
from recsys.server import grpc_v2
from recsys.server.call import Call
from recsys.server.request_error import RequestError


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return fake_models.write_model(tmp_path / "ctr")


def infer(client: triton.InferenceServerClient, **more: object) -> list[float]:
    a = triton.InferInput("a", [1], "FP64")
    a.set_data_from_numpy(np.array([0.0]))
    return client.infer("ctr", [a], **more).as_numpy("p")[:, 0].tolist()  # type: ignore[no-any-return]


def test_a_token(model: Path) -> None:
    with serving(model, token="s3cret") as served:
        body = {"rows": [{"a": None}]}
        for header in (None, "Bearer wrong", "Basic s3cret", "s3cret", "Bearer ", "Bearer s3cret2"):
            answer = requests.post(
                f"{served.url}/predict", json=body, headers={} if header is None else {"Authorization": header}
            )
            assert answer.status_code == 401 and answer.headers["www-authenticate"] == "Bearer"
            assert answer.json()["error"] == "this server needs the header Authorization: Bearer TOKEN"
        good = {"Authorization": "Bearer s3cret"}
        assert requests.post(f"{served.url}/predict", json=body, headers=good).json() == {"predictions": [0.5]}
        for path in ("/", "/metrics", "/docs", "/v2", "/v2/models/ctr"):
            assert requests.get(served.url + path).status_code == 401
            assert requests.get(served.url + path, headers=good).status_code == 200
        for path in ("/v2/health/live", "/v2/health/ready"):
            assert requests.get(served.url + path).status_code == 200
        with triton.InferenceServerClient(served.grpc) as client:
            assert client.is_server_live() and client.is_server_ready()
            with pytest.raises(InferenceServerException, match="needs the header Authorization"):
                infer(client)
            assert infer(client, headers={"authorization": "Bearer s3cret"}) == [0.5]
            with pytest.raises(InferenceServerException, match="needs the header Authorization"):
                client.get_model_repository_index()
        with grpc.insecure_channel(served.grpc) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            with pytest.raises(grpc.RpcError) as e:
                next(stub.ModelStreamInfer(iter([pb.ModelInferRequest()])))
            assert e.value.code() == grpc.StatusCode.UNAUTHENTICATED


def test_tls(model: Path, tmp_path: Path) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    command = shlex.split("openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2")
    subprocess.run([*command, "-keyout", key, "-out", cert, *subject], check=True, capture_output=True)
    with serving(model, tls_cert=str(cert), tls_key=str(key)) as served:
        assert served.url.startswith("https")
        answer = requests.post(f"{served.url}/predict", json={"rows": [{"a": None}]}, verify=str(cert))
        assert answer.json() == {"predictions": [0.5]}
        with triton.InferenceServerClient(served.grpc, ssl=True, root_certificates=str(cert)) as client:
            assert infer(client) == [0.5]
        with pytest.raises(requests.ConnectionError):
            requests.get(f"http://{served.http}/v2/health/live")


def receive(connection: socket.socket) -> bytes:
    parts = []
    while part := connection.recv(65536):
        parts.append(part)
    return b"".join(parts)


def test_slow_callers_do_not_keep_connections(model: Path) -> None:
    head = b"POST /predict HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n"
    with serving(model, read_s=0.2) as served:
        address = ("127.0.0.1", served.settings.port)
        for sent, status in ((b"", b"408"), (head, b"408"), (head + b"\r\n{", b"408")):
            with socket.create_connection(address, timeout=5) as connection:
                connection.sendall(sent)
                started = time.monotonic()
                answer = receive(connection)
            assert answer.startswith(b"HTTP/1.1 " + status), (sent, answer)
            assert 0.1 < time.monotonic() - started < 2
        with requests.Session() as session:  # a connection that is kept may wait between its requests
            for _ in range(2):
                assert session.post(f"{served.url}/predict", json={"rows": [{"a": None}]}).status_code == 200
                time.sleep(0.3)


def test_large_headers_are_refused_before_they_are_complete(model: Path) -> None:
    with serving(model, max_header_kb=4) as served:
        assert requests.get(served.url, headers={"x": "y" * 3000}).status_code == 200
        assert requests.get(served.url, headers={"x": "y" * 5000}).status_code == 431
        assert requests.get(f"{served.url}/{'y' * 5000}").status_code == 431
        with socket.create_connection(("127.0.0.1", served.settings.port), timeout=5) as connection:
            connection.sendall(b"GET / HTTP/1.1\r\nx: " + b"y" * 6000)  # no end of the header
            assert receive(connection).startswith(b"HTTP/1.1 431")


def test_large_bodies_are_refused_before_they_are_read(model: Path) -> None:
    with serving(model, max_body_mb=1) as served:
        address = ("127.0.0.1", served.settings.port)
        with socket.create_connection(address, timeout=5) as connection:
            connection.sendall(b"POST /predict HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9999999999\r\n\r\n")
            assert receive(connection).startswith(b"HTTP/1.1 413")
        answer = requests.post(
            f"{served.url}/predict", data=iter([b" " * 2**19] * 3)
        )  # chunks, of a length that is not said
        assert answer.status_code == 413


BODY = 17 * 2**20


def of_http_client(served: Served) -> int:
    connection = http.client.HTTPConnection(served.http, timeout=20)
    connection.request("POST", "/predict", b" " * BODY)  # sends all before it reads
    return connection.getresponse().status


def of_curl(*options: str) -> Callable[[Served], int]:
    def post(served: Served) -> int:
        command = ["curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", "--data-binary", "@-", *options]
        done = subprocess.run([*command, f"{served.url}/predict"], input=b" " * BODY, capture_output=True)
        assert done.returncode == 0, done
        return int(done.stdout)

    return post


CLIENTS = {"http.client": of_http_client, "curl": of_curl(), "chunks": of_curl("-H", "Transfer-Encoding: chunked")}


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(fake_models.write_model(tmp_path_factory.mktemp("models") / "ctr")) as served:
        yield served


@pytest.mark.parametrize("client", CLIENTS)
def test_every_client_gets_the_answer_to_a_body_that_is_too_large(usual: Served, client: str) -> None:
    """A server that closes while the body is on its way resets the connection, and the answer is lost."""
    assert [CLIENTS[client](usual) for _ in range(3)] == [413] * 3


def test_a_refused_body_does_not_keep_its_connection(model: Path) -> None:
    """The rest of a request that is answered early is read for read_s, and no longer."""
    length = b"content-length: 99999999\r\n\r\n"
    with serving(model, read_s=0.3, token="s3cret") as served:
        for head in (
            b"POST /predict HTTP/1.1\r\nhost: x\r\n",
            b"POST /predict HTTP/1.1\r\nauthorization: Bearer s3cret\r\n",
        ):
            with socket.create_connection(("127.0.0.1", served.settings.port), timeout=5) as connection:
                connection.sendall(head + length)
                started = time.monotonic()
                with contextlib.suppress(OSError):  # reset, or a broken pipe
                    while time.monotonic() - started < 5:
                        connection.sendall(b" " * 1000)
                        time.sleep(0.02)
                assert time.monotonic() - started < 3


def test_millions_of_small_texts_are_refused_before_they_are_read(model: Path) -> None:
    """Reading 4 million of them took seconds, in which the event loop answered nobody."""
    texts = {"name": "b", "datatype": "BYTES", "parameters": {"binary_data_size": 4_000_000}}
    with serving(model) as served:
        for inputs, status, message in (
            ([texts | {"shape": [1_000_000]}], 413, "1000000 rows: this server takes at most 4096 a request"),
            ([texts | {"shape": [1000, 1000]}], 400, "BYTES takes the shape [rows] or [rows, 1]"),
            ([texts | {"shape": [4000]}] * 250, 400, "250 inputs: model ctr has 3"),
        ):
            head = json.dumps({"inputs": inputs}).encode()
            headers = {"Inference-Header-Content-Length": str(len(head))}
            body = head + bytes(4_000_000)
            started = time.monotonic()
            answer = requests.post(f"{served.url}/v2/models/ctr/infer", data=body, headers=headers)
            assert answer.status_code == status and message in answer.json()["error"]
            assert time.monotonic() - started < 2
        request = pb.ModelInferRequest(model_name="ctr", raw_input_contents=[bytes(4_000_000)])
        request.inputs.add(name="b", datatype="BYTES", shape=[1000, 1000])
        with grpc.insecure_channel(served.grpc) as channel, pytest.raises(grpc.RpcError) as e:
            service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(request)
        assert "BYTES takes the shape [rows] or [rows, 1]" in e.value.details()


def test_the_soft_limit_of_open_files_is_raised() -> None:
    code = (
        "import resource as r; from recsys.server.server_worker import raise_file_limit;"
        "r.setrlimit(r.RLIMIT_NOFILE, (100, 300)); raise_file_limit(); print(r.getrlimit(r.RLIMIT_NOFILE))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "(300, 300)"


def test_a_full_queue(tmp_path: Path) -> None:
    model = fake_models.write_model(tmp_path / "ctr", seconds=0.3)
    with serving(model, queue=2, max_batch=1) as served:
        batcher = served.core.registry.get("ctr").versions["current"].batcher
        found: list[requests.Response] = []
        threads = [threading.Thread(target=lambda: found.append(predict(served))) for _ in range(8)]
        for t in threads:
            t.start()
        with triton.InferenceServerClient(served.grpc) as client:
            assert client.is_server_live()  # connects
            while batcher.waiting_rows < 2:
                time.sleep(0.001)
            with pytest.raises(InferenceServerException, match=r"RESOURCE_EXHAUSTED.*queue of the model is full"):
                infer(client)
        assert 'recsys_queue_rows{model="ctr",version="1"} 2.0' in requests.get(f"{served.url}/metrics").text
        for t in threads:
            t.join()
        refused = [r for r in found if r.status_code == 429]
        assert {r.status_code for r in found} == {200, 429} and len(refused) >= 4
        assert refused[0].headers["retry-after"] == "1"
        assert predict(served).status_code == 200


def predict(served: Served) -> requests.Response:
    return requests.post(f"{served.url}/predict", json={"rows": [{"a": None}]})


def test_deadlines_skip_work_that_has_not_begun(tmp_path: Path) -> None:
    model = fake_models.write_model(tmp_path / "ctr", seconds=0.8)  # the last of three may come late
    with serving(model, timeout_us=100_000) as served:  # the default of requests that name none
        batches = served.core.registry.get("ctr").versions["current"].servable.batches  # type: ignore[attr-defined]
        batches.clear()
        found: list[int] = []
        threads = [threading.Thread(target=lambda: found.append(predict(served).status_code)) for _ in range(3)]
        for t in threads:
            t.start()
            time.sleep(0.02)
        for t in threads:
            t.join()
        time.sleep(0.9)
        assert found == [504] * 3 and len(batches) == 1
        longer = requests.post(f"{served.url}/predict", json={"rows": [{"a": None}]}, headers={"timeout": "9000000"})
        assert longer.status_code == 200  # the request's own deadline replaces the default


def test_logs(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serving(model, log="requests", token="s3cret") as served:
        headers = {"Authorization": "Bearer s3cret", "x-request-id": "mine"}
        requests.post(f"{served.url}/predict", json={"rows": [{"a": 1}, {}]}, headers=headers)
        requests.post(f"{served.url}/predict", json={"rows": [{"a": "x"}]}, headers=headers)
        for _ in range(200):
            requests.get(f"{served.url}/nix")
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    good, bad = [line for line in lines if line.get("request_id") == "mine"]
    assert (good["level"], good["status"], good["rows"], good["model"], good["protocol"]) == (
        "info",
        200,
        2,
        "ctr",
        "json",
    )
    assert (bad["level"], bad["status"], bad["message"]) == ("warning", 400, "rows[0]: column a: 'x' is not a number")
    assert not any("s3cret" in json.dumps(line) for line in lines)
    assert 49 <= sum(line.get("status") == 401 for line in lines) <= 150  # a flood does not fill the disk


def test_the_log_of_an_unexpected_error_has_its_traceback(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serving(fake_models.write_model(tmp_path / "ctr", fails=True)) as served:
        answer = predict(served)
        assert answer.status_code == 500 and "secret" not in answer.text
        request_id = answer.headers["x-request-id"]
    [line] = [json.loads(x) for x in capsys.readouterr().err.splitlines() if request_id in x]
    assert "RuntimeError('a secret detail')" in line["error"] and re.search(r"fake_models.py", line["traceback"])


def test_what_libraries_log_has_its_cause_and_cannot_fill_a_disk(capsys: pytest.CaptureFixture[str]) -> None:
    logger, handler = logging.getLogger("some.library"), LibraryLog()
    logger.addHandler(handler)
    try:
        for _ in range(1000):
            try:
                raise RuntimeError("the cause")
            except RuntimeError:
                logger.exception("it has failed")
    finally:
        logger.removeHandler(handler)
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines() if line.startswith("{")]
    assert 1 <= len(lines) <= 100  # two seconds may have begun
    assert lines[0]["message"] == "it has failed" and lines[0]["error"] == "RuntimeError('the cause')"
    assert "test_limits.py" in lines[0]["traceback"]


@pytest.mark.parametrize("what", ["inputs", "outputs", "parameters", "shape"])
def test_what_a_message_holds_is_counted_before_it_is_read(model: Path, what: str) -> None:
    request = pb.ModelInferRequest(model_name="ctr")
    a = request.inputs.add(name="a", datatype="FP64", shape=[1])
    a.contents.fp64_contents.append(0.0)
    if what == "inputs":
        request.inputs.extend([a] * 50_000)
    elif what == "outputs":
        request.outputs.extend([pb.ModelInferRequest.InferRequestedOutputTensor(name="p")] * 50_000)
    elif what == "parameters":
        for n in range(50_000):
            a.parameters[str(n)].bool_param = True
    else:
        a.shape.extend([1] * 4_000_000)
    with serving(model) as served:
        method = grpc_v2.Service(served.core).ModelInfer
        context = SimpleNamespace(time_remaining=lambda: None)

        async def seconds() -> float:
            started = time.perf_counter()
            with pytest.raises(RequestError, match=r"(50000|50001) (inputs|outputs|parameters)|1 to 8 dimensions"):
                await method(request, Call("grpc"), context)
            return time.perf_counter() - started

        assert served.call(seconds()) < 0.03


def test_many_queries_of_a_pipeline_hold_up_nobody(tmp_path: Path) -> None:
    """They are computed in parts, between which others are answered, and none after the deadline."""
    fake_models.write_model(tmp_path, "shop", kind="retrieval", seconds=0.005, context=["user"])
    one: dict[str, Any] = {"context": {"user": "u"}, "history": [{"item": "item1"}], "k": 2}
    many = {"queries": [one] * 320}
    with serving(tmp_path) as served, ThreadPoolExecutor(1) as pool:
        url = f"{served.url}/recommend"
        large = pool.submit(requests.post, url, json=many)
        time.sleep(0.2)
        assert requests.post(url, json=one).status_code == 200 and not large.done()
        assert len(large.result().json()["recommendations"]) == 320
        [loaded] = served.core.registry.get("shop").versions.values()
        batches = loaded.servable.batches
        assert max(batches) <= 33
        before = sum(batches)
        late = requests.post(url, json=many, headers={"timeout": "300000"})
        time.sleep(0.5)
        assert late.status_code == 504 and sum(batches) - before < 200
        wrong = {"queries": [one] * 100 + [one | {"history": [{"item": 7}]}]}
        assert requests.post(url, json=wrong).json()["error"].startswith("queries[100].history[0]: column item")
