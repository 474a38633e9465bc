"""Charts in SVG: metrics over steps, ROC and precision-recall curves, reliability, swept parameters."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10

import numpy as np

from recsys.html.text import plain
from recsys.report.cells import Interval, Paint, tail

WIDE, HIGH = 560, 262  # size of a chart in pixels
LEFT, RIGHT, TOP, FOOT = 54, 14, 10, 40
POINTS = 160  # points of a line; more are averaged


@dataclass(frozen=True)
class Series:
    """Points of one line."""

    paint: Paint
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Axis:
    """Scale from values to pixels."""

    low: float
    high: float
    start: float
    stop: float
    log: bool = False

    def at(self, value: float) -> float:
        """Return the pixel of a value."""
        v = log10(value) if self.log else value
        return self.start + (v - self.low) / (self.high - self.low) * (self.stop - self.start)

    @property
    def attribute(self) -> str:
        """Return the scale for page.js."""
        return f"{self.low:.8g},{self.high:.8g},{self.start:g},{self.stop:g},{int(self.log)}"

    def ticks(self, most: int = 6) -> list[float]:
        """Return about `most` round values on the axis."""
        if self.log and self.high - self.low >= 1:
            powers = range(ceil(self.low - 1e-9), floor(self.high + 1e-9) + 1)
            every = max(1, ceil(len(powers) / most))
            if len(powers) > 2:
                return [10.0**k for k in powers][::every]
            ones = [m * 10.0**k for k in range(floor(self.low), ceil(self.high)) for m in (1, 2, 5)]
            return [v for v in ones if self.low <= log10(v) <= self.high]
        low, high = (10**self.low, 10**self.high) if self.log else (self.low, self.high)
        step = 10 ** floor(log10((high - low) / most))
        step *= next(m for m in (1, 2, 5, 10) if (high - low) / (step * m) <= most)
        return [
            i * step for i in range(ceil(low / step - 1e-9), floor(high / step + 1e-9) + 1) if not self.log or i > 0
        ]


def axis(values: Sequence[float], start: float, stop: float, log: bool = False) -> Axis:
    """Return an axis around the values, with a margin."""
    low, high = min(values), max(values)
    if log:
        low, high = log10(low), log10(high)
    room = (high - low) * 0.04 or abs(high) * 0.05 or 1.0
    return Axis(low - room, high + room, start, stop, log)


def spans(values: Sequence[float], ratio: float = 30) -> bool:
    """Return whether the values suit a logarithmic axis."""
    return min(values) > 0 and max(values) / min(values) > ratio


def tick(value: float, step: float) -> str:
    """Format a tick with the digits that a distance of `step` between ticks needs."""
    if abs(value) >= 10_000:
        return f"{value / 1e6:g}M" if abs(value) >= 1e6 else f"{value / 1e3:g}k"
    if value and abs(value) < 1e-3:
        return f"{value:.0e}".replace("e-0", "e-")
    return f"{value:.{max(0, -floor(log10(step) + 1e-9))}f}" if step > 0 else f"{value:g}"


def _across(x: Axis, y: Axis) -> str:
    """Draw the horizontal grid lines and their numbers."""
    out = []
    for at, number in _labels(y):
        out.append(f'<line x1="{x.start:g}" y1="{at:.1f}" x2="{x.stop:g}" y2="{at:.1f}" stroke="var(--line)"/>')
        out.append(f'<text x="{x.start - 7:g}" y="{at + 4:.1f}" text-anchor="end">{number}</text>')
    out.append(f'<line x1="{x.start:g}" y1="{y.start:g}" x2="{x.stop:g}" y2="{y.start:g}" stroke="var(--hatch)"/>')
    return "".join(out)


def _along(x: Axis, y: Axis, x_label: str) -> str:
    """Draw the numbers and the name of the x axis."""
    text = f'<text x="{x.stop:g}" y="{y.start + 33:g}" text-anchor="end">{escape(x_label)}</text>'
    return _below(_labels(x, 7), y) + text


def _below(names: Sequence[tuple[float, str]], y: Axis) -> str:
    return "".join(
        f'<text x="{at:.1f}" y="{y.start + 17:g}" text-anchor="middle">{escape(name)}</text>' for at, name in names
    )


def _labels(scale: Axis, most: int = 6) -> list[tuple[float, str]]:
    """Return the pixel and the text of each tick."""
    marks = scale.ticks(most)
    return [(scale.at(v), tick(v, v if scale.log else _step(marks))) for v in marks]


def _step(marks: Sequence[float]) -> float:
    return marks[1] - marks[0] if len(marks) > 1 else abs(marks[0]) or 1.0


def lines(title: str, series: Sequence[Series], linear: bool = False) -> str:
    """Draw values over steps. The axis is logarithmic if they span orders of magnitude, unless `linear` is set."""
    series = [Series(s.paint, thinned(s.points)) for s in series if s.points]
    ys = [v for s in series for _, v in s.points]
    xs = [v for s in series for v, _ in s.points]
    log = not linear and spans(ys)
    x, y = axis(xs, LEFT, WIDE - RIGHT), axis(ys, HIGH - FOOT, TOP, log)
    return _figure(title + (", logarithmic" if log else ""), series, x, y, "step")


def rates(title: str, series: Sequence[Series], x_label: str, diagonal: bool) -> str:
    """Draw one rate over another, both from 0 to 1."""
    x, y = Axis(0, 1, LEFT, WIDE - RIGHT), Axis(0, 1, HIGH - FOOT, TOP)
    chance = f'<path d="M{x.at(0)} {y.at(0)}L{x.at(1)} {y.at(1)}" stroke="var(--other)" stroke-dasharray="4 4"/>'
    return _figure(title, [s for s in series if s.points], x, y, x_label, chance if diagonal else "")


def thinned(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Reduce points to POINTS at most, each the mean of its neighbours; the last one stays."""
    if len(points) <= POINTS:
        return list(points)
    parts = np.array_split(np.array(points), POINTS)
    return [(float(p[-1, 0]), float(p[:, 1].mean())) for p in parts]


