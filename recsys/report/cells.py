"""Small pictures in table cells and legends."""

from collections.abc import Sequence
from html import escape

from recsys.pages.charts import Paint

Interval = tuple[float, float]
BRIGHT = 8  # number of lines with a colour of their own


Dot = tuple[Paint, float, Interval | None, str]  # paint, value, interval, tooltip


def dots(values: Sequence[Dot], bounds: Interval, zero: float | None = None, wide: int = 220) -> str:
    """Draw values with their intervals, one below the other, on a common scale.

    Args:
        zero: value of a dashed vertical line.
    """
    row = 20 if len(values) == 1 else 9
    x = lambda v: 6 + (v - bounds[0]) / (bounds[1] - bounds[0]) * (wide - 12)  # noqa: E731
    high = row * len(values)
    shapes = []
    if zero is not None and bounds[0] <= zero <= bounds[1]:
        at = x(zero)
        shapes.append(f'<path d="M{at:.1f} 0V{high}" stroke="var(--soft)" stroke-dasharray="2 3"/>')
    for i, (paint, value, interval, tip) in enumerate(values):
        y = row * (i + 0.5)
        inner = f'<circle cx="{x(value):.1f}" cy="{y:g}" r="3.8" fill="{paint.colour}"/>'
        if interval is not None:
            ends = [min(max(x(v), 0), wide) for v in interval]
            path = f"M{ends[0]:.1f} {y:g}H{ends[1]:.1f}"
            inner += f'<path d="{path}" stroke="{paint.colour}" stroke-width="2.4" opacity=".55"/>'
        hit = f'<rect x="0" y="{row * i}" width="{wide}" height="{row}" fill="transparent"/>'
        shapes.append(f'<g data-t="{escape(tip)}" data-r="{paint.number}">{inner}{hit}</g>')
    return f'<svg class="cell" width="{wide}" height="{high}">{"".join(shapes)}</svg>'


def bar(parts: Sequence[tuple[float, str, str]], wide: int = 300) -> str:
    """Draw (share, colour, tooltip) parts side by side."""
    at, shapes = 0.0, []
    for share, colour, tip in parts:
        shapes.append(
            f'<rect x="{at * wide:.1f}" width="{share * wide:.1f}" height="14" fill="{colour}" data-t="{escape(tip)}"/>'
        )
        at += share
    return f'<svg class="cell" width="{wide}" height="14">{"".join(shapes)}</svg>'
