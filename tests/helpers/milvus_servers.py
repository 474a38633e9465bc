"""Milvus servers on this machine, for tests."""

import contextlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from filelock import FileLock
from served import free_port


@contextlib.contextmanager
def lite(folder: Path) -> Iterator[tuple[str, Callable[[], None]]]:
    """Start Milvus Lite; yield its URL, and a function that ends it."""
    pytest.importorskip("milvus_lite", reason="milvus-lite is not installed")
    port = free_port()
    command = [sys.executable, "-m", "milvus_lite.cmdline", "server", "--data-dir", str(folder), "--host", "127.0.0.1"]
    process = subprocess.Popen([*command, "--port", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def stop() -> None:
        process.kill()
        process.wait()

    try:
        wait_for(port, process)
        yield f"http://127.0.0.1:{port}", stop
    finally:
        stop()


def wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + 60
    while time.monotonic() < until and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.05)
    raise RuntimeError("Milvus Lite has not started")


@contextlib.contextmanager
def whole(folder: Path) -> Iterator[tuple[str, Callable[[], None]]]:
    """The same for the server itself, which a package for this platform holds."""
    milvus = pytest.importorskip("milvus", reason="the package milvus has no server for this platform")
    server = milvus.MilvusServer()
    server.set_base_dir(str(folder))
    server.listen_port, server.wait_for_started = free_port(), False
    with FileLock(Path(tempfile.gettempdir()) / "recsys-milvus.lock"):  # some of its ports are fixed
        try:
            server.start()
            server.wait_started(60_000)  # milliseconds
            yield f"http://127.0.0.1:{server.listen_port}", server.stop
        finally:
            server.stop()
            shutil.rmtree(folder, ignore_errors=True)  # 450 MB
