"""Serve the progress and the metrics of a training, a preparation or a follower to Prometheus: metrics_port=9100."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from recsys.base import console
from recsys.base.errors import UserError
from recsys.base.packages import check_extra

_open: list[MetricsPage] = []


class MetricsPage:
    """The page, with the last values of the events of `console.emit`."""

    def __init__(self, port: int, host: str) -> None:
        check_extra("serve", f"metrics_port={port}", "prometheus_client")
        from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server

        self._to: dict[str, Any] = {"registry": CollectorRegistry()}
        self._gauge, self._gauges = Gauge, dict[str, Any]()
        self._events = Counter("recsys_events", "Lines of the log", ("event", "level"), **self._to)
        self._progress = {
            name: Gauge(f"recsys_progress_{name}", meaning, ("of", "unit"), **self._to)
            for name, meaning in (("done", "Rows so far"), ("total", "Rows in all"), ("rate", "Rows per second"))
        }
        try:
            self._server, self._thread = start_http_server(port, host, **self._to)
        except OSError as e:
            why = f"cannot listen on {host} ({e.strerror}); name another port, or leave it out"
            raise UserError(f"metrics_port={port}: {why}") from e
        console.listeners.append(self.update)

    def update(self, event: str, level: str, fields: dict[str, Any]) -> None:
        """Take over the numbers of an event."""
        self._events.labels(event, level).inc()
        for name, value in fields.items():
            if not isinstance(value, int | float):
                continue
            if event == "progress" and name in self._progress:
                self._progress[name].labels(fields["of"], fields["unit"]).set(value)
                continue
            name = "recsys_" + re.sub(r"\W", "_", name)
            if name not in self._gauges:
                self._gauges[name] = self._gauge(name, "The last value", **self._to)
            self._gauges[name].set(value)

    def close(self) -> None:
        """Close the port."""
        console.listeners.remove(self.update)
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def heard(cfg: object) -> Iterator[None]:
    """Let machines get what a command says while the block runs, as its keys `logging` and `metrics_port` say.

    Raises UserError if the port is taken, or prometheus_client is not installed.
    """
    given = getattr(cfg, "metrics_port", None) if os.environ.get("RANK", "0") == "0" else None
    number = int(str(given)) if str(given).isdecimal() else 0  # text if an environment's variable says it
    port = number if 0 < number < 1 << 16 else None  # the schema refuses other values, later
    before = console.write_json() if getattr(cfg, "logging", None) == "json" else None
    try:
        if port is not None:
            _open.append(MetricsPage(port, getattr(cfg, "metrics_host", "127.0.0.1")))
        yield
    finally:
        if port is not None:
            close()
        if before is not None:
            console.write_json(before)


def close() -> None:
    """Close this process's page: rank 0, a process of its own, serves it from now on."""
    while _open:
        _open.pop().close()
