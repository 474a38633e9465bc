"""Charts between two axes: lines, dots with intervals, histograms; and parallel coordinates."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from recsys.pages.charts.axes import Axis, as_number, axis, axis_of_texts, draw_x, draw_y, label, line, spans
from recsys.pages.elements import el, join, path, pixels, plain, tail
from recsys.pages.page_table import Paint

PLOT_WIDTH, PLOT_HEIGHT = 560, 262  # size of a chart in pixels
LEFT, RIGHT, TOP, FOOT = 54, 14, 10, 40
POINTS = 160  # points of a line; more are averaged
MAX_DOTTED_POINTS = 20  # points of a line up to which each has a dot


@dataclass(frozen=True)
class Series:
    """Points of one line."""

    paint: Paint
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Dot:
    """A value, its interval and its place on the other axis. number: of the line that it belongs to"""

    value: float
    colour: str
    tip: str
    low: float | None = None
    high: float | None = None
    place: float = 0.0
    number: int | None = None
    hollow: bool = False


def unit_square() -> tuple[Axis, Axis]:
    """Return both axes of a chart of rates, from 0 to 1."""
    return Axis(0, 1, LEFT, PLOT_WIDTH - RIGHT), Axis(0, 1, PLOT_HEIGHT - FOOT, TOP)


def across(values: Sequence[float], log: bool = False) -> Axis:
    """Return the x axis of a chart around the values."""
    return axis(values, LEFT, PLOT_WIDTH - RIGHT, log)


def upwards(values: Sequence[float], log: bool = False) -> Axis:
    """Return the y axis of a chart around the values."""
    return axis(values, PLOT_HEIGHT - FOOT, TOP, log)


def figure(title: str, picture: Markup, *, small: str = "", mark: str = "", kind: str | None = None) -> Markup:
    """Return a chart with a title, a square of a colour before it, and small text below it."""
    parts: list[str] = [el("i", "", style=f"background:{mark}")] if mark else []
    parts += [title, *([el("small", small)] if small else [])]
    return el("figure", el("figcaption", *parts), picture, class_=kind)


def svg(shapes: Iterable[Markup], wide: float, high: float, **attributes: str | None) -> Markup:
    """Return a picture that is as wide as its place."""
    return el("svg", join(shapes), **attributes, viewBox=f"0 0 {wide:g} {high:g}", role="img")


def lines(
    title: str,
    series: Sequence[Series],
    x_label: str,
    *,
    x: Axis | None = None,
    y: Axis | None = None,
    under: Sequence[Markup] = (),
) -> Markup:
    """Draw the lines that have points, the first on top, and the shapes `under` them.

    Axes are around the points if they are not given; the y axis is logarithmic if these span orders of magnitude.
    """
    series = [s for s in series if s.points]
    values = [v for s in series for _, v in s.points]
    x = x or across([v for s in series for v, _ in s.points])
    y = y or upwards(values, spans(values))
    order = sorted(series, key=lambda s: (not s.paint.faded, -(s.paint.number or 0)))
    shapes = [draw_y(x, y), draw_x(x, y.start, x_label), *under]
    for s in order:
        places, r = [(x.at(a), y.at(b)) for a, b in s.points], s.paint.number
        look = {"data_r": r, "data_n": tail(s.paint.name, 40), "class_": "faded" if s.paint.faded else None}
        shapes.append(el("path", d=path(places), stroke=s.paint.colour, **look))
        if len(places) <= MAX_DOTTED_POINTS and not s.paint.faded:
            points = join(el("circle", cx=a, cy=b, r=3) for a, b in places)
            shapes.append(el("g", points, fill=s.paint.colour, data_r=r))
    shapes.append(el("line", class_="rule", y1=y.stop, y2=y.start, style="display:none"))
    scales = {"data_x": x.attribute, "data_y": y.attribute, "data_of": x_label}
    return figure(
        title + (", logarithmic" if y.log else ""), svg(shapes, PLOT_WIDTH, PLOT_HEIGHT, class_="plot", **scales)
    )


def circle(x: float, y: float, colour: str, tip: str) -> Markup:
    """Return a dot at this place of a picture, with a tooltip."""
    return el("circle", el("title", tip), cx=x, cy=y, r=4, fill=colour)


def thinned(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Reduce points to POINTS at most, each the mean of its neighbours; the last one stays."""
    if len(points) <= POINTS:
        return list(points)
    parts = np.array_split(np.array(points), POINTS)
    return [(float(p[-1, 0]), float(p[:, 1].mean())) for p in parts]


def dots(
    values: Sequence[Dot],
    x: Axis,
    y: Axis,
    x_label: str = "",
    *,
    curve: Sequence[tuple[float, float]] = (),
    diagonal: bool = False,
    size: tuple[float, float] = (PLOT_WIDTH, PLOT_HEIGHT),
) -> Markup:
    """Draw values over their places, each with its interval, above a curve that is filled and the diagonal."""
    shapes = [draw_y(x, y), draw_x(x, y.start, x_label, size[0])]
    if diagonal:
        shapes.append(line(x.start, y.start, x.stop, y.stop, "dashed"))
    if curve:
        places = [(x.at(a), y.at(b)) for a, b in curve]
        shapes.append(el("path", d=path([(places[0][0], y.start), *places, (places[-1][0], y.start)]), class_="area"))
        shapes.append(el("path", d=path(places), class_="curve"))
    for d in values:
        ends = None if d.low is None or d.high is None else (y.at(d.low), y.at(d.high))
        shapes.append(_dot(d, x.at(d.place), y.at(d.value), ends, upright=True))
    return svg(shapes, *size)


