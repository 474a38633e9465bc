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
from recsys.base.json_log import LibraryLog, log, log_failure
from recsys.schema.command_schemas import ServeConfig
from recsys.server import grpc_v2
from recsys.server.app import App
from recsys.server.batcher import BatchLimits
from recsys.server.core import Core
from recsys.server.http_protocol import LimitedProtocol
from recsys.server.model_versions import open_source
from recsys.server.prometheus import metrics
from recsys.server.request_log import RequestLog
from recsys.server.served_models import Loader, Registry
from recsys.server.supervisor import AGAIN, shared_socket

POLL_SECONDS = 1.0
REPORT_SECONDS = 0.1
KEEP_ALIVE_SECONDS = 75
MAX_FILES = 65536


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
        waiting: list[socket.socket] = []
        for listening in sockets or []:
            with contextlib.suppress(OSError):  # none is left
                listening.setblocking(False)
                while True:
                    waiting.append(listening.accept()[0])
                    waiting[-1].setblocking(False)
        for server in self.servers:
            server.close()
        loop, config, protocol_class = asyncio.get_running_loop(), self.config, self.config.http_protocol_class
        state = {"server_state": self.server_state, "app_state": self.lifespan.state}
        protocol: Any = partial(protocol_class, config=config, **state)  # type: ignore[arg-type, call-arg]
        ssl_context = config.ssl if config.is_ssl else None
        accepted = [loop.connect_accepted_socket(protocol, c, ssl=ssl_context) for c in waiting]
        await asyncio.gather(*accepted, return_exceptions=True)  # callers may have gone
        await super().shutdown(sockets)


async def make_core(settings: ServeConfig, loader: Loader | None = None, *, again: bool = False) -> Core:
    """Load the models. Raises UserError.

    again: whether this worker replaces one that has ended; it serves the models that can be loaded, since a file that
        was damaged while the server ran must not end the service of the others
    """
    source = open_source(Path(settings.models), settings.canary, settings.shadow)
    load = loader
    if load is None:
        module, _, function = settings.loader.partition(":")
        try:
            load = getattr(import_module(module), function)
        except (ImportError, AttributeError, ValueError) as e:
            raise UserError(f"loader={settings.loader}: cannot be imported ({e}); write MODULE:FUNCTION") from e
    assert load is not None
    if settings.device != "auto":  # a loader of the user's own may have no such argument
        load = partial(load, device=settings.device)
    if settings.definition is not None:
        from recsys.store.definition import load_views
        from recsys.store.request_features import OnlineFeatures, WithFeatures
        from recsys.store.stores import open_store

        load_alone, features = load, OnlineFeatures(load_views(settings.definition), open_store(settings.store))

        def load_with_features(folder: Path, **options: Any) -> Any:
            return WithFeatures(load_alone(folder, **options), features)

        load = load_with_features
    preferred = tuple(sorted(settings.preferred_batch))
    limits = BatchLimits(settings.max_batch, settings.max_delay_us * 1e-6, preferred, settings.queue)
    registry = Registry(source, load, limits, metrics(), settings.threads)
    errors = await registry.load_all()
    if errors and not again:
        raise errors[0]
    _log_errors("load", errors)
    sampled = settings.sample > 0 and settings.sample_dir is not None
    request_log = RequestLog(Path(str(settings.sample_dir)), settings.sample) if sampled else None
    tracer = None
    if settings.traces is not None:
        from recsys.server.tracing import Tracer

        tracer = Tracer(settings.traces, settings.trace_share)
    return Core(settings, registry, metrics(), request_log, tracer)


def _log_errors(event: str, errors: Sequence[UserError]) -> None:
    for e in errors:
        log("error", event, error=str(e))


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


async def _run(settings: ServeConfig, *, again: bool = False) -> None:
    """Serve until SIGTERM, or until the supervisor is gone. again: as for `make_core`"""
    core = await make_core(settings, again=again)
    stop, reload = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    loop.add_signal_handler(signal.SIGHUP, reload.set)
    loop.add_reader(0, _read_end, loop, stop)
    core.announce_reload = lambda: os.kill(os.getppid(), signal.SIGHUP)
    server = http_server(core)
    serving = loop.create_task(server.serve([shared_socket(settings.host, settings.port)]))
    rpc = await grpc_v2.start(core) if settings.grpc_port is not None else None
    polling = loop.create_task(_poll(core, reload))
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
        await asyncio.to_thread(core.request_log.close, max(5.0, settings.drain_s))
    if core.tracer is not None:
        await asyncio.to_thread(core.tracer.close)


async def _poll(core: Core, reload: asyncio.Event) -> None:
    """Load what has changed: every second what serving.json chooses, and once `reload` is set, all models."""
    while True:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(reload.wait(), POLL_SECONDS)
        try:
            core.update_gauges()
            if reload.is_set():
                reload.clear()
                _log_errors("reload", await core.registry.load_all())
            else:
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


_report_to = 1  # the pipe to the supervisor


def raise_file_limit() -> None:
    """Allow as many open connections as the hard limit does: the usual soft limit, 1,024, is soon reached."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _report(message: dict[str, Any]) -> None:
    """Write one line to the supervisor."""
    with contextlib.suppress(BrokenPipeError), open(_report_to, "wb", closefd=False) as pipe:
        pipe.write(orjson.dumps(message) + b"\n")


def main() -> int:
    """Serve, and return the exit status."""
    global _report_to
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes of a terminal; the supervisor decides
    _report_to = os.dup(1)
    os.dup2(2, 1)  # what libraries print goes to standard error: nobody would read the pipe
    logging.basicConfig(handlers=[LibraryLog()], level=logging.WARNING)
    raise_file_limit()
    line = b""
    while not line.endswith(b"\n") and (byte := os.read(0, 1)):  # so that nothing after the line is lost in a buffer
        line += byte
    try:
        uvloop.run(_run(ServeConfig(**orjson.loads(line)), again=AGAIN in sys.argv[1:]))
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
