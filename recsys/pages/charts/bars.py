"""Bars of parts: in cells, side by side as shards on devices, below each other as a funnel."""

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from recsys.pages.charts.axes import LETTER, Axis, label, line
from recsys.pages.charts.plots import svg
from recsys.pages.elements import el, join, plain

COLOURS = 12  # number of colours in base.css
MIN_LETTERS = 3  # fewest letters of a name that are written into a part
CELL_WIDE = 90  # pixels of bars in a cell
THICKEST = 150  # pixels of a bar beside others


@dataclass(frozen=True)
class Part:
    """A part of a bar. name: written into it if there is room; pale: because it is cut off"""

    value: float
    colour: str
    name: str = ""
    tip: str = ""
    pale: bool = False


@dataclass(frozen=True)
class Stack:
    """A bar of parts. name, note: before and behind it; mark: value of a line across it; space: pixels before it"""

    parts: Sequence[Part]
    name: str = ""
    note: str = ""
    mark: float | None = None
    space: float = 0.0


def colour(rank: int) -> str:
    """Return a colour of its own for each of the first COLOURS, and one for all others."""
    return f"var(--c{rank})" if rank < COLOURS else "var(--other)"


def bar(parts: Sequence[Part], wide: float = 110, high: float = 12) -> Markup:
    """Draw parts of 1 side by side, in a cell."""
    drawn = _Bars(Axis(0, 1, 0, wide), high)
    return el("svg", drawn.stack(Stack(parts), 0), class_="cell", width=wide, height=high)


def thin_bars(rows: Sequence[Sequence[Part]], top: float) -> Markup:
    """Draw thin bars below each other, in a cell. top: value at the right edge, where longer bars are cut off"""
    drawn = _Bars(Axis(0, top, 0, CELL_WIDE), 4)
    shapes = [shape for i, parts in enumerate(rows) for shape in drawn.parts(parts, 5 * i)]
    return el("svg", join(shapes), class_="cell", width=CELL_WIDE, height=5 * len(rows) - 1)


def lying(stacks: Sequence[Stack], x: Axis, *, wide: float, thick: float = 38) -> Markup:
    """Draw bars below each other, with the marks of the axis below them. wide: width with names and notes"""
    drawn, gap = _Bars(x, thick), 8
    foot = len(stacks) * (thick + gap)
    shapes = [drawn.stack(s, i * (thick + gap) + gap / 2) for i, s in enumerate(stacks)]
    for pixel, text in x.labels() if x.marks else []:
        anchor = "start" if pixel == x.start else "end" if pixel == x.stop else "middle"
        shapes.append(label(text, pixel, foot + 14, anchor))
    return svg(shapes, wide, foot + (20 if x.marks else 0), class_="bars")


def standing(stacks: Sequence[Stack], y: Axis, *, wide: float, gap: float) -> Markup:
    """Draw bars side by side, at most THICKEST pixels wide, with the marks of the axis at their left."""
    left = 76.0
    room = wide - left - gap * (len(stacks) - 1) - sum(s.space for s in stacks)
    drawn, at = _Bars(y, min(room / len(stacks), THICKEST), upright=True), left
    shapes = []
    for pixel, text in y.labels():
        shapes += [line(left - 5, pixel, wide, pixel, "tick"), label(text, left - 9, pixel + 4, "end")]
    for s in stacks:
        shapes.append(drawn.stack(s, at + s.space))
        at += s.space + drawn.thick + gap
    return svg(shapes, wide, y.start + 21, class_="bars")


@dataclass(frozen=True)
class _Bars:
    """Bars of one thickness along a scale, upright or lying."""

    scale: Axis
    thick: float
    upright: bool = False

    def stack(self, s: Stack, at: float) -> Markup:
        """Draw a bar with its background, texts and mark. at: pixel where it begins across the scale"""
        middle, start, stop = at + self.thick / 2, self.scale.start, self.scale.stop
        shapes = [self._rect(start, stop, at, class_="free"), *self.parts(s.parts, at)]
        if s.name:
            shapes.append(
                label(s.name, middle, start + 15) if self.upright else label(s.name, start - 10, middle + 4, "end")
            )
        if s.note:
            shapes.append(label(s.note, stop + 10, middle + 4, "start"))
        if s.mark is not None:
            pixel, ends = self.scale.inside(s.mark), (at - 3, at + self.thick + 3)
            xs, ys = (ends, (pixel, pixel)) if self.upright else ((pixel, pixel), ends)
            shapes.append(line(xs[0], ys[0], xs[1], ys[1], "mark"))
        return el("g", *shapes, class_="bar")

    def parts(self, parts: Sequence[Part], at: float) -> list[Markup]:
        """Draw parts one after the other."""
        shapes, value = [], 0.0
        for p in parts:
            a, b = self.scale.inside(value), self.scale.inside(value + p.value)
            if p.value:
                look = {"fill": p.colour, "opacity": 0.4 if p.pale else None, "data_t": p.tip or None}
                shapes += [self._rect(a, b, at, **look), *self._name(p, a, b, at)]
            value += p.value
        return shapes

    def _rect(self, a: float, b: float, at: float, **look: str | float | None) -> Markup:
        low, long = min(a, b), max(abs(b - a), 0.6)
        if self.upright:
            return el("rect", x=at, y=low, width=self.thick, height=long, **look)
        return el("rect", x=low, y=at or None, width=long, height=self.thick, **look)

    def _name(self, p: Part, a: float, b: float, at: float) -> list[Markup]:
        """Write the name of a part into it, if it has room."""
        across, along = (abs(b - a), self.thick) if self.upright else (self.thick, abs(b - a))
        letters = int((along - 8) / LETTER)
        if not p.name or across < 15 or letters < min(MIN_LETTERS, len(p.name)):
            return []
        x, y = (at + 4, max(a, b) - 4) if self.upright else (min(a, b) + 6, at + self.thick / 2 + 4)
        return [el("text", plain(p.name, letters), x=x, y=y, class_="in")]
