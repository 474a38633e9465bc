"""A server in a thread of the test: one worker, on free ports, without a supervisor."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fake_models
import uvloop

from recsys.schema.command_schemas import ServeConfig
from recsys.server import grpc_v2, server_worker
from recsys.server.core import Core


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


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
