"""`python -m recsys.serve` as users run it: workers that share the ports, restarts, drain, reload, and mistakes."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import fake_models
import numpy as np
import pytest
import requests
import tritonclient.grpc as triton
import uvloop
from served import ENVIRONMENT, Command, command, free_port, serving, until

from recsys.base.errors import UserError
from recsys.files.atomic import write_json
from recsys.schema.command_schemas import ServeConfig
from recsys.server import server_worker
from recsys.server.request_error import RequestError
from recsys.server.supervisor import check_serve_settings, hold_port


def test_workers_share_ports_and_are_restarted_reloaded_and_drained(tmp_path: Path) -> None:
    """One start, because each costs seconds: kill -9, metrics of all, reload in all, SIGTERM with requests in flight."""
    for version, bias in (("1", 0.0), ("2", 2.0)):
        fake_models.write_model(tmp_path / "models" / "ctr" / version, bias=bias, seconds=0.3 if version == "2" else 0)
    alias = tmp_path / "models" / "ctr" / "serving.json"
    write_json(alias, {"version": "1"})
    with command(tmp_path / "models", tmp_path / "log", "workers=2", "drain_s=5") as server:
        workers = server.workers()
        assert len(workers) == 2
        for _ in range(40):  # each from a new connection, which the kernel gives to one of the workers
            assert server.predict() == 0.5
        with triton.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
            a = triton.InferInput("a", [1], "FP64")
            a.set_data_from_numpy(np.array([0.0]))
            assert client.infer("ctr", [a]).as_numpy("p").tolist() == [[0.5]]
        metrics = requests.get(f"{server.url}/metrics").text
        assert 'recsys_requests_total{model="ctr",protocol="json",status="200",version="1"} 40.0' in metrics

        os.kill(workers[0], signal.SIGKILL)
        failures = 0
        for _ in range(30):
            try:
                assert server.predict() == 0.5
            except requests.ConnectionError:
                failures += 1
        assert failures <= 1
        until(lambda: len(server.workers()) == 2 and server.workers() != workers)
        assert "has ended (SIGKILL); starting another" in server.log.read_text()
        until(lambda: server.log.read_text().count('"event":"loaded"') == 3)
        metrics = requests.get(f"{server.url}/metrics").text  # counters of the worker that is gone are kept
        total = re.search(r'protocol="json",status="200",version="1"} (\d+)', metrics)
        assert total is not None and int(total[1]) >= 40 + 29

        write_json(alias, {"version": "2"})  # both workers see it within a second
        until(lambda: server.log.read_text().count('"version":"2"') == 2)
        assert {server.predict() for _ in range(4)} == {0.881}

        found: list[float] = []
        threads = [threading.Thread(target=lambda: found.append(server.predict())) for _ in range(4)]
        for t in threads:
            t.start()
        time.sleep(0.15)  # they are being computed
        server.process.send_signal(signal.SIGTERM)
        for t in threads:
            t.join()
        assert found == [0.881] * 4
        assert server.process.wait(10) == 0
        with pytest.raises(requests.ConnectionError):
            server.predict()


def test_a_table_that_is_cut_short_ends_the_service_of_its_model_alone(tmp_path: Path) -> None:
    """Its workers end by SIGBUS. Those that follow refuse the model, in one line, and serve the others."""
    models = tmp_path / "models"
    for name in ("ctr", "other"):
        fake_models.write_model(models / name / "1", table_rows=2**20)
    table = models / "ctr" / "1" / fake_models.TABLE
    with command(models, tmp_path / "log", "grpc_port=null") as server:
        assert server.predict() == 0.5
        os.truncate(table, 4096)
        with pytest.raises(requests.ConnectionError):
            server.predict()
        until(lambda: server.log.read_text().count('"event":"loaded"') == 3 and other(server).status_code == 200)
        refused = requests.post(f"{server.url}/models/ctr/predict", json={"rows": [{"a": None}]})
        assert refused.status_code == 404 and "model ctr: is not loaded; load it with POST" in refused.text
        time.sleep(1.5)
        lines = server.log.read_text().splitlines()
        assert len([x for x in lines if "is damaged; it has 4096 bytes" in x]) == 1
        assert len([x for x in lines if "has ended (SIGBUS: a file of a model was changed in place" in x]) == 1
        assert "raceback" not in server.log.read_text()
        fake_models.write_model(models / "ctr" / "2", table_rows=2**20)
        assert requests.post(f"{server.url}/v2/repository/models/ctr/load").status_code == 200
        assert server.predict() == 0.5


def other(server: Command) -> requests.Response:
    try:
        return requests.post(f"{server.url}/models/other/predict", json={"rows": [{"a": None}]})
    except requests.ConnectionError:
        return requests.Response()


def test_a_worker_that_starts_again_without_its_model_is_not_ready(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = fake_models.write_model(tmp_path / "ctr", broken=True)
    settings = ServeConfig(models=str(folder))

    async def check() -> None:
        with pytest.raises(UserError, match="the model is damaged"):
            await server_worker.make_core(settings, fake_models.load)
        core = await server_worker.make_core(settings, fake_models.load, again=True)
        core.ready = True
        assert not core.is_ready
        for name in (None, "ctr"):
            with pytest.raises(RequestError, match="no model is loaded; the server's log says why") as caught:
                core.registry.get(name)
            assert caught.value.status == 503
        with pytest.raises(UserError, match="the model is damaged"):
            await core.registry.load("ctr")
        fake_models.write_model(folder)
        await core.registry.load("ctr")
        assert core.is_ready and not await core.registry.load_all()

    uvloop.run(check())
    [line] = [x for x in capfd.readouterr().err.splitlines() if '"error"' in x]
    assert "the model is damaged" in line and "traceback" not in line


@pytest.mark.slow
def test_a_reload_reaches_all_workers_and_ctrl_c_is_quiet(tmp_path: Path) -> None:
    folder = fake_models.write_model(tmp_path / "ctr")
    with command(folder, tmp_path / "log", "workers=2", "grpc_port=null") as server:
        fake_models.write_model(folder, bias=2.0, version="2")
        assert requests.post(f"{server.url}/v2/repository/models/ctr/load").status_code == 200
        until(lambda: server.log.read_text().count('"version":"2"') == 2)
        assert {server.predict() for _ in range(10)} == {0.881}
        fake_models.write_model(folder, version="3")
        server.process.send_signal(signal.SIGHUP)
        until(lambda: server.log.read_text().count('"version":"3"') == 2)
        before = server.log.read_text()
        for pid in (*server.workers(), server.process.pid):  # as a terminal does
            os.kill(pid, signal.SIGINT)
        assert server.process.wait(10) == 0
        assert server.log.read_text() == before


def test_a_server_that_drains_answers_requests_that_are_on_their_way(tmp_path: Path) -> None:
    """A caller that does not know yet that the server drains sends on a new or an idle connection."""
    request = b"POST /predict HTTP/1.1\r\nhost: localhost\r\ncontent-length: 18\r\n\r\n" + b'{"rows":[{"a":0}]}'
    with serving(fake_models.write_model(tmp_path / "ctr")) as served:
        address = ("127.0.0.1", served.settings.port)
        with socket.create_connection(address, 5) as idle, socket.create_connection(address, 5) as new:
            idle.sendall(request)
            assert b"connection: close" not in idle.recv(4096)
            served.begin_stop()
            until(lambda: not served.listens())
            for connection in (idle, new):
                connection.sendall(request)
                answer = connection.recv(4096)
                assert answer.startswith(b"HTTP/1.1 200") and b"connection: close" in answer
                assert connection.recv(1) == b""


def test_a_server_that_drains_answers_connections_that_wait_to_be_accepted(tmp_path: Path) -> None:
    request = b"POST /predict HTTP/1.1\r\nhost: localhost\r\ncontent-length: 18\r\n\r\n" + b'{"rows":[{"a":0}]}'
    settings = ServeConfig(models=str(fake_models.write_model(tmp_path / "ctr")))

    async def drain() -> list[bytes]:
        server = server_worker.http_server(await server_worker.make_core(settings, fake_models.load))
        listening = server_worker.shared_socket("127.0.0.1", 0)
        serving = asyncio.ensure_future(server.serve([listening]))
        while not server.started:
            await asyncio.sleep(0.01)
        # These connect without a round of the event loop, which would accept them.
        callers = [socket.create_connection(listening.getsockname(), 5) for _ in range(3)]
        for caller in callers[:2]:
            caller.sendall(request)
        callers[1].close()
        await server.shutdown([listening])
        server.should_exit = True
        await serving
        return [c.recv(4096) for c in (callers[0], callers[2])]

    answered, silent = uvloop.run(drain())
    assert answered.startswith(b"HTTP/1.1 200") and b"connection: close" in answered and silent == b""


def test_a_worker_that_is_ready_listens(tmp_path: Path) -> None:
    settings = ServeConfig(models=str(fake_models.write_model(tmp_path / "ctr")), loader="fake_models:load")
    settings = dataclasses.replace(settings, port=free_port(), grpc_port=None)
    command = [sys.executable, "-m", server_worker.__name__]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, env=ENVIRONMENT) as worker:
        assert worker.stdin is not None and worker.stdout is not None
        worker.stdin.write(json.dumps(dataclasses.asdict(settings)).encode() + b"\n")
        worker.stdin.flush()
        assert "ready" in json.loads(worker.stdout.readline())
        socket.create_connection(("127.0.0.1", settings.port), 5).close()


def test_workers_end_with_their_supervisor(tmp_path: Path) -> None:
    with command(fake_models.write_model(tmp_path / "ctr"), tmp_path / "log") as server:
        [worker] = server.workers()
        modules = f"/proc/{worker}/maps"
        assert "libtorch" not in Path(modules).read_text()
        server.process.kill()
        server.process.wait()
        until(
            lambda: not Path(f"/proc/{worker}").exists() or "Z" in Path(f"/proc/{worker}/stat").read_text().split()[2]
        )


def test_the_worker_imports_no_part_of_training() -> None:
    heavy = ("torch", "hydra", "pytorch_lightning", "torchrec", "torchmetrics", "recsys.training", "recsys.models")
    code = f"import sys, recsys.server.server_worker; sys.exit(str([m for m in {heavy} if m in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=ENVIRONMENT)
    assert done.stderr.strip() == "[]"


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"store": "redis://x:1/0"}, "store=redis://x:1/0"),
        ({"sample": 0.1}, "sample=0.1"),
        ({"traces": "localhost:4318"}, "traces=localhost:4318"),
        ({"allowed_hosts": ["a.b:80"]}, "allowed_hosts: a.b:80"),
        ({"preferred_batch": [2000]}, r"preferred_batch=\[2000\]"),
        ({"token": " "}, "token"),
        ({"port": 9, "grpc_port": 9}, "grpc_port=9"),
        ({"tls_cert": "cert.pem"}, "tls_cert and tls_key"),
        ({"tls_cert": "cert.pem", "tls_key": "nix.pem"}, "tls_key=nix.pem"),
        ({"tls_cert": "cert.pem", "tls_key": "cert.pem"}, "tls_cert=cert.pem"),
        ({"canary": "x"}, "canary=x"),
    ],
)
def test_mistakes_in_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], key: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cert.pem").write_text("no certificate")
    with pytest.raises(UserError, match=f"^{key}"):
        check_serve_settings(ServeConfig(models=str(fake_models.write_model(tmp_path / "ctr")), **settings))


def test_ports() -> None:
    with hold_port("127.0.0.1", 0, "port") as held:
        port = held.getsockname()[1]
        held.listen()
        with pytest.raises(UserError, match=f"^port={port} on 127.0.0.1: is in use; choose another port$"):
            hold_port("127.0.0.1", port, "port")  # although both would share it
    with pytest.raises(UserError, match=r"^host=256\.1\.1\.1: is not the address of this machine"):
        hold_port("256.1.1.1", 0, "port")
    with pytest.raises(UserError, match=r"^port=0 on 192\.0\.2\.1: cannot be used"):
        hold_port("192.0.2.1", 0, "port")
