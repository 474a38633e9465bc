"""Charts in SVG: metrics over steps, ROC and precision-recall curves, reliability, swept parameters."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

from recsys.pages.charts import (
    FOOT,
    HIGH,
    LEFT,
    RIGHT,
    TOP,
    WIDE,
    Axis,
    Paint,
    Series,
    across,
    along,
    axis,
    below,
    figure,
    spans,
    tick_labels,
)
from recsys.pages.formatting import plain, tail
from recsys.report.cells import Interval

POINTS = 160  # points of a line; more are averaged


def lines(title: str, series: Sequence[Series], linear: bool = False) -> str:
    """Draw values over steps. The axis is logarithmic if they span orders of magnitude, unless `linear` is set."""
    series = [Series(s.paint, thinned(s.points)) for s in series if s.points]
    ys = [v for s in series for _, v in s.points]
    xs = [v for s in series for v, _ in s.points]
    log = not linear and spans(ys)
    x, y = axis(xs, LEFT, WIDE - RIGHT), axis(ys, HIGH - FOOT, TOP, log)
    return figure(title + (", logarithmic" if log else ""), series, x, y, "step")


def rates(title: str, series: Sequence[Series], x_label: str, diagonal: bool) -> str:
    """Draw one rate over another, both from 0 to 1."""
    x, y = Axis(0, 1, LEFT, WIDE - RIGHT), Axis(0, 1, HIGH - FOOT, TOP)
    chance = f'<path d="M{x.at(0)} {y.at(0)}L{x.at(1)} {y.at(1)}" stroke="var(--other)" stroke-dasharray="4 4"/>'
    return figure(title, [s for s in series if s.points], x, y, x_label, chance if diagonal else "")


def thinned(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Reduce points to POINTS at most, each the mean of its neighbours; the last one stays."""
    if len(points) <= POINTS:
        return list(points)
    parts = np.array_split(np.array(points), POINTS)
    return [(float(p[-1, 0]), float(p[:, 1].mean())) for p in parts]


Bin = tuple[float, float, int]  # mean probability, share of positives, rows


def reliability(paint: Paint, caption: str, bins: Sequence[Bin], bounds: Sequence[Interval | None], top: float) -> str:
    """Draw the share of positives over the mean probability of each bin, with intervals and the diagonal.

    Args:
        caption: small text below the name.
        bounds: interval of each bin's share; None if rows have weights.
        top: end of both axes.
    """
    size, left, foot = 250, 44, 36
    top = top * 1.04 or 1.0
    x, y = Axis(0, top, left, size - 10), Axis(0, top, size - foot, 10)
    shapes = [f'<path d="M{x.start} {y.start}L{x.stop} {y.stop}" stroke="var(--other)" stroke-dasharray="4 4"/>']
    for (p, share, rows), between in zip(bins, bounds, strict=True):
        tip, bar = f"predicted {p:.4g}\nobserved {share:.4g}", ""
        if between is not None:
            tip += f" (95 %: {between[0]:.4g} to {between[1]:.4g})\n{rows:,} rows"
            at = f'x1="{x.at(p):.1f}" y1="{y.at(between[0]):.1f}" x2="{x.at(p):.1f}" y2="{y.at(between[1]):.1f}"'
            bar = f'<line {at} stroke-width="1.6" opacity=".55"/>'
        shapes.append(
            f'<g data-t="{tip}" stroke="{paint.colour}">{bar}'
            f'<circle cx="{x.at(p):.1f}" cy="{y.at(share):.1f}" r="3.4" fill="{paint.colour}"/></g>'
        )
    return (
        f'<figure><figcaption><i style="background:{paint.colour}"></i>{escape(tail(paint.name, 26))}'
        f'<small>{escape(caption)}</small></figcaption><svg viewBox="0 0 {size} {size}" role="img">'
        f'{across(x, y)}{along(x, y, "mean probability")}<g fill="none">{"".join(shapes)}</g></svg></figure>'
    )


