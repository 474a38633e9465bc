"""Tables of a page in HTML."""

import polars as pl

from recsys.data.prepare.split import SPLITS
from recsys.data.profile import charts as pictures
from recsys.data.profile.drift import wilson
from recsys.html.sortable_tables import Column, table
from recsys.html.text import html, share

MISSING = "<em>(missing)</em>"


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
