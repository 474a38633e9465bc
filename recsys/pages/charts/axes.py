"""Scales from values to pixels, and the lines and texts of their ticks."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, copysign, floor, log1p, log10

from markupsafe import Markup

from recsys.pages.elements import el, join, plain

LETTER = 6.4  # width of a letter in pixels


@dataclass(frozen=True)
class Axis:
    """A scale from values to pixels.

    low, high: coordinates of its ends: values, or their logarithms
    start, stop: pixels of its ends
    log: whether coordinates are logarithms to base 10
    unit: if not 0, the coordinate of x is sign(x) ln(1 + |x| / unit)
    marks: values that have a tick; empty for round values
    text: text of a tick; None for as many digits as the distance between ticks needs
    names: whether the marks are names, not numbers
    """

    low: float
    high: float
    start: float
    stop: float
    log: bool = False
    unit: float = 0.0
    marks: Sequence[float] = ()
    text: Callable[[float], str] | None = None
    names: bool = False

    def at(self, value: float) -> float:
        """Return the pixel of a value."""
        v = log10(value) if self.log else copysign(log1p(abs(value) / self.unit), value) if self.unit else value
        return self.start + (v - self.low) / (self.high - self.low) * (self.stop - self.start)

    def inside(self, value: float) -> float:
        """Return the pixel of a value, or of the nearer end if the value is beyond it."""
        low, high = sorted((self.start, self.stop))
        return min(max(self.at(value), low), high)

    @property
    def attribute(self) -> str:
        """The scale for charts.js."""
        return f"{self.low:.8g},{self.high:.8g},{self.start:g},{self.stop:g},{int(self.log)}"

    def ticks(self, most: int = 6) -> list[float]:
        """Return the marks, or about `most` round values on the axis."""
        if self.marks:
            return list(self.marks)
        if self.unit:
            powers = [10.0**k for k in range(round(log10(self.unit)), 39)]
            ends = sorted((self.start, self.stop))
            return [v for v in (0.0, *powers, *(-p for p in powers)) if ends[0] <= self.at(v) <= ends[1]]
        if self.log and self.high - self.low >= 1:  # powers of ten; with fewer than three of them, also 2 and 5 times
            exponents = range(ceil(self.low - 1e-9), floor(self.high + 1e-9) + 1)
            if len(exponents) > 2:
                return [10.0**k for k in exponents][:: max(1, ceil(len(exponents) / most))]
            ones = [m * 10.0**k for k in range(floor(self.low), ceil(self.high)) for m in (1, 2, 5)]
            return [v for v in ones if self.low <= log10(v) <= self.high]
        low, high = (10**self.low, 10**self.high) if self.log else (self.low, self.high)
        step = 10 ** floor(log10((high - low) / most))
        step *= next(m for m in (1, 2, 5, 10) if (high - low) / (step * m) <= most)
        steps = range(ceil(low / step - 1e-9), floor(high / step + 1e-9) + 1)
        return [i * step for i in steps if not self.log or i > 0]

    def labels(self, most: int = 6) -> list[tuple[float, str]]:
        """Return the pixel and the text of each tick."""
        ticks = self.ticks(most)
        if self.text is not None:
            return [(self.at(v), self.text(v)) for v in ticks]
        step = ticks[1] - ticks[0] if len(ticks) > 1 else abs(ticks[0]) if ticks else 1.0
        return [(self.at(v), _tick(v, v if self.log else step or 1.0)) for v in ticks]


def axis(values: Sequence[float], start: float, stop: float, log: bool = False) -> Axis:
    """Return an axis around the values, with a margin."""
    low, high = min(values), max(values)
    if log:
        low, high = log10(low), log10(high)
    room = (high - low) * 0.04 or abs(high) * 0.05 or 1.0
    return Axis(low - room, high + room, start, stop, log)


def axis_of_texts(values: Sequence[str], start: float, stop: float) -> tuple[Axis, list[float]]:
    """Return an axis of values that are text, and each value on it.

    It is a scale if all values are numbers and they differ, logarithmic if they span orders of magnitude; else it has a
    name for each distinct value.
    """
    numbers = [n for n in map(as_number, values) if n is not None]
    if len(numbers) == len(values) and len(set(numbers)) > 1:
        return axis(numbers, start, stop, spans(numbers, 8)), numbers
    names = list(dict.fromkeys(values))
    scale = Axis(-0.5, len(names) - 0.5, start, stop, marks=range(len(names)), text=lambda i: names[int(i)], names=True)
    return scale, [names.index(v) for v in values]


def as_number(text: str) -> float | None:
    """Return the number that a text is, None if it is none."""
    try:
        return float(text)
    except ValueError:
        return None


def spans(values: Sequence[float], ratio: float = 30) -> bool:
    """Return whether the values suit a logarithmic axis."""
    return min(values) > 0 and max(values) / min(values) > ratio


def _tick(value: float, step: float) -> str:
    """Format a tick with the digits that a distance of `step` between ticks needs."""
    if abs(value) >= 10_000:
        return f"{value / 1e6:g}M" if abs(value) >= 1e6 else f"{value / 1e3:g}k"
    if value and abs(value) < 1e-3:
        return f"{value:.0e}".replace("e-0", "e-")
    return f"{value:.{max(0, -floor(log10(step) + 1e-9))}f}" if step > 0 else f"{value:g}"


def label(text: str, x: float, y: float, anchor: str = "middle", kind: str | None = None) -> Markup:
    """Write a text at a point."""
    return el("text", text, x=x, y=y, text_anchor=None if anchor == "start" else anchor, class_=kind)


def line(x1: float, y1: float, x2: float, y2: float, kind: str, tip: str | None = None) -> Markup:
    """Draw a straight line. kind: its class, such as tick, base or dashed"""
    return el("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=kind, data_t=tip)


def draw_y(x: Axis, y: Axis) -> Markup:
    """Draw the horizontal grid lines and their texts, and the x axis itself."""
    lines = [line(x.start, at, x.stop, at, "tick") + label(text, x.start - 7, at + 4, "end") for at, text in y.labels()]
    return join([*lines, line(x.start, y.start, x.stop, y.start, "base")])


def draw_x(x: Axis, foot: float, name: str = "", width: float = float("inf")) -> Markup:
    """Write the ticks of the x axis below the pixel `foot`, and its name. Texts that would overlap are left out."""
    ticks = x.labels(7)
    texts: list[tuple[float, str]] = []
    for at, text in ticks:
        if x.names:
            texts.append((at, plain(text, max(4, 66 // len(ticks)))))
        elif all(abs(at - other) > LETTER * (len(text) + len(shown)) / 2 + 8 for other, shown in texts):
            texts.append((at, text))
    shapes = []
    for at, text in texts:
        half = LETTER * len(text) / 2  # a text is centred, unless it would leave the chart
        anchor = "start" if at < half else "end" if at + half > width else "middle"
        shapes.append(label(text, at, foot + 17, anchor))
    return join([*shapes, *([label(name, x.stop, foot + 33, "end")] if name else [])])