def swept(title: str, points: Sequence[tuple[str, float, str, str]], x_label: str) -> str:
    """Draw (value, metric, tooltip, colour) of each trial over one swept parameter.

    The x axis is a scale if all values are numbers, else it has a column for each value.
    """
    ys = [m for _, m, _, _ in points]
    y = axis(ys, HIGH - FOOT, TOP)
    x, places, names = _swept_axis([v for v, *_ in points], LEFT, WIDE - RIGHT)
    cut = max(4, 66 // max(len(names), 1))
    under = below([(x.at(i), plain(n, cut)) for i, n in enumerate(names)], y) if names else along(x, y, x_label)
    shapes = "".join(
        f'<circle cx="{at:.1f}" cy="{y.at(m):.1f}" r="5" fill="{colour}" fill-opacity=".75" data-t="{escape(tip)}"/>'
        for at, (_, m, tip, colour) in zip(places, points, strict=True)
    )
    return (
        f"<figure><figcaption>{escape(title)}</figcaption>"
        f'<svg viewBox="0 0 {WIDE} {HIGH}" role="img">{across(x, y)}{under}{shapes}</svg></figure>'
    )


@dataclass(frozen=True)
class ParallelAxis:
    """One axis of parallel coordinates: its name, and the value of each line, as text."""

    name: str
    values: Sequence[str]


def parallel(title: str, columns: Sequence[ParallelAxis], tips: Sequence[str], best: int | None) -> str:
    """Draw one line for each trial across one axis for each column; the last column colours the lines.

    An axis is a scale if all its values are numbers, logarithmic if they span orders of magnitude, else a list of its
    values. Trials are drawn in the order of their values in the last column, the worst first.

    Args:
        title: above the chart.
        columns: swept parameters, the metric last.
        tips: tooltip of each trial.
        best: the trial that is drawn thick.
    """
    width, high, top, foot = 1160, 300, 34, 22
    step = (width - 150) / max(len(columns) - 1, 1)
    places: list[list[float]] = []
    marks = []
    for i, column in enumerate(columns):
        at = 60 + i * step
        y, trials, names = _swept_axis(column.values, high - foot, top)
        places.append(trials)
        labels = [(y.at(k), name) for k, name in enumerate(names)] or tick_labels(y, 5)
        marks.append(
            f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{top}" y2="{high - foot}" stroke="var(--other)"/>'
            f'<text x="{at:.1f}" y="{top - 16}" text-anchor="middle" class="name">'
            f"{escape(plain(column.name, 26))}</text>"
            + "".join(f'<text x="{at + 6:.1f}" y="{v + 4:.1f}">{escape(plain(name, 16))}</text>' for v, name in labels)
        )
    values = [_as_number(v) for v in columns[-1].values]
    numbers = [v for v in values if v is not None]
    low, high_value = (min(numbers), max(numbers)) if numbers else (0.0, 1.0)
    lines = []
    for trial, (value, tip) in enumerate(zip(values, tips, strict=True)):
        share = 0.0 if value is None else (value - low) / ((high_value - low) or 1.0)
        points = " ".join(f"{60 + i * step:.1f},{places[i][trial]:.1f}" for i in range(len(columns)))
        look = (
            'stroke="var(--c2)" stroke-width="3"'
            if trial == best
            else f'stroke="var(--c0)" stroke-width="1.6" stroke-opacity="{0.25 + 0.55 * share:.2f}"'
        )
        lines.append(f'<polyline points="{points}" fill="none" {look} data-t="{escape(tip)}"/>')
    return (
        f'<figure class="across"><figcaption>{escape(title)}</figcaption>'
        f'<svg viewBox="0 0 {width} {high}" role="img">{"".join(lines)}{"".join(marks)}</svg></figure>'
    )


def _swept_axis(values: Sequence[str], start: float, stop: float) -> tuple[Axis, list[float], list[str]]:
    """Return an axis of values that are text, the position of each value, and the names that the axis lists.

    The axis is a scale, without names, if all values are numbers and they differ; else it lists the distinct values.
    """
    numbers = [n for n in map(_as_number, values) if n is not None]
    if len(numbers) == len(values) and len(set(numbers)) > 1:
        scale = axis(numbers, start, stop, spans(numbers, 8))
        return scale, [scale.at(n) for n in numbers], []
    names = list(dict.fromkeys(values))
    scale = Axis(-0.5, len(names) - 0.5, start, stop)
    return scale, [scale.at(names.index(v)) for v in values], names


def _as_number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
