"""The figures of measurements, and their table for the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from rich.table import Table

from recsys.loadtest.client_processes import Load
from recsys.loadtest.drive import Timings
from recsys.loadtest.server_times import ServerTimes

BUSY = 0.9  # share of a core from which the client itself may be the limit
MAX_LATE_SHARE = 0.2  # share of the mean latency from which requests count as sent late
PERCENTILES = {"p50_ms": 50, "p90_ms": 90, "p99_ms": 99, "p999_ms": 99.9}
TIMES = ("p50_ms", "p90_ms", "p99_ms", "p999_ms", "mean_ms")
TIME_NAMES = ("p50", "p90", "p99", "p99.9", "mean")
PARTS = ("client_ms", "network_ms", "queue_ms", "compute_ms", "other_ms")


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """The figures of one load. Times are milliseconds, None if the server does not count them or no request succeeded.

    connections: number of connections; in a closed loop the number of requests under way
    offered_per_s: rate at which an open loop sends requests; None for a closed loop
    requests: number of requests that were answered
    errors: number of requests that failed; error_kinds says how
    client_ms: mean time from when a request was due to when it was sent, which needs a free connection
    other_ms: mean time in the server outside the queue and the model, such as reading the request
    network_ms: mean time that neither the client nor the server counts: the network, and the server's HTTP or gRPC
    client_cpu: share of a core that the busiest client process used
    """

    batch_size: int
    connections: int
    offered_per_s: float | None
    requests: int
    errors: int
    error_kinds: dict[str, int]
    requests_per_s: float
    rows_per_s: float
    mean_ms: float | None = None
    p50_ms: float | None = None
    p90_ms: float | None = None
    p99_ms: float | None = None
    p999_ms: float | None = None
    client_ms: float | None = None
    network_ms: float | None = None
    queue_ms: float | None = None
    compute_ms: float | None = None
    other_ms: float | None = None
    client_cpu: float

    @property
    def client_limited(self) -> bool:
        """Return whether the client may have been the limit, and not the server."""
        return self.client_cpu > BUSY

    @property
    def sent_late(self) -> bool:
        """Return whether a large part of the latency passed before the requests of an open loop were sent."""
        return (
            self.client_ms is not None and self.mean_ms is not None and self.client_ms > MAX_LATE_SHARE * self.mean_ms
        )


COLUMNS = tuple(f.name for f in fields(Measurement))


def measurement(load: Load, seconds: float, timings: Timings, server: ServerTimes | None) -> Measurement:
    """Return the figures of a measurement that took `seconds`.

    Args:
        server: the server's own times; None leaves out the shares of network, queue and model.
    """
    latencies = timings.latencies * 1e3
    times: dict[str, float] = {}
    if len(latencies):
        values = np.percentile(latencies, list(PERCENTILES.values()))
        mean, client = float(latencies.mean()), float(timings.delays.mean() * 1e3)
        times = dict(zip(PERCENTILES, map(float, values), strict=True)) | {"mean_ms": mean, "client_ms": client}
        if server is not None:
            total, queue, compute = server.total * 1e3, server.queue * 1e3, server.compute * 1e3
            times |= {"network_ms": max(0.0, mean - client - total), "queue_ms": queue, "compute_ms": compute}
            times["other_ms"] = max(0.0, total - queue - compute)
    return Measurement(
        batch_size=load.batch_size,
        connections=load.connections,
        offered_per_s=load.rate,
        requests=len(latencies),
        errors=timings.errors.total(),
        error_kinds=dict(sorted(timings.errors.items())),
        requests_per_s=timings.completed / seconds,
        rows_per_s=timings.completed * load.batch_size / seconds,
        client_cpu=timings.cpu,
        **times,
    )


def within_slo(measurements: Sequence[Measurement], slo_ms: float) -> dict[int, Measurement]:
    """Return the measurement with the most rows per second of each batch size whose p99 is at most `slo_ms`.

    Measurements with errors do not count.
    """
    best: dict[int, Measurement] = {}
    for m in measurements:
        if m.errors or m.p99_ms is None or m.p99_ms > slo_ms:
            continue
        if m.batch_size not in best or m.rows_per_s > best[m.batch_size].rows_per_s:
            best[m.batch_size] = m
    return best


def make_table(measurements: Sequence[Measurement], title: str) -> Table:
    """Return the rates, the latencies, the errors, and the client's CPU, of each load."""
    names = ("requests/s", "rows/s", *TIME_NAMES, "errors", "CPU")
    table = _table(measurements, names, title, "times in milliseconds; CPU: share of a core that the client used")
    for m in measurements:
        rates = [f"{m.requests_per_s:,.0f}", f"{m.rows_per_s:,.0f}"]
        times = [milliseconds(getattr(m, name)) for name in TIMES]
        table.add_row(*_load(m), *rates, *times, f"{m.errors:,}", f"{m.client_cpu:.0%}")
    return table


