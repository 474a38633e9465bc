"""Parallel coordinates."""

from collections.abc import Mapping, Sequence

from markupsafe import Markup

from recsys.pages.charts.axes import as_number, axis_of_texts, label, line
from recsys.pages.charts.plots import figure, svg
from recsys.pages.elements import el, pixels, plain

WIDE, HIGH, TOP, FOOT = 1160, 300, 34, 22


def parallel(title: str, columns: Mapping[str, Sequence[str]], tips: Sequence[str], best: int) -> Markup:
    """Draw a line for each trial across an axis for each column, which has a value of each trial, as text.

    The last column, the metric, shades the lines; the line of the trial `best` is thick.
    """
    step = (WIDE - 150) / max(len(columns) - 1, 1)
    x = [60 + i * step for i in range(len(columns))]
    scales = [axis_of_texts(values, HIGH - FOOT, TOP) for values in columns.values()]
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
        shapes += [line(a, TOP, a, HIGH - FOOT, "base"), label(plain(name, 26), a, TOP - 16, kind="name"), *texts]
    return figure(title, svg(shapes, WIDE, HIGH), kind="across")
