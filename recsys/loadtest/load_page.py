"""Measurements as one self-contained HTML page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any

from recsys.loadtest.figures import Measurement, within_slo
from recsys.loadtest.table import PARTS, TIMES, describe_load, milliseconds, notes
from recsys.pages import document, footer
from recsys.pages.charts import FOOT, HIGH, LEFT, RIGHT, TOP, WIDE, Paint, Series, axis, figure, legend, spans
from recsys.pages.formatting import html
from recsys.pages.sortable_tables import Column, table

COLOURS = 12  # number of colours that base.css has
BATCH_SIZE = "batch size"  # name of an axis whose marks are the batch sizes
MOST_MARKS = 8
NOTES = (
    "Latency: from when a request was due to the end of its answer. In a closed loop a request is due when the answer "
    "before it has come; in an open loop it is due on a schedule that does not wait for answers, so that a server that "
    "stalls delays all requests that were due meanwhile.",
    "Requests are encoded before the clock starts, and answers are checked after it has stopped.",
    "client: from when a request was due to when it was sent. network: the latency less the client's and the server's "
    "times. queue, compute and other: in the server, as it counts them; compute may be a mean over batches.",
)
Value = Callable[[Measurement], float | None]


def make_page(settings: Mapping[str, Any], model: str, measurements: Sequence[Measurement]) -> str:
    """Return the page."""
    title = f"Load test of {model}"
    how = {"http": "HTTP", "grpc": "gRPC", "rows": "JSON rows"}[settings["protocol"]]
    intro = f"{html(settings['target'], 100)}, {how}, {settings['seconds']:g} s for each load"
    slo = settings["slo_ms"]
    warnings = "".join(f'<p class="warn">{escape(line)}</p>' for line in notes(measurements, None))
    body = [f"<h1>{html(title, 100)}</h1><p>{intro}</p>", _cards(measurements, slo), warnings]
    body += [_figures(measurements, slo), "<h2>All measurements</h2>", _table(measurements, slo)]
    return document(title, "\n".join(body) + footer("", NOTES), Path(__file__).parent, charts=True)


def _cards(measurements: Sequence[Measurement], slo_ms: float | None) -> str:
    most = max(measurements, key=lambda m: m.rows_per_s)
    cards = [(f"{most.rows_per_s:,.0f}", f"rows/s at most, batch size {most.batch_size:,}, {describe_load(most)}")]
    timed = [m for m in measurements if m.p50_ms is not None]
    if timed:
        least = min(timed, key=lambda m: m.p50_ms or 0.0)
        cards.append((f"{milliseconds(least.p50_ms)} ms", f"lowest median latency, {describe_load(least)}"))
    if slo_ms is not None:
        best = max(within_slo(measurements, slo_ms).values(), key=lambda m: m.rows_per_s, default=None)
        text = f"rows/s with a p99 within {slo_ms:g} ms"
        where = "" if best is None else f", batch size {best.batch_size:,}, {describe_load(best)}"
        cards.append(("none" if best is None else f"{best.rows_per_s:,.0f}", text + where))
    cards.append(
        (f"{sum(m.errors for m in measurements):,}", f"errors, {sum(m.requests for m in measurements):,} answers")
    )
    inside = "".join(f"<div><b>{escape(b)}</b><span>{escape(s)}</span></div>" for b, s in cards)
    return f'<div class="cards">{inside}</div>'


def _figures(measurements: Sequence[Measurement], slo_ms: float | None) -> str:
    by_load = _lines(measurements, describe_load, lambda m: m.batch_size)
    by_size = _lines(measurements, lambda m: f"batch size {m.batch_size:,}", _load)
    first = _chart("throughput, rows/s", by_load, lambda m: m.batch_size, lambda m: m.rows_per_s, BATCH_SIZE)
    second = _chart("latency p99, ms", by_load, lambda m: m.batch_size, lambda m: m.p99_ms, BATCH_SIZE, slo_ms)
    title = "latency p99 against throughput, a point for each load, ms"
    third = _chart(title, by_size, lambda m: m.rows_per_s, lambda m: m.p99_ms, "rows/s", slo_ms)
    loads, sizes = legend([p for p, _ in by_load]), legend([p for p, _ in by_size])
    return (
        f'<h2>By batch size</h2>{loads}<div class="grid">{first}{second}</div>'
        f'<h2>By load</h2>{sizes}<div class="grid">{third}</div>'
    )


def _load(m: Measurement) -> float:
    return m.connections if m.offered_per_s is None else m.offered_per_s


Line = tuple[Paint, list[Measurement]]


def _lines(
    measurements: Sequence[Measurement], name: Callable[[Measurement], str], order: Callable[[Measurement], float]
) -> list[Line]:
    """Group measurements by name, each group in an order and with a colour."""
    groups: dict[str, list[Measurement]] = {}
    for m in measurements:
        groups.setdefault(name(m), []).append(m)
    return [
        (Paint(i, group, f"var(--c{i % COLOURS})"), sorted(members, key=order))
        for i, (group, members) in enumerate(groups.items())
    ]


def _chart(title: str, lines: Sequence[Line], x: Value, y: Value, x_label: str, limit: float | None = None) -> str:
    """Draw one value over another. limit: a value of the y axis that gets a dashed line"""
    series = []
    for paint, members in lines:
        points = [(a, b) for m in members if (a := x(m)) is not None and (b := y(m)) is not None]
        if points:
            series.append(Series(paint, points))
    if not series:
        return f'<p class="note">No request was answered: no chart of {escape(title)}.</p>'
    xs = [a for s in series for a, _ in s.points]
    ys = [b for s in series for _, b in s.points]
    log_x, log_y = spans(xs, 4), spans(ys)
    across = axis(xs, LEFT, WIDE - RIGHT, log_x)
    if x_label == BATCH_SIZE and len(set(xs)) <= MOST_MARKS:
        across = replace(across, marks=tuple(sorted(set(xs))))
    up = axis([*ys, *([limit] if limit is not None and limit < 3 * max(ys) else [])], HIGH - FOOT, TOP, log_y)
    under = ""
    if limit is not None and TOP <= (at := up.at(limit)) <= HIGH - FOOT:
        tip = f"p99 within {limit:g} ms"
        line = f'x1="{across.start:g}" x2="{across.stop:g}" y1="{at:.1f}" y2="{at:.1f}"'
        under = f'<line {line} stroke="var(--bad)" stroke-dasharray="5 4" data-t="{escape(tip)}"/>'
    return figure(title + (", logarithmic" if log_y else ""), series, across, up, x_label, under)


def _table(measurements: Sequence[Measurement], slo_ms: float | None) -> str:
    parts = [p for p in PARTS if any(m.queue_ms is not None for m in measurements)]
    names = ["batch size", "load", "requests/s", "rows/s", "p50", "p90", "p99", "p99.9", "mean", "errors", "client CPU"]
    columns = [Column(n, left=n == "load") for n in [*names, *(p.removesuffix("_ms") for p in parts)]]
    best = list(within_slo(measurements, slo_ms).values()) if slo_ms is not None else []
    rows = []
    for m in measurements:
        kinds = ", ".join(f"{kind}: {count:,}" for kind, count in m.error_kinds.items())
        errors = f'<td data-t="{escape(kinds)}">{m.errors:,}</td>' if kinds else "0"
        cells = [f"{m.batch_size:,}", escape(describe_load(m)), f"{m.requests_per_s:,.0f}", f"{m.rows_per_s:,.0f}"]
        cells += [milliseconds(getattr(m, name)) for name in TIMES]
        cells += [errors, f"{m.client_cpu:.0%}", *(milliseconds(getattr(m, name)) for name in parts)]
        rows.append(cells)
    note = "Bold: the most rows per second of a batch size within the limit." if best else ""
    kinds_of_rows = ["best" if m in best else "" for m in measurements]
    return f'<p class="note">Times in milliseconds. {note}</p>{table(columns, rows, kinds_of_rows)}'
