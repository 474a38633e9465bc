"""Charts in HTML and SVG: histograms, rates with their intervals, shares of splits, coverage, sizes of tables."""

from collections.abc import Callable, Sequence
from html import escape
from math import log10

import numpy as np
import polars as pl

from recsys.data.prepare.split import SPLITS
from recsys.data.profile.data_profile import Histogram, Table
from recsys.data.profile.distributions import from_axis, to_axis
from recsys.data.profile.drift import wilson
from recsys.pages.formatting import number, seconds, share, size

COLOURS = {"train": "var(--c0)", "validation": "var(--c1)", "test": "var(--c2)"}
WIDE, HIGH, FOOT = 560, 180, 22  # a chart's width, height, and the height of its axis, in pixels
COLOURED = 12  # number of the largest tables that have their own colour


def histogram(h: Histogram, *, time: bool) -> str:
    """Draw densities: training filled, the other splits as outlines. Bins of whole numbers differ in width."""
    to_text = seconds if time else number
    low, width = h.edges[0], np.diff(h.edges)
    x = (h.edges - low) / (h.edges[-1] - low) * WIDE
    shares = h.counts / np.maximum(h.counts.sum(axis=1, keepdims=True), 1)
    density = shares / width
    y = (HIGH - FOOT) * (1 - density / (density.max() or 1) * 0.96)
    raw = from_axis(h.edges, h.unit)
    shapes = []
    for i in range(len(width)):
        tip = f"{to_text(raw[i])} – {to_text(raw[i + 1])}" + "".join(
            f"\n{s}: {share(shares[k, i])}" for k, s in enumerate(SPLITS) if h.counts[k].any()
        )
        shapes.append(
            f'<rect x="{x[i]:.1f}" y="{y[0, i]:.1f}" width="{max(x[i + 1] - x[i] - 0.6, 0.4):.1f}" '
            f'height="{HIGH - FOOT - y[0, i]:.1f}" fill="var(--c0)" opacity=".62"/>'
            f'<rect x="{x[i]:.1f}" y="0" width="{x[i + 1] - x[i]:.1f}" height="{HIGH - FOOT}" fill="transparent" '
            f'data-t="{escape(tip)}"/>'
        )
    lines = [_steps(x, y[k], COLOURS[s]) for k, s in enumerate(SPLITS) if k and h.counts[k].any()]
    return _svg(lines + shapes + _ticks(h, to_text), HIGH)


def _steps(x: np.ndarray, y: np.ndarray, colour: str) -> str:
    path = " ".join(f"L{a:.1f} {v:.1f}L{b:.1f} {v:.1f}" for a, b, v in zip(x, x[1:], y, strict=False))
    return f'<path d="M{path[1:]}" fill="none" stroke="{colour}" stroke-width="1.6"/>'


def _ticks(h: Histogram, to_text: Callable[[float], str]) -> list[str]:
    low, high = float(h.edges[0]), float(h.edges[-1])
    if h.unit:
        first = round(log10(h.unit))
        powers = [10.0**k for k in range(first, 39)]
        marks = [m for m in [0.0, *powers, *(-p for p in powers)] if low <= float(to_axis(np.array(m), h.unit)) <= high]
    else:
        marks = list(np.linspace(low, high, 4))
        if to_text is number:
            step = 10 ** np.floor(log10(max((high - low) / 4, 1e-300)))
            step *= next(m for m in (1, 2, 5, 10) if (high - low) / (step * m) <= 6)
            marks = list(np.arange(np.ceil(low / step), np.floor(high / step) + 1) * step)[:8]
    out = [f'<line x1="0" y1="{HIGH - FOOT}" x2="{WIDE}" y2="{HIGH - FOOT}" stroke="var(--hatch)"/>']
    labelled = [-100.0]
    for mark in sorted(marks, key=abs):
        at = (float(to_axis(np.array(mark), h.unit)) - low) / (high - low) * WIDE
        room = 120 if to_text is seconds else 52
        if min(abs(at - t) for t in labelled) < room:
            continue
        labelled.append(at)
        anchor = "start" if at < 20 else "end" if at > WIDE - 20 else "middle"
        out.append(
            f'<line x1="{at:.1f}" y1="{HIGH - FOOT}" x2="{at:.1f}" y2="{HIGH - FOOT + 4}" stroke="var(--soft)"/>'
        )
        out.append(f'<text x="{at:.1f}" y="{HIGH - 3}" text-anchor="{anchor}">{escape(to_text(float(mark)))}</text>')
    return out