def make_parts_table(measurements: Sequence[Measurement]) -> Table | None:
    """Return the parts of the mean latency, None if the server does not count them."""
    counted = [m for m in measurements if m.queue_ms is not None]
    if not counted:
        return None
    names = ("mean", *(part.removesuffix("_ms") for part in PARTS))
    table = _table(counted, names, "parts of the mean latency", "milliseconds; queue, compute and other: in the server")
    for m in counted:
        table.add_row(*_load(m), *(milliseconds(getattr(m, name)) for name in ("mean_ms", *PARTS)))
    return table


def _table(measurements: Sequence[Measurement], names: Sequence[str], title: str, caption: str) -> Table:
    table = Table(title=title, title_justify="left", caption=caption, caption_justify="left")
    open_loop = any(m.offered_per_s is not None for m in measurements)
    for name in ("batch size", "offered/s" if open_loop else "connections", *names):
        table.add_column(name, justify="right")
    return table


def _load(m: Measurement) -> tuple[str, str]:
    return f"{m.batch_size:,}", f"{m.connections:,}" if m.offered_per_s is None else f"{m.offered_per_s:,g}"


def milliseconds(value: float | None) -> str:
    """Format a time with three digits."""
    if value is None:
        return "–"
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def notes(measurements: Sequence[Measurement], slo_ms: float | None) -> list[str]:
    """Return notes, a line each: errors, a client at its limit, requests sent late, the best load within the SLO."""
    lines = []
    kinds: dict[str, int] = {}
    for m in measurements:
        for kind, count in m.error_kinds.items():
            kinds[kind] = kinds.get(kind, 0) + count
    if kinds:
        listed = ", ".join(f"{kind}: {count:,}" for kind, count in sorted(kinds.items()))
        lines.append(f"errors by kind: {listed}")
    if limited := [m for m in measurements if m.client_limited]:
        where = ", ".join(f"batch size {m.batch_size}, {describe_load(m)}" for m in limited)
        lines.append(f"the client used more than 90 % of a core and may have been the limit ({where}): add processes=2")
    for m in measurements:
        if m.sent_late:
            late = f"{milliseconds(m.client_ms)} of {milliseconds(m.mean_ms)} ms on average"
            why = "all connections were busy, or the client waited for a free core"
            lines.append(f"requests were sent late ({late}; batch size {m.batch_size}, {describe_load(m)}): {why}")
    if slo_ms is not None:
        best = within_slo(measurements, slo_ms)
        for size in dict.fromkeys(m.batch_size for m in measurements):
            if (most := best.get(size)) is None:
                lines.append(f"batch size {size:,}: no load has a p99 within {slo_ms:g} ms and no errors")
                continue
            rate = f"{most.rows_per_s:,.0f} rows/s with a p99 within {slo_ms:g} ms"
            lines.append(f"batch size {size:,}: at most {rate}, at {describe_load(most)}")
    return lines


def describe_load(m: Measurement) -> str:
    """Describe the load in words."""
    if m.offered_per_s is not None:
        return f"{m.offered_per_s:,g} requests/s"
    return f"{m.connections:,} connection{'s' if m.connections > 1 else ''}"
