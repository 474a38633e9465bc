"""The supervisor: starts the workers, starts them again if they die, passes signals on, and drains them at the end."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import shutil
import signal
import socket
import ssl
import sys
import tempfile
import time
from asyncio.subprocess import Process
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from recsys.base.console import say
from recsys.base.errors import UserError
from recsys.base.packages import check_extra
from recsys.files.run_files import CONFIG
from recsys.schema.command_schemas import ServeConfig
from recsys.server.hosts import check_host_names
from recsys.server.model_versions import open_source

if TYPE_CHECKING:
    from recsys.server.prometheus import Metrics

WORKER = "recsys.server.server_worker"
AGAIN = "again"  # argument of a worker that replaces one that has ended
METRICS = "PROMETHEUS_MULTIPROC_DIR"
MAX_PAUSE = 5.0  # seconds before a worker that dies again and again is started again
POLL_SECONDS = 0.5
MAX_BYTES = 2**24  # of a line that a worker reports
EXTRA_SECONDS = 3.0  # after drain_s, before a worker is killed
T = TypeVar("T")
COLLECTOR = "http://localhost:4318"
LOCAL = ("127.0.0.1", "::1", "localhost")


def serve(settings: ServeConfig) -> None:
    """Serve until Ctrl-C or SIGTERM. Raises UserError."""
    check_serve_settings(settings)
    held, ports = [], {}  # sockets that keep the ports for this server, and the numbers of free ports in the place of 0
    for key in ("port", "grpc_port"):
        if (number := getattr(settings, key)) is not None:
            held.append(hold_port(settings.host, number, key))
            ports[key] = held[-1].getsockname()[1]
    settings = dataclasses.replace(settings, **ports)
    if settings.host not in LOCAL and not settings.token:
        risk = "anyone who reaches this machine can use, load and unload the models"
        say(f"WARNING: host={settings.host} without a token: {risk}; set token= or the variable RECSYS_TOKEN")
    folder = os.environ[METRICS] = tempfile.mkdtemp(prefix="recsys-serve-")  # also for counters of this process
    try:
        asyncio.run(_Supervisor(settings, Path(folder)).run())
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        for bound in held:
            bound.close()


def check_serve_settings(settings: ServeConfig) -> None:
    """Check what the schema cannot express, and the packages of the extra `serve`. Raises UserError."""
    check_extra("serve", "recsys.serve")
    open_source(Path(settings.models), settings.canary, settings.shadow)
    if (Path(settings.models) / CONFIG).is_file():
        raise UserError(f"model={settings.models}: is a run; export it with python -m recsys.export run=RUN output=DIR")
    if settings.definition is None and settings.store != ServeConfig().store:
        raise UserError(f"store={settings.store}: also name the views in it, definition=FILE")
    if settings.sample > 0 and settings.sample_dir is None:
        raise UserError(f"sample={settings.sample}: also name the folder of the samples, sample_dir=FOLDER")
    sample_dir = settings.sample_dir if settings.sample > 0 else None
    for key, folder in (("sample_dir", sample_dir), ("feedback", settings.feedback)):
        try:
            if folder is not None:
                Path(folder).mkdir(parents=True, exist_ok=True)
        except OSError as e:
            raise UserError(f"{key}={folder}: cannot be created ({e.strerror})") from e
    if any(not 1 <= n <= settings.max_batch for n in settings.preferred_batch):
        raise UserError(f"preferred_batch={settings.preferred_batch}: numbers from 1 to max_batch={settings.max_batch}")
    if settings.traces is not None:
        if not settings.traces.startswith(("http://", "https://")):
            raise UserError(f"traces={settings.traces}: must be the address of a collector, such as {COLLECTOR}")
        check_extra("otel", f"traces={settings.traces}")
    check_host_names(settings.allowed_hosts)
    if settings.token is not None and (not settings.token.strip() or not settings.token.isascii()):
        raise UserError("token: must not be empty, and ASCII")
    if settings.port == settings.grpc_port and settings.port != 0:
        raise UserError(f"grpc_port={settings.grpc_port}: is the HTTP port too; choose another, or grpc_port=null")
    cert, tls_key = settings.tls_cert, settings.tls_key
    if (cert is None) != (tls_key is None):
        raise UserError("tls_cert and tls_key: TLS needs both files")
    if cert is None or tls_key is None:
        return
    for name, file in (("tls_cert", cert), ("tls_key", tls_key)):
        if not Path(file).is_file():
            raise UserError(f"{name}={file}: no such file; name a PEM file")
    try:
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(cert, tls_key)
    except (ssl.SSLError, OSError) as e:
        why = f"cannot be read as a certificate and its key ({e})"
        raise UserError(f"tls_cert={cert}, tls_key={tls_key}: {why}") from e


def hold_port(host: str, port: int, key: str) -> socket.socket:
    """Return a bound socket that does not listen, so that only processes which share the port can use it.

    Raises UserError if another program uses the port.
    """
    try:
        if port:
            family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            with socket.socket(family, socket.SOCK_STREAM) as probe:  # fails also if another server shares the port
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
        return shared_socket(host, port)
    except socket.gaierror as e:
        raise UserError(f"host={host}: is not the address of this machine ({e.strerror})") from e
    except PermissionError as e:
        raise UserError(f"{key}={port}: needs more rights; choose a port above 1023") from e
    except OSError as e:
        in_use = "is in use; choose another port" if e.errno == 98 else f"cannot be used ({e.strerror})"
        raise UserError(f"{key}={port} on {host}: {in_use}") from e


def shared_socket(host: str, port: int) -> socket.socket:
    """Return a socket that is bound to a port which other processes of this server share."""
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    bound.bind(address)
    return bound


class _Supervisor:
    def __init__(self, settings: ServeConfig, folder: Path) -> None:
        self._settings, self._folder = settings, folder
        self._running: dict[int, Process] = {}
        self._ready: set[int] = set()
        self._reloads = 0
        self._stopping = asyncio.Event()
        self._reading: set[asyncio.Task[None]] = set()
        from recsys.server.answer_hub import AnswerHub  # after the check of packages

        self._hub = AnswerHub(
            open_source(Path(settings.models), settings.canary, settings.shadow),
            feedback=settings.feedback is not None,
            wait=settings.feedback_wait_s,
            most=settings.feedback_window,
            reload=self._reload,
            metrics=_own_metrics,
        )
        self._said = ""  # why the last worker could not be started
        self._line = json.dumps(dataclasses.asdict(settings)).encode() + b"\n"

    async def run(self) -> None:
        """Run the workers until a signal comes. Raises UserError if they cannot start."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._stopping.set)
        loop.add_signal_handler(signal.SIGHUP, self._reload)
        try:
            started = await self._until_stopped(asyncio.gather(*(self._start() for _ in range(self._settings.workers))))
            if started is None:
                return
            s = self._settings
            host = f"[{s.host}]" if ":" in s.host else s.host
            grpc = f", gRPC at {host}:{s.grpc_port}" if s.grpc_port is not None else ""
            address = f"{'https' if s.tls_cert else 'http'}://{host}:{s.port}"
            workers = f"{s.workers} worker{'s' * (s.workers > 1)}"
            say(f"serving {s.pipeline_file or s.models} at {address}{grpc}, {workers}; docs at /docs")
            await self._until_stopped(asyncio.gather(self._poll(), *map(self._keep, started)))
        finally:  # let the workers answer what they have, and kill those that take too long
            self._stopping.set()
            self._signal_workers(signal.SIGTERM)
            ending = {asyncio.ensure_future(p.wait()) for p in self._running.values()}
            if ending:
                _, ending = await asyncio.wait(ending, timeout=self._settings.drain_s + EXTRA_SECONDS)
            if ending:
                self._signal_workers(signal.SIGKILL)
                await asyncio.wait(ending)

    async def _until_stopped(self, wanted: asyncio.Future[list[T]]) -> list[T] | None:
        """Return the result of `wanted`, or None if the server is stopped before."""
        stopped = asyncio.ensure_future(self._stopping.wait())
        either: list[asyncio.Future[Any]] = [wanted, stopped]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if wanted.done():
            return wanted.result()
        wanted.cancel()
        await asyncio.gather(wanted, return_exceptions=True)
        return None

    async def _start(self, *arguments: str) -> Process:
        """Start a worker and wait until it serves. Raises UserError if it cannot."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", WORKER, *arguments),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=MAX_BYTES,
        )
        self._running[process.pid], reloads = process, self._reloads
        assert process.stdin is not None and process.stdout is not None
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            process.stdin.write(self._line)
            await process.stdin.drain()
        line = await process.stdout.readline()
        message = json.loads(line) if line else {}
        if "ready" not in message:
            status = await process.wait()
            self._running.pop(process.pid, None)
            raise UserError(message.get("error") or f"a worker has ended with status {status} before it could serve")
        self._ready.add(process.pid)
        reading = asyncio.get_running_loop().create_task(self._read_reports(process))
        self._reading.add(reading)
        reading.add_done_callback(self._reading.discard)
        if reloads != self._reloads:  # a reload was wanted while it read the models
            process.send_signal(signal.SIGHUP)
        return process

    async def _read_reports(self, process: Process) -> None:
        """Pass what a worker reports to the hub, until the worker ends."""
        assert process.stdout is not None
        while (line := await process.stdout.readline()).endswith(b"\n"):  # the last line of one that was killed may not
            self._hub.take(line)

    async def _poll(self) -> None:
        while True:
            await asyncio.sleep(POLL_SECONDS)
            self._hub.poll()

    async def _keep(self, process: Process | None) -> None:
        """Wait for the end of a worker and start another, until the server stops."""
        pause = 0.0
        while not self._stopping.is_set():
            if process is not None:
                since = time.monotonic()
                status = await process.wait()
                self._running.pop(process.pid, None)
                self._ready.discard(process.pid)
                for file in self._folder.glob(f"gauge_live*_{process.pid}.db"):  # its counters stay
                    file.unlink(missing_ok=True)
                if self._stopping.is_set():
                    return
                ending = signal.Signals(-status).name if status < 0 else f"status {status}"
                if status == -signal.SIGBUS:
                    ending += ": a file of a model was changed in place or cut short; replace folders instead"
                say(f"worker {process.pid} has ended ({ending}); starting another")
                pause = 0.0 if time.monotonic() - since > MAX_PAUSE else min(MAX_PAUSE, 2 * pause + 0.1)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause)
                return
            try:
                process, self._said = await self._start(AGAIN), ""
            except UserError as e:
                process, pause = None, min(MAX_PAUSE, 2 * pause + 0.5)
                if not self._stopping.is_set() and str(e) != self._said:
                    self._said = str(e)
                    say(f"a worker cannot be started, and is tried again and again: {e}")

    def _reload(self) -> None:
        """Let the workers load what has changed. SIGHUP would end a worker that has no handler for it yet."""
        self._reloads += 1
        for pid in self._ready:
            with contextlib.suppress(ProcessLookupError):
                self._running[pid].send_signal(signal.SIGHUP)

    def _signal_workers(self, number: int) -> None:
        for process in self._running.values():
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)


def _own_metrics() -> Metrics:
    """Import prometheus_client, which reads METRICS then, and which few servers need in this process."""
    from recsys.server.prometheus import metrics

    return metrics()
