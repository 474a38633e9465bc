"""Measurements as a table for the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from recsys.loadtest.figures import Measurement, within_slo

TIMES = ("p50_ms", "p90_ms", "p99_ms", "p999_ms", "mean_ms")
TIME_NAMES = ("p50", "p90", "p99", "p99.9", "mean")
PARTS = ("client_ms", "network_ms", "queue_ms", "compute_ms", "other_ms")


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
