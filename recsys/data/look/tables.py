"""Tables of a page in HTML."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import polars as pl

from recsys.data.look import pictures
from recsys.data.look.drift import wilson
from recsys.data.look.text import html, share
from recsys.data.split import SPLITS

MISSING = "<em>(missing)</em>"


@dataclass(frozen=True)
class Column:
    name: str
    left: bool = False
    told: str = ""  # in the tooltip


def table(columns: Sequence[Column], rows: Sequence[Sequence[str]], kinds: Sequence[str] = (), cls: str = "") -> str:
    """Cells in HTML; those that begin with a <td are whole."""
    head = "".join(
        f'<th class="{"l" if c.left else ""}" data-t="{escape(c.told)}">{escape(c.name)}</th>'
        if c.told
        else f'<th class="{"l" if c.left else ""}">{escape(c.name)}</th>'
        for c in columns
    )
    lines = []
    for i, row in enumerate(rows):
        cells = "".join(
            cell if cell.startswith("<td") else f'<td class="l">{cell}</td>' if c.left else f"<td>{cell}</td>"
            for cell, c in zip(row, columns, strict=True)
        )
        lines.append(f'<tr class="{kinds[i]}">{cells}</tr>' if kinds and kinds[i] else f"<tr>{cells}</tr>")
    return (
        f'<div class="scroll"><table class="{cls}"><thead><tr>{head}</tr></thead><tbody>{"".join(lines)}</tbody>'
        "</table></div>"
    )


def cells(frame: pl.DataFrame, what: str, rows: str, base: float) -> str:
    """Rows, shares by split and the rate of positives of each cell. base: the rate of all training rows."""
    totals = {s: int(frame[s].sum()) for s in SPLITS}
    there = [s for s in SPLITS if totals[s]]
    parts = [[r[s] / totals[s] if totals[s] else None for s in SPLITS] for r in frame.iter_rows(named=True)]
    own = [of for of, r in zip(parts, frame.iter_rows(named=True), strict=True) if not (r["special"] and r["label"])]
    widest = max((p for of in own for p in of if p), default=1.0)  # the others' bar may be cut
    top = _top(frame, base)
    lines = []
    for r, of in zip(frame.iter_rows(named=True), parts, strict=True):
        label = MISSING if r["special"] and not r["label"] else html(_shown(r["label"]))
        lines.append([
            f"<em>{label}</em>" if r["special"] and r["label"] else label,
            f"{r['train']:,}",
            pictures.shares(of, widest),
            *(share(p) for s, p in zip(SPLITS, of, strict=True) if s in there),
            share(r["positives"] / r["train"]) if r["train"] else "–",
            pictures.rate(r["positives"], r["train"], base, top),
        ])  # fmt: skip
    columns = [
        Column(what, left=True),
        Column(rows),
        Column("share by split", left=True),
        *(Column(s) for s in there),
        Column("positive"),
        Column("rate, 95 % interval", left=True, told="the dashed line: all training rows"),
    ]
    return table(columns, lines, cls="cells")


def _shown(label: str) -> str:
    return " × ".join(part or "(missing)" for part in label.split("\x1f"))


def _top(frame: pl.DataFrame, base: float) -> float:
    """The right edge of rates: what the intervals of cells with some rows need."""
    highs = [base * 1.25]
    for positives, n in frame.select("positives", "train").iter_rows():
        if n:
            highs.append(min(wilson(positives, n)[1], max(positives / n * 1.3, base * 2)))
    return min(max(highs), 1.0) or 1.0
