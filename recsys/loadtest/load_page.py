"""Measurements as one self-contained HTML page."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from markupsafe import Markup

from recsys.files.atomic import write_json, write_text
from recsys.loadtest.figures import (
    COLUMNS,
    PARTS,
    TIME_NAMES,
    TIMES,
    Measurement,
    describe_load,
    milliseconds,
    notes,
    within_slo,
)
from recsys.pages import render
from recsys.pages.charts.axes import Axis, line, spans
from recsys.pages.charts.bars import COLOURS, Part, Stack, lying
from recsys.pages.charts.plots import PLOT_WIDTH, Series, across, figure, lines, upwards
from recsys.pages.page_table import Cell, Cells, PageTable, Paint, columns

MAX_MARKS = 8
NAMES_WIDE, NOTES_WIDE = 60, 80  # pixels before and behind bars
PROTOCOLS = {"http": "HTTP", "grpc": "gRPC", "rows": "JSON rows"}
Value = Callable[[Measurement], float | None]
Lines = list[tuple[Paint, list[Measurement]]]
FILES = ("results.csv", "results.json", "load_test.html")


def make_page(settings: Mapping[str, Any], model: str, measurements: Sequence[Measurement]) -> str:
    """Return the page."""
    slo_ms = settings["slo_ms"]
    within = {} if slo_ms is None else within_slo(measurements, slo_ms)
    most = max(measurements, key=lambda m: m.rows_per_s)
    facts = [(f"{most.rows_per_s:,.0f}", f"rows/s at most, batch size {most.batch_size:,}, {describe_load(most)}")]
    timed = [m for m in measurements if m.p50_ms is not None]
    if timed:
        least = min(timed, key=lambda m: m.p50_ms or 0.0)
        facts.append((f"{milliseconds(least.p50_ms)} ms", f"lowest median latency, {describe_load(least)}"))
    if slo_ms is not None:
        best = max(within.values(), key=lambda m: m.rows_per_s, default=None)
        where = "" if best is None else f", batch size {best.batch_size:,}, {describe_load(best)}"
        rate = "none" if best is None else f"{best.rows_per_s:,.0f}"
        facts.append((rate, f"rows/s with a p99 within {slo_ms:g} ms{where}"))
    answers = sum(m.requests for m in measurements)
    facts.append((f"{sum(m.errors for m in measurements):,}", f"errors, {answers:,} answers"))
    parts = PARTS if any(m.queue_ms is not None for m in measurements) else ()
    names = ["batch size", "load", "requests/s", "rows/s", *TIME_NAMES, "errors", "client CPU"]
    rows: list[Cells] = []
    for m in measurements:
        kinds = ", ".join(f"{kind}: {count:,}" for kind, count in m.error_kinds.items())
        rates = [f"{m.batch_size:,}", describe_load(m), f"{m.requests_per_s:,.0f}", f"{m.rows_per_s:,.0f}"]
        times, more = ([milliseconds(getattr(m, key)) for key in keys] for keys in (TIMES, parts))
        rows.append([*rates, *times, Cell(f"{m.errors:,}", tip=kinds), f"{m.client_cpu:.0%}", *more])
    heads = columns([*names, *(p.removesuffix("_ms") for p in parts)], left=("load",))
    marks = ["best" if m in within.values() else "" for m in measurements]
    return render(
        "loadtest/load_page.html",
        title=f"Load test of {model}",
        target=settings["target"],
        protocol=PROTOCOLS[settings["protocol"]],
        seconds=f"{settings['seconds']:g}",
        facts=facts,
        warnings=notes(measurements, None),
        sections=_sections(measurements, slo_ms),
        measured=PageTable(heads, rows, marks),
    )


Section = tuple[str, list[Paint], list[Markup | str]]  # heading, legend, charts


def _sections(measurements: Sequence[Measurement], slo_ms: float | None) -> list[Section]:
    """Return charts over the batch size, if there are several, and over the load, if there are several; else bars."""
    if len(measurements) == 1:  # its percentiles as bars, with a mark at the limit
        [m] = measurements
        if m.p999_ms is None:
            return [("Latency", [], ["No request was answered: no chart of the latency."])]
        times = {name: getattr(m, key) for name, key in zip(TIME_NAMES, TIMES, strict=True)}
        slo = slo_ms if slo_ms is not None and slo_ms < 3 * m.p999_ms else None
        x = Axis(0, max(m.p999_ms, slo or 0.0) * 1.02, NAMES_WIDE, PLOT_WIDTH - NOTES_WIDE)
        bars = [Stack([Part(v, "var(--c0)")], name, f"{milliseconds(v)} ms", slo) for name, v in times.items()]
        title = f"latency, batch size {m.batch_size:,}, {describe_load(m)}"
        small = "" if slo is None else f"the line: {slo:g} ms, the limit of p99"
        return [("Latency", [], [figure(title, lying(bars, x, wide=PLOT_WIDTH, thick=20), small=small)])]
    sizes = {m.batch_size for m in measurements}
    by_load = _lines(measurements, describe_load, lambda m: m.batch_size)
    by_size = _lines(measurements, lambda m: f"batch size {m.batch_size:,}", _load)
    against = "latency p99 against throughput, a point for each load, ms"
    last = _chart(against, by_size, lambda m: m.rows_per_s, lambda m: m.p99_ms, "rows/s", slo_ms)
    over_size = _pair(by_load, lambda m: m.batch_size, "batch size", slo_ms) if len(sizes) > 1 else []
    name = "requests/s offered" if any(m.offered_per_s is not None for m in measurements) else "connections"
    over_load = [] if over_size else _pair(by_size, _load, name, slo_ms)
    sections: list[Section] = [("By batch size", [p for p, _ in by_load], over_size)] if over_size else []
    if any(len(members) > 1 for _, members in by_size):  # lines, not single points
        sections.append(("By load", [p for p, _ in by_size], [*over_load, last]))
    return sections


def _load(m: Measurement) -> float:
    return m.connections if m.offered_per_s is None else m.offered_per_s


def _lines(
    measurements: Sequence[Measurement], name: Callable[[Measurement], str], order: Callable[[Measurement], float]
) -> Lines:
    """Group measurements by name, each group in an order and with a colour."""
    groups: dict[str, list[Measurement]] = {}
    for m in measurements:
        groups.setdefault(name(m), []).append(m)
    return [
        (Paint(group, f"var(--c{i % COLOURS})", i), sorted(members, key=order))
        for i, (group, members) in enumerate(groups.items())
    ]


def _pair(groups: Lines, x: Value, x_label: str, slo_ms: float | None) -> list[Markup | str]:
    """Draw throughput and latency over one value, whose axis has a mark at each value if they are few."""
    return [
        _chart("throughput, rows/s", groups, x, lambda m: m.rows_per_s, x_label, marked=True),
        _chart("latency p99, ms", groups, x, lambda m: m.p99_ms, x_label, slo_ms, marked=True),
    ]


def _chart(
    title: str, groups: Lines, x: Value, y: Value, x_label: str, limit: float | None = None, marked: bool = False
) -> Markup | str:
    """Draw one value over another.

    Args:
        groups: the measurements of each line.
        limit: a limit of y to draw; None for none.
        marked: whether the x axis has marks of its few values.
    """
    series = [
        Series(paint, [(a, b) for m in members if (a := x(m)) is not None and (b := y(m)) is not None])
        for paint, members in groups
    ]
    xs, ys = ([point[i] for s in series for point in s.points] for i in (0, 1))
    if not xs:
        return f"No request was answered: no chart of {title}."
    flat = across(xs, spans(xs, 4))
    if marked and len(set(xs)) <= MAX_MARKS:
        flat = replace(flat, marks=sorted(set(xs)))
    up = upwards([*ys, *([limit] if limit is not None and limit < 3 * max(ys) else [])], spans(ys))
    under = []
    if limit is not None and up.stop <= (at := up.at(limit)) <= up.start:
        under = [line(flat.start, at, flat.stop, at, "limit", f"p99 within {limit:g} ms")]
    return lines(title, series, x_label, x=flat, y=up, under=under)


def write_results(folder: Path, settings: Mapping[str, Any], model: str, measurements: Sequence[Measurement]) -> None:
    """Write the three files into a folder, which is created.

    Args:
        measurements: one for each load, in the order of the table.
    """
    folder.mkdir(parents=True, exist_ok=True)
    table, data, page = (folder / name for name in FILES)
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for m in measurements:
        kinds = " ".join(f"{kind.replace(' ', '_')}={count}" for kind, count in m.error_kinds.items())
        writer.writerow(asdict(m) | {"error_kinds": kinds})
    write_text(table, text.getvalue())
    records = [asdict(m) | {"client_limited": m.client_limited} for m in measurements]
    write_json(data, {"settings": dict(settings), "model": model, "measurements": records})
    write_text(page, make_page(settings, model, measurements))
