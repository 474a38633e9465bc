"""One process of the server: python -m recsys.server.server_worker [again], started by the supervisor (supervisor.py).

It reads its settings as one line of JSON from standard input, reports one line of JSON on standard output once it
serves or has failed, and drains when standard input ends, because the supervisor is gone then.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import orjson
import uvicorn
import uvloop

from recsys.base.errors import UserError
from recsys.schema.command_schemas import ServeConfig
from recsys.server import grpc_v2
from recsys.server.app import App
from recsys.server.batcher import BatchLimits
from recsys.server.core import Core
from recsys.server.http_protocol import LimitedProtocol
from recsys.server.logs import LibraryLog, log, log_failure
from recsys.server.model_versions import open_source
from recsys.server.prometheus import metrics
from recsys.server.request_log import RequestLog
from recsys.server.served_models import Loader, Registry
from recsys.server.supervisor import AGAIN

POLL_SECONDS = 1.0
REPORT_SECONDS = 0.1
KEEP_ALIVE_SECONDS = 75
MOST_FILES = 65536


class _Server(uvicorn.Server):
    """uvicorn's server without signal handlers, since the worker has its own. It drains connections that wait, too."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and set `listening`."""
        await super().startup(sockets)
        self.listening.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close the listening sockets, serve the connections that waited to be accepted, and drain.

        Closing a socket resets connections that wait, although their callers take them for open and may have sent
        requests.
        """
        waiting = [connection for s in sockets or [] for connection in _accept_all(s)]
        for server in self.servers:
            server.close()
        loop = asyncio.get_running_loop()
        ssl_context = self.config.ssl if self.config.is_ssl else None
        accepted = [loop.connect_accepted_socket(self._protocol, c, ssl=ssl_context) for c in waiting]
        await asyncio.gather(*accepted, return_exceptions=True)  # callers may have gone
        await super().shutdown(sockets)

    def _protocol(self) -> asyncio.Protocol:
        protocol: Any = self.config.http_protocol_class
        return protocol(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)


def _accept_all(listening: socket.socket) -> Iterator[socket.socket]:
    """Accept the connections that wait."""
    with contextlib.suppress(OSError):  # none is left
        listening.setblocking(False)
        while True:
            connection, _ = listening.accept()
            connection.setblocking(False)
            yield connection


def _find_loader(name: str) -> Loader:
    """Return the function MODULE:FUNCTION. Raises UserError."""
    module, _, function = name.partition(":")
    try:
        return getattr(import_module(module), function)
    except (ImportError, AttributeError, ValueError) as e:
        raise UserError(f"loader={name}: cannot be imported ({e}); write MODULE:FUNCTION") from e


def _limits(settings: ServeConfig) -> BatchLimits:
    """Return the limits of the batchers."""
    preferred = tuple(sorted(settings.preferred_batch))
    return BatchLimits(settings.max_batch, settings.max_delay_us * 1e-6, preferred, settings.queue)


def _with_features(settings: ServeConfig, load: Loader) -> Loader:
    """Return a loader whose models get stored features first, if the settings name a definition. Raises UserError."""
    if settings.definition is None:
        return load
    from recsys.store.definition import load_views
    from recsys.store.request_features import OnlineFeatures, WithFeatures
    from recsys.store.stores import open_store

    features = OnlineFeatures(load_views(settings.definition), open_store(settings.store))
    return lambda folder, **options: WithFeatures(load(folder, **options), features)


async def make_core(settings: ServeConfig, loader: Loader | None = None, *, again: bool = False) -> Core:
    """Load the models. Raises UserError.

    again: whether this worker replaces one that has ended; it serves the models that can be loaded, since a file that
        was damaged while the server ran must not end the service of the others
    """
    source = open_source(Path(settings.models), settings.canary, settings.shadow)
    load = _find_loader(settings.loader) if loader is None else loader
    if settings.device != "auto":  # a loader of the user's own may have no such argument
        load = partial(load, device=settings.device)
    load = _with_features(settings, load)
    registry = Registry(source, load, _limits(settings), metrics(), settings.threads)
    errors = await registry.load_all()
    if errors and not again:
        raise errors[0]
    _log_errors("load", errors)
    sampled = settings.sample > 0 and settings.sample_dir is not None
    request_log = RequestLog(Path(str(settings.sample_dir)), settings.sample) if sampled else None
    return Core(settings, registry, metrics(), request_log, _tracer(settings))


def _log_errors(event: str, errors: Sequence[UserError]) -> None:
    for e in errors:
        log("error", event, error=str(e))


def _tracer(settings: ServeConfig) -> Any:
    if settings.traces is None:
        return None
    from recsys.server.tracing import Tracer

    return Tracer(settings.traces, settings.trace_share)


def http_server(core: Core) -> _Server:
    """Return the HTTP server of a worker, which is not started yet."""
    settings = core.settings
    config = uvicorn.Config(
        App(core),  # type: ignore[arg-type]
        http=partial(LimitedProtocol, settings.max_header_kb * 1024, settings.read_s),  # type: ignore[arg-type]
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=max(1, round(settings.drain_s)),
        ssl_certfile=settings.tls_cert,
        ssl_keyfile=settings.tls_key,
    )
    return _Server(config)


def shared_socket(host: str, port: int) -> socket.socket:
    """Return a socket that is bound to a port which other processes of this server share."""
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    bound.bind(address)
    return bound


async def _run(settings: ServeConfig, *, again: bool = False) -> None:
    """Serve until SIGTERM, or until the supervisor is gone. again: as for `make_core`"""
    core = await make_core(settings, again=again)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    loop.add_signal_handler(signal.SIGHUP, lambda: _keep(loop.create_task(_reload(core))))
    loop.add_reader(0, _read_end, loop, stop)
    core.announce_reload = lambda: os.kill(os.getppid(), signal.SIGHUP)
    server = http_server(core)
    serving = loop.create_task(server.serve([shared_socket(settings.host, settings.port)]))
    rpc = await grpc_v2.start(core) if settings.grpc_port is not None else None
    polling = loop.create_task(_poll(core))
    reporting = loop.create_task(_report_answers(core))
    await asyncio.wait([serving, loop.create_task(server.listening.wait())], return_when=asyncio.FIRST_COMPLETED)
    core.ready = True
    _report({"ready": os.getpid()})
    await asyncio.wait([serving, loop.create_task(stop.wait())], return_when=asyncio.FIRST_COMPLETED)
    core.ready = False
    polling.cancel()
    server.should_exit = True
    await asyncio.gather(serving, *([rpc.stop(settings.drain_s)] if rpc is not None else []))
    reporting.cancel()
    for report in core.take_reports():
        _report(report)
    if core.request_log is not None:
        await asyncio.to_thread(core.request_log.close)
    if core.tracer is not None:
        await asyncio.to_thread(core.tracer.close)


_tasks: set[asyncio.Task[Any]] = set()


def _keep(task: asyncio.Task[Any]) -> None:
    """Keep a reference to a task, which the event loop does not."""
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)


async def _reload(core: Core) -> None:
    try:
        _log_errors("reload", await core.registry.load_all())
    except Exception as e:
        log_failure("reload", e)


async def _poll(core: Core) -> None:
    while True:
        await asyncio.sleep(POLL_SECONDS)
        try:
            core.update_gauges()
            await core.registry.reload_changed()
        except Exception as e:  # the next round may go well
            log_failure("poll", e)


async def _report_answers(core: Core) -> None:
    while True:
        await asyncio.sleep(REPORT_SECONDS)
        for report in core.take_reports():
            await asyncio.to_thread(_report, report)  # the supervisor may be slow


def _read_end(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    if not os.read(0, 1024):
        loop.remove_reader(0)
        stop.set()


_report_to = 1


def _own_output() -> None:
    """Keep standard output for reports. What libraries print goes to standard error: nobody would read the pipe."""
    global _report_to
    _report_to = os.dup(1)
    os.dup2(2, 1)


def raise_file_limit() -> None:
    """Allow as many open connections as the hard limit does: the usual soft limit, 1,024, is soon reached."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _report(message: dict[str, Any]) -> None:
    """Write one line to the supervisor."""
    with contextlib.suppress(BrokenPipeError), open(_report_to, "wb", closefd=False) as pipe:
        pipe.write(orjson.dumps(message) + b"\n")


def _read_settings() -> ServeConfig:
    """Read the settings, byte by byte, so that nothing after the line is lost in a buffer."""
    line = b""
    while not line.endswith(b"\n") and (byte := os.read(0, 1)):
        line += byte
    return ServeConfig(**orjson.loads(line))


def main() -> int:
    """Serve, and return the exit status."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes of a terminal; the supervisor decides
    _own_output()
    logging.basicConfig(handlers=[LibraryLog()], level=logging.WARNING)
    raise_file_limit()
    settings = _read_settings()
    try:
        uvloop.run(_run(settings, again=AGAIN in sys.argv[1:]))
    except UserError as e:
        _report({"error": str(e)})
        return 2
    except Exception as e:
        log_failure("worker", e)
        _report({"error": f"a worker has failed: {type(e).__name__}: {e}"})
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
