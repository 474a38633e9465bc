"""Bars of parts: in cells, side by side as shards on devices, below each other as a funnel."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from recsys.pages.charts.axes import LETTER, Axis, label, line
from recsys.pages.charts.plots import svg
from recsys.pages.elements import el, join
from recsys.pages.formatting import plain

COLOURS = 12  # number of colours in base.css
HATCH = "hatch"  # colour of a part that is drawn as stripes, at the end of its bar
LEAST = 3  # fewest letters of a name that are written into a part


@dataclass(frozen=True)
class Part:
    """A part of a bar. name: written into it if there is room"""

    value: float
    colour: str
    name: str = ""
    tip: str = ""
    pale: bool = False


@dataclass(frozen=True)
class Stack:
    """A bar of parts.

    name, note: text before and behind it
    tip: tooltip of the part that is free
    mark: value of a line across it
    space: pixels between it and the bar before it, beyond the usual ones
    """

    parts: Sequence[Part]
    name: str = ""
    note: str = ""
    tip: str = ""
    mark: float | None = None
    space: float = 0.0


def colour(rank: int) -> str:
    """Return a colour of its own for each of the first COLOURS, and one for all others."""
    return f"var(--c{rank})" if rank < COLOURS else "var(--other)"


def bar(parts: Sequence[Part], wide: float = 110, high: float = 12) -> Markup:
    """Draw the parts of 1 side by side, in a cell."""
    return bars_in_cell([parts], 1.0, wide, high)


def bars_in_cell(rows: Sequence[Sequence[Part]], top: float, wide: float, high: float) -> Markup:
    """Draw bars below each other in a cell. top: value at its right edge, where longer bars are cut and pale"""
    drawn = _Direction(Axis(0, top, 0, wide), high)
    shapes = []
    for i, parts in enumerate(rows):
        if len(rows) == 1:
            shapes.append(drawn.rect(0, wide, 0, class_="free"))
        shapes += drawn.parts(parts, i * (high + 1))
    return el("svg", join(shapes), class_="cell", width=wide, height=len(rows) * (high + 1) - 1)


def lying(
    stacks: Sequence[Stack],
    top: float,
    *,
    wide: float,
    left: float = 0,
    right: float = 0,
    thick: float = 38,
    marks: Sequence[tuple[float, str]] = (),
) -> Markup:
    """Draw bars below each other.

    Args:
        stacks: the bars.
        top: value at the right edge.
        wide: width of the chart in pixels.
        left: pixels left of the bars for their names.
        right: pixels right of the bars for their notes.
        thick: height of a bar in pixels.
        marks: values and texts of the ticks below the bars.
    """
    scale = Axis(0, top, left, wide - right)
    drawn, gap = _Direction(scale, thick), 8
    foot = len(stacks) * (thick + gap)
    shapes = []
    for i, s in enumerate(stacks):
        at = i * (thick + gap) + gap / 2
        texts = [label(s.name, left - 10, at + thick / 2 + 4, "end")] if s.name else []
        texts += [label(s.note, wide - right + 10, at + thick / 2 + 4, "start")] if s.note else []
        shapes.append(drawn.stack(s, at, texts))
    for value, text in marks:
        anchor = "start" if not value else "end" if value >= top else "middle"
        shapes.append(label(text, scale.at(value), foot + 14, anchor))
    return svg(shapes, wide, foot + (20 if marks else 0), class_="bars")


def standing(
    stacks: Sequence[Stack],
    top: float,
    *,
    wide: float,
    high: float,
    gap: float,
    marks: Sequence[tuple[float, str]],
    thickest: float = 150,
) -> Markup:
    """Draw bars side by side, with ticks at their left.

    Args:
        stacks: the bars.
        top: value at the upper edge.
        wide: width of the chart in pixels.
        high: height of the bars in pixels.
        gap: pixels between bars.
        marks: values and texts of the ticks.
        thickest: the most pixels that a bar is wide.
    """
    left, scale = 76, Axis(0, top, high + 5, 5)
    room = wide - left - gap * (len(stacks) - 1) - sum(s.space for s in stacks)
    drawn, at = _Direction(scale, min(room / len(stacks), thickest), upright=True), float(left)
    shapes = []
    for value, text in marks:
        shapes.append(line(left - 5, scale.at(value), wide, scale.at(value), "tick"))
        shapes.append(label(text, left - 9, scale.at(value) + 4, "end"))
    for s in stacks:
        at += s.space
        texts = [label(s.name, at + drawn.thick / 2, high + 20)] if s.name else []
        shapes.append(drawn.stack(s, at, texts))
        at += drawn.thick + gap
    return svg(shapes, wide, high + 26, class_="bars")


@dataclass(frozen=True)
class _Direction:
    """Bars of one thickness along a scale, upright or lying."""

    scale: Axis
    thick: float
    upright: bool = False

    def rect(self, a: float, b: float, at: float, **look: Any) -> Markup:
        """Draw a rectangle between two pixels of the scale, beginning at the pixel `at` of the other direction."""
        low, long = min(a, b), max(abs(b - a), 0.6)
        if self.upright:
            return el("rect", x=at, y=low, width=self.thick, height=long, **look)
        return el("rect", x=low, y=at or None, width=long, height=self.thick, **look)

    def stack(self, s: Stack, at: float, texts: Sequence[Markup]) -> Markup:
        """Draw a bar on its background, its mark and its texts."""
        free = self.rect(self.scale.start, self.scale.stop, at, class_="free", data_t=s.tip or None)
        shapes = [free, *self.parts(s.parts, at), *texts]
        if s.mark is not None:
            pixel, ends = self.scale.inside(s.mark), (at - 3, at + self.thick + 3)
            x, y = (ends, (pixel, pixel)) if self.upright else ((pixel, pixel), ends)
            shapes.append(line(x[0], y[0], x[1], y[1], "mark"))
        return el("g", *shapes, class_="bar")

    def parts(self, parts: Sequence[Part], at: float) -> list[Markup]:
        """Draw parts one after the other."""
        shapes, value = [], 0.0
        for p in parts:
            a, b = self.scale.inside(value), self.scale.inside(value + p.value)
            if p.colour == HATCH:
                shapes.append(self._stripes(self.scale.inside(self.scale.high - p.value), at, p.tip))
                continue
            if p.value:
                look = {"fill": p.colour, "opacity": 0.4 if p.pale else None, "data_t": p.tip or None}
                shapes += [self.rect(a, b, at, **look), *self._name(p, a, b, at)]
            value += p.value
        return shapes

    def _stripes(self, a: float, at: float, tip: str) -> Markup:
        """Draw stripes from the pixel `a` to the end of the bar."""
        middle, end = at + self.thick / 2, self.scale.stop
        places = (middle, a, middle, end) if self.upright else (a, middle, end, middle)
        x1, y1, x2, y2 = places
        return el("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=HATCH, stroke_width=self.thick, data_t=tip or None)

    def _name(self, p: Part, a: float, b: float, at: float) -> list[Markup]:
        """Write the name of a part into it, if it has room."""
        across, along = (abs(b - a), self.thick) if self.upright else (self.thick, abs(b - a))
        letters = int((along - 8) / LETTER)
        if not p.name or across < 15 or letters < min(LEAST, len(p.name)):
            return []
        x, y = (at + 4, max(a, b) - 4) if self.upright else (min(a, b) + 6, at + self.thick / 2 + 4)
        return [el("text", plain(p.name, letters), x=x, y=y, class_="in")]