def dots_in_cell(
    values: Sequence[Dot], bounds: tuple[float, float], zero: float | None = None, wide: int = 220
) -> Markup:
    """Draw values with their intervals one below the other, on a common scale with a dashed line at `zero`."""
    row = 16 if len(values) == 1 else 9
    x, high = Axis(*bounds, 6, wide - 6), row * len(values)
    shapes = []
    if zero is not None and bounds[0] <= zero <= bounds[1]:
        shapes.append(line(x.at(zero), 0, x.at(zero), high, "dashed"))
    for i, d in enumerate(values):
        ends = None if d.low is None or d.high is None else (x.inside(d.low), x.inside(d.high))
        hit = el("rect", y=row * i, width=wide, height=row, fill="transparent")
        shapes.append(_dot(d, x.inside(d.value), row * (i + 0.5), ends, upright=False, hit=hit))
    return el("svg", join(shapes), class_="cell", width=wide, height=high)


def _dot(d: Dot, x: float, y: float, ends: tuple[float, float] | None, *, upright: bool, hit: str = "") -> Markup:
    """Draw a dot and its interval. hit: a shape of the same tooltip, which is larger than the dot"""
    interval = ""
    if ends is not None:
        ends_at = [(x, end) if upright else (end, y) for end in ends]
        interval = el("path", d=path(ends_at), stroke=d.colour, class_="interval")
    look = {"fill": "var(--paper)", "stroke": d.colour, "stroke_width": 2} if d.hollow else {"fill": d.colour}
    dot = el("circle", cx=x, cy=y, r=4, **look)
    return el("g", interval, dot, hit, data_t=d.tip, data_r=d.number)


def histogram(
    edges: Sequence[float],
    heights: Sequence[Sequence[float]],
    paints: Sequence[Paint],
    tips: Sequence[str],
    x: Axis,
    high: float,
) -> Markup:
    """Draw bins: (bins + 1,) edges, (series, bins) heights up to 1, of which the first are filled, others outlines."""
    y = Axis(0, 1, high - 22, 6)
    at = [x.at(edge) for edge in edges]
    bins = list(zip(at, at[1:], tips, strict=False))
    filled, *outlines = heights
    shapes = []
    for (a, b, _), value in zip(bins, filled, strict=True):
        top = y.at(value)
        shapes.append(el("rect", x=a, y=top, width=max(b - a - 0.6, 0.4), height=y.start - top, class_="bin"))
    for paint, values in zip(paints[1:], outlines, strict=True):
        steps = [(edge, y.at(v)) for (a, b, _), v in zip(bins, values, strict=True) for edge in (a, b)]
        shapes.append(el("path", d=path(steps), class_="curve", style=f"stroke:{paint.colour}"))
    hits = [el("rect", x=a, width=b - a, height=y.start, class_="hit", data_t=tip) for a, b, tip in bins]
    base = line(x.start, y.start, x.stop, y.start, "base")
    return svg([*shapes, base, draw_x(x, y.start, width=PLOT_WIDTH), *hits], PLOT_WIDTH, high)


def parallel(title: str, columns: Mapping[str, Sequence[str]], tips: Sequence[str], best: int) -> Markup:
    """Draw a line for each trial across an axis for each column, which has a value of each trial, as text.

    The last column, the metric, shades the lines; the line of the trial `best` is thick.
    """
    wide, high, top, foot = 1160, 300, 34, 22
    step = (wide - 150) / max(len(columns) - 1, 1)
    x = [60 + i * step for i in range(len(columns))]
    scales = [axis_of_texts(values, high - foot, top) for values in columns.values()]
    metric = [as_number(v) for v in list(columns.values())[-1]]
    numbers = [v for v in metric if v is not None] or [0.0]
    low, extent = min(numbers), (max(numbers) - min(numbers)) or 1.0
    shapes = []
    for trial, tip in enumerate(tips):
        places = (f"{pixels(a)},{pixels(y.at(values[trial]))}" for a, (y, values) in zip(x, scales, strict=True))
        shade = 0.25 + 0.55 * (0.0 if (v := metric[trial]) is None else (v - low) / extent)
        look = {"style": "stroke:var(--c2);stroke-width:3"} if trial == best else {"stroke_opacity": shade}
        shapes.append(el("polyline", points=" ".join(places), data_t=tip, **look))
    for name, a, (y, _) in zip(columns, x, scales, strict=True):
        texts = (label(plain(text, 16), a + 6, at + 4, "start") for at, text in y.labels(5))
        shapes += [line(a, top, a, high - foot, "base"), label(plain(name, 26), a, top - 16, kind="name"), *texts]
    return figure(title, svg(shapes, wide, high), kind="across")
