"""Parallel coordinates."""

from collections.abc import Mapping, Sequence

from markupsafe import Markup

from recsys.pages.charts.axes import Axis, as_number, axis_of_texts, label, line
from recsys.pages.charts.plots import figure, svg
from recsys.pages.elements import el, join, pixels
from recsys.pages.formatting import plain

WIDE, HIGH, TOP, FOOT = 1160, 300, 34, 22


def parallel(title: str, columns: Mapping[str, Sequence[str]], tips: Sequence[str], best: int) -> Markup:
    """Draw a line for each trial across an axis for each column, which has a value of each trial, as text.

    The last column, the metric, shades the lines; the line of the trial `best` is thick.
    """
    step = (WIDE - 150) / max(len(columns) - 1, 1)
    x = [60 + i * step for i in range(len(columns))]
    scales = [axis_of_texts(values, HIGH - FOOT, TOP) for values in columns.values()]
    shades = _shades([as_number(v) for v in list(columns.values())[-1]])
    lines = []
    for trial, tip in enumerate(tips):
        places = (f"{pixels(a)},{pixels(y.at(values[trial]))}" for a, (y, values) in zip(x, scales, strict=True))
        look = {"style": "stroke:var(--c2);stroke-width:3"} if trial == best else {"stroke_opacity": shades[trial]}
        lines.append(el("polyline", points=" ".join(places), data_t=tip, **look))
    axes = [_axis(name, a, y) for name, a, (y, _) in zip(columns, x, scales, strict=True)]
    return figure(title, svg([*lines, *axes], WIDE, HIGH), kind="across")


def _axis(name: str, x: float, y: Axis) -> Markup:
    """Draw an axis, its name above and its ticks beside it."""
    texts = (label(plain(text, 16), x + 6, at + 4, "start") for at, text in y.labels(5))
    head = label(plain(name, 26), x, TOP - 16, kind="name")
    return join([line(x, TOP, x, HIGH - FOOT, "base"), head, *texts])


def _shades(values: Sequence[float | None]) -> list[float]:
    """Return how opaque each line is, by its place between the least and the largest value."""
    numbers = [v for v in values if v is not None] or [0.0]
    low, extent = min(numbers), (max(numbers) - min(numbers)) or 1.0
    return [0.25 + 0.55 * (0.0 if v is None else (v - low) / extent) for v in values]