def _figure(title: str, series: Sequence[Series], x: Axis, y: Axis, x_label: str, under: str = "") -> str:
    order = sorted(
        series, key=lambda s: -s.paint.number + (-10_000 if s.paint.faded else 0)
    )  # the first line is drawn on top
    shapes = []
    for s in order:
        place = [(x.at(a), y.at(b)) for a, b in s.points]
        path = "L".join(f"{a:.1f} {b:.2f}" for a, b in place)
        style = f'stroke="{s.paint.colour}" stroke-width="{1.1 if s.paint.faded else 1.9}"'
        faded = ' opacity=".45"' if s.paint.faded else ""
        of_run = f'data-r="{s.paint.number}"'
        shapes.append(f'<path d="M{path}" {style} {of_run} data-n="{escape(tail(s.paint.name, 40))}"{faded}/>')
        if len(place) <= 20 and not s.paint.faded:
            dots = "".join(f'<circle cx="{a:.1f}" cy="{b:.2f}" r="3"/>' for a, b in place)
            shapes.append(f'<g fill="{s.paint.colour}" {of_run}>{dots}</g>')
    rule = f'<line class="rule" y1="{y.stop:g}" y2="{y.start:g}" stroke="var(--soft)" style="display:none"/>'
    return (
        f'<figure><figcaption>{escape(title)}</figcaption><svg class="plot" viewBox="0 0 {WIDE} {HIGH}" role="img" '
        f'data-x="{x.attribute}" data-y="{y.attribute}" data-of="{escape(x_label)}">'
        f"{_across(x, y)}{_along(x, y, x_label)}{under}"
        f"{''.join(shapes)}{rule}</svg></figure>"
    )


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
        f'{_across(x, y)}{_along(x, y, "mean probability")}<g fill="none">{"".join(shapes)}</g></svg></figure>'
    )


def swept(title: str, points: Sequence[tuple[str, float, str, str]], x_label: str) -> str:
    """Draw (value, metric, tooltip, colour) of each trial over one swept parameter.

    The x axis is a scale if all values are numbers, else it has a column for each value.
    """
    ys = [m for _, m, _, _ in points]
    y = axis(ys, HIGH - FOOT, TOP)
    x, places, names = _swept_axis([v for v, *_ in points], LEFT, WIDE - RIGHT)
    cut = max(4, 66 // max(len(names), 1))
    under = _below([(x.at(i), plain(n, cut)) for i, n in enumerate(names)], y) if names else _along(x, y, x_label)
    shapes = "".join(
        f'<circle cx="{at:.1f}" cy="{y.at(m):.1f}" r="5" fill="{colour}" fill-opacity=".75" data-t="{escape(tip)}"/>'
        for at, (_, m, tip, colour) in zip(places, points, strict=True)
    )
    return (
        f"<figure><figcaption>{escape(title)}</figcaption>"
        f'<svg viewBox="0 0 {WIDE} {HIGH}" role="img">{_across(x, y)}{under}{shapes}</svg></figure>'
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
        labels = [(y.at(k), name) for k, name in enumerate(names)] or _labels(y, 5)
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
