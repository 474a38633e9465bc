"""Line charts in SVG, which pages with charts.js make interactive: axes, series, legends."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10

from recsys.pages.formatting import plain, tail

WIDE, HIGH = 560, 262  # size of a chart in pixels
LEFT, RIGHT, TOP, FOOT = 54, 14, 10, 40


@dataclass(frozen=True)
class Paint:
    """Number, name and colour of a line, the same on the whole page."""

    number: int
    name: str
    colour: str = "var(--other)"
    faded: bool = False

    @property
    def mark(self) -> str:
        return f'<i style="background:{self.colour}"></i>'


def legend(paints: Sequence[Paint]) -> str:
    """Return the lines that have a colour, and the number of those that do not."""
    entries = [
        f'<span data-r="{p.number}" data-t="{escape(plain(p.name, 200))}">{p.mark}{escape(tail(p.name, 40))}</span>'
        for p in paints
        if not p.faded
    ]
    if rest := sum(p.faded for p in paints):
        entries.append(f'<span><i style="background:var(--other)"></i>{rest} others</span>')
    return f'<div class="legend">{"".join(entries)}</div>'


@dataclass(frozen=True)
class Series:
    """Points of one line."""

    paint: Paint
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Axis:
    """Scale from values to pixels. marks: the values that get a tick; empty for round values"""

    low: float
    high: float
    start: float
    stop: float
    log: bool = False
    marks: tuple[float, ...] = ()

    def at(self, value: float) -> float:
        """Return the pixel of a value."""
        v = log10(value) if self.log else value
        return self.start + (v - self.low) / (self.high - self.low) * (self.stop - self.start)

    @property
    def attribute(self) -> str:
        """Return the scale for charts.js."""
        return f"{self.low:.8g},{self.high:.8g},{self.start:g},{self.stop:g},{int(self.log)}"

    def ticks(self, most: int = 6) -> list[float]:
        """Return the marks, or about `most` round values on the axis."""
        if self.marks:
            return list(self.marks)
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


def across(x: Axis, y: Axis) -> str:
    """Draw the horizontal grid lines and their numbers."""
    out = []
    for at, number in tick_labels(y):
        out.append(f'<line x1="{x.start:g}" y1="{at:.1f}" x2="{x.stop:g}" y2="{at:.1f}" stroke="var(--line)"/>')
        out.append(f'<text x="{x.start - 7:g}" y="{at + 4:.1f}" text-anchor="end">{number}</text>')
    out.append(f'<line x1="{x.start:g}" y1="{y.start:g}" x2="{x.stop:g}" y2="{y.start:g}" stroke="var(--hatch)"/>')
    return "".join(out)


def along(x: Axis, y: Axis, x_label: str) -> str:
    """Draw the numbers and the name of the x axis."""
    text = f'<text x="{x.stop:g}" y="{y.start + 33:g}" text-anchor="end">{escape(x_label)}</text>'
    return below(tick_labels(x, 7), y) + text


def below(names: Sequence[tuple[float, str]], y: Axis) -> str:
    """Draw names below the x axis, each at its pixel."""
    return "".join(
        f'<text x="{at:.1f}" y="{y.start + 17:g}" text-anchor="middle">{escape(name)}</text>' for at, name in names
    )


def tick_labels(scale: Axis, most: int = 6) -> list[tuple[float, str]]:
    """Return the pixel and the text of each tick."""
    marks = scale.ticks(most)
    return [(scale.at(v), tick(v, v if scale.log else _step(marks))) for v in marks]


def _step(marks: Sequence[float]) -> float:
    return marks[1] - marks[0] if len(marks) > 1 else abs(marks[0]) or 1.0


def figure(title: str, series: Sequence[Series], x: Axis, y: Axis, x_label: str, under: str = "") -> str:
    """Draw lines with their axes and a title.

    Args:
        title: text above the chart, not in HTML.
        series: lines; the first is drawn on top.
        x: the horizontal axis.
        y: the vertical axis.
        x_label: name of the horizontal axis.
        under: SVG drawn below the lines.
    """
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
        f"{across(x, y)}{along(x, y, x_label)}{under}"
        f"{''.join(shapes)}{rule}</svg></figure>"
    )