def rate_interval(positives: int, rows: int, base: float, top: float) -> str:
    """Draw a dot at the share of positives, its 95 % interval, and a line at the share of all rows.

    Args:
        positives: rows whose label is 1.
        rows: all rows of the cell.
        base: the share of positives in all rows.
        top: the share at the right edge.
    """
    if not rows:
        return ""
    low, high = wilson(positives, rows)
    rate, wide = positives / rows, 112
    at = [min(v / top, 1) * (wide - 8) + 4 for v in (rate, low, high, base)]
    colour = "var(--up)" if low > base else "var(--down)" if high < base else "var(--other)"
    tip = f"{share(rate)} of {rows:,} (95 %: {share(low)} to {share(high)}); all rows {share(base)}"
    return (
        f'<svg class="cell" width="{wide}" height="16" data-t="{escape(tip)}">'
        f'<line x1="{at[3]:.1f}" y1="0" x2="{at[3]:.1f}" y2="16" stroke="var(--soft)" stroke-dasharray="2 2"/>'
        f'<line x1="{at[1]:.1f}" y1="8" x2="{at[2]:.1f}" y2="8" stroke="{colour}" stroke-width="2" opacity=".55"/>'
        f'<circle cx="{at[0]:.1f}" cy="8" r="3.6" fill="{colour}"/></svg>'
    )


def shares(parts: Sequence[float | None], top: float) -> str:
    """Draw a bar for each split that has rows; a bar longer than `top` is cut off at the edge and drawn pale."""
    wide, bars = 90, []
    for i, (split, part) in enumerate(zip(SPLITS, parts, strict=True)):
        if part:
            long, pale = min(max(part / top * wide, 0.5), wide), 0.4 if part > top else 1
            at = f'y="{1 + 5 * i}" width="{long:.1f}" height="4" rx="1"'
            bars.append(f'<rect {at} fill="{COLOURS[split]}" opacity="{pale}"/>')
    return f'<svg class="cell" width="{wide}" height="16">{"".join(bars)}</svg>'


def bar(part: float, colour: str = "var(--c0)", wide: int = 110) -> str:
    return (
        f'<svg class="cell" width="{wide}" height="12"><rect width="{wide}" height="12" rx="2" fill="var(--free)"/>'
        f'<rect width="{max(min(part, 1) * wide, 0.6 if part else 0):.1f}" height="12" rx="2" fill="{colour}"/></svg>'
    )


def coverage(t: Table) -> str:
    """Draw the share of lookups over the number of most frequent values (logarithmic), and mark the thresholds."""
    assert t.coverage is not None and t.thresholds is not None
    n, covered = t.coverage
    top = log10(max(int(n[-1]), 2))
    room = HIGH - FOOT

    def place(values: float, part: float) -> tuple[float, float]:
        return 40 + log10(max(values, 1)) / top * (WIDE - 60), 8 + (room - 8) * (1 - part)

    points = [place(float(a), float(b)) for a, b in zip(n, covered, strict=True)]
    path = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    out = [
        f'<path d="M{points[0][0]:.1f} {room}L{path}L{points[-1][0]:.1f} {room}Z" fill="var(--c0)" opacity=".14"/>',
        f'<path d="M{path}" fill="none" stroke="var(--c0)" stroke-width="2"/>',
    ]
    for part in (0.0, 0.5, 1.0):
        y = place(1, part)[1]
        out.append(f'<line x1="40" y1="{y:.1f}" x2="{WIDE - 20}" y2="{y:.1f}" stroke="var(--line)"/>')
        out.append(f'<text x="34" y="{y + 4:.1f}" text-anchor="end">{part:.0%}</text>')
    for power in range(int(top) + 1):
        x = place(10.0**power, 0)[0]
        anchor = "end" if x > WIDE - 30 else "middle"
        out.append(f'<text x="{x:.1f}" y="{HIGH - 3}" text-anchor="{anchor}">{10**power:,}</text>')
    for row in t.thresholds.filter(pl.col("rows") > 1).iter_rows(named=True):
        x, y = place(row["rows"] - 1, row["covered"])
        own = row["min_count"] == t.min_count and t.encode == "vocabulary"
        tip = f"min_count {row['min_count']}: {row['rows'] - 1:,} values, {share(row['covered'])} of lookups"
        fill = "var(--c2)" if own else "var(--paper)"
        out.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{5 if own else 4}" fill="{fill}" stroke="var(--c2)" '
            f'stroke-width="2" data-t="{escape(tip)}"/>'
        )
    return _svg(out, HIGH)


def strip(tables: Sequence[Table]) -> str:
    """Draw all tables side by side, in proportion to their rows; the largest have a colour and a name."""
    whole = sum(t.rows for t in tables) or 1
    order = sorted(tables, key=lambda t: -t.rows)
    segments = [
        f'<i style="width:{t.rows / whole:.3%};background:{colour(i)}" data-t="{escape(t.name)}: {t.rows:,} rows, '
        f'{size(t.rows * 64)} at dim 16">{f"<em>{escape(t.name)}</em>" if t.rows / whole > 0.06 else ""}</i>'
        for i, t in enumerate(order)
    ]
    return f'<div class="strip">{"".join(segments)}</div>'


def colour(rank: int) -> str:
    return f"var(--c{rank})" if rank < COLOURED else "var(--other)"


def legend(splits: Sequence[str]) -> str:
    return (
        '<div class="legend">'
        + "".join(f'<span><i style="background:{COLOURS[s]}"></i>{s}</span>' for s in splits)
        + "</div>"
    )


def _svg(shapes: Sequence[str], high: int) -> str:
    return f'<svg class="chart" viewBox="0 0 {WIDE} {high}" role="img">{"".join(shapes)}</svg>'
