"""Servers of tests: one worker in a thread, without a supervisor, and the command with its processes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from typing import Any

import fake_models
import requests
import uvloop

from recsys.schema.command_schemas import ServeConfig
from recsys.server import grpc_v2, server_worker
from recsys.server.core import Core

HELPERS = Path(__file__).parent
ROOT = Path(__file__).parents[2]
ENVIRONMENT = os.environ | {"PYTHONPATH": f"{ROOT}:{HELPERS}"}


# of this process of the tests alone: servers share a port that two processes chose at the same time (SO_REUSEPORT)
FIRST_PORT = 15_000 + 4_000 * (int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) % 4)
PORTS = cycle(range(FIRST_PORT, FIRST_PORT + 4_000))


def free_port() -> int:
    for port in PORTS:
        with contextlib.suppress(OSError), socket.socket() as s:
            s.bind(("127.0.0.1", port))
            return port
    raise AssertionError


class Served:
    """A running server. core: lives in the event loop `loop` of another thread"""

    def __init__(self, model: Path, loader_function: Any = fake_models.load, **settings: Any) -> None:
        self._load = loader_function
        settings.setdefault("port", free_port())
        settings.setdefault("grpc_port", free_port())
        self.settings = ServeConfig(models=str(model), **settings)
        self.http = f"127.0.0.1:{self.settings.port}"
        self.url = f"{'https' if self.settings.tls_cert else 'http'}://{self.http}"
        self.grpc = f"127.0.0.1:{self.settings.grpc_port}"
        self._started, self._error = threading.Event(), None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.core: Core
        self.loop: asyncio.AbstractEventLoop

    def start(self) -> None:
        self._thread.start()
        assert self._started.wait(20)
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        self.begin_stop()
        self._thread.join(20)

    def begin_stop(self) -> None:
        """Let the server drain; do not wait for it."""
        if self._thread.is_alive():
            self.loop.call_soon_threadsafe(self._stop.set)

    def listens(self) -> bool:
        """Return whether the server accepts connections."""
        with socket.socket() as s:
            return s.connect_ex(("127.0.0.1", self.settings.port)) == 0

    def call(self, coroutine: Any) -> Any:
        """Run a coroutine in the server's event loop, and return its result."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(20)

    def _run(self) -> None:
        try:
            uvloop.run(self._serve())
        except BaseException as e:
            self._error = e
            self._started.set()

    async def _serve(self) -> None:
        self.loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self.core = core = await server_worker.make_core(self.settings, self._load)
        server = server_worker.http_server(core)
        serving = self.loop.create_task(server.serve([server_worker.shared_socket("127.0.0.1", self.settings.port)]))
        rpc = await grpc_v2.start(core)
        core.ready = True
        while not server.started:
            await asyncio.sleep(0.01)
        self._started.set()
        await self._stop.wait()
        server.should_exit = True
        await asyncio.gather(serving, rpc.stop(1))
        if core.request_log is not None:
            core.request_log.close()


@contextmanager
def serving(model: Path, **settings: Any) -> Iterator[Served]:
    """Serve a folder while the block runs."""
    served = Served(model, **settings)
    served.start()
    try:
        yield served
    finally:
        served.stop()


class Command:
    """A running `python -m recsys.serve`."""

    def __init__(self, folder: Path, log: Path, *arguments: str) -> None:
        self.port, self.grpc_port = free_port(), free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = log
        ports = (f"port={self.port}", f"grpc_port={self.grpc_port}")
        command = [sys.executable, "-m", "recsys.serve", str(folder), "loader=fake_models:load", *ports, *arguments]
        with log.open("w") as out:
            self.process = subprocess.Popen(command, stdout=out, stderr=out, env=ENVIRONMENT, cwd=log.parent)
        until(lambda: "serving" in log.read_text() or self.process.poll() is not None, 60)
        assert self.process.poll() is None, log.read_text()

    def predict(self, session: requests.Session | None = None) -> float:
        answer = (session or requests).post(f"{self.url}/models/ctr/predict", json={"rows": [{"a": None}]}, timeout=20)
        assert answer.status_code == 200, answer.text
        return round(answer.json()["predictions"][0], 3)

    def workers(self) -> list[int]:
        """Return the process ids of the workers."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return sorted(map(int, children))


def until(condition: Callable[[], object], seconds: float = 15.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


@contextmanager
def command(folder: Path, log: Path, *arguments: str) -> Iterator[Command]:
    running = Command(folder, log, *arguments)
    try:
        yield running
    finally:
        running.process.kill()
        running.process.wait()
