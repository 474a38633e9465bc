"""Tables of cells in HTML."""

import polars as pl

from recsys.data.prepare.split import SPLITS
from recsys.data.profile import profile_charts
from recsys.data.profile.drift import wilson
from recsys.pages.formatting import html, share
from recsys.pages.sortable_tables import Column, table

MISSING = "<em>(missing)</em>"


def cells(frame: pl.DataFrame, what: str, rows: str, base: float) -> str:
    """Return a table with the rows, the shares by split and the rate of positives of each cell.

    Args:
        frame: the cells.
        what: the header of the cells' labels.
        rows: the header of the cells' rows.
        base: the rate of positives in all training rows.
    """
    totals = {s: int(frame[s].sum()) for s in SPLITS}
    splits = [s for s in SPLITS if totals[s]]
    parts = [[r[s] / totals[s] if totals[s] else None for s in SPLITS] for r in frame.iter_rows(named=True)]
    single = [p for p, r in zip(parts, frame.iter_rows(named=True), strict=True) if not (r["special"] and r["label"])]
    widest = max((share for row in single for share in row if share), default=1.0)  # the bar of all others may be cut
    top = _top(frame, base)
    lines = []
    for r, shares_of_cell in zip(frame.iter_rows(named=True), parts, strict=True):
        label = MISSING if r["special"] and not r["label"] else html(_shown(r["label"]))
        lines.append([
            f"<em>{label}</em>" if r["special"] and r["label"] else label,
            f"{r['train']:,}",
            profile_charts.shares(shares_of_cell, widest),
            *(share(p) for s, p in zip(SPLITS, shares_of_cell, strict=True) if s in splits),
            share(r["positives"] / r["train"]) if r["train"] else "–",
            profile_charts.rate_interval(r["positives"], r["train"], base, top),
        ])  # fmt: skip
    columns = [
        Column(what, left=True),
        Column(rows),
        Column("share by split", left=True),
        *(Column(s) for s in splits),
        Column("positive"),
        Column("rate, 95 % interval", left=True, tooltip="the dashed line: all training rows"),
    ]
    return table(columns, lines, cls="cells")


def _shown(label: str) -> str:
    return " × ".join(part or "(missing)" for part in label.split("\x1f"))


def _top(frame: pl.DataFrame, base: float) -> float:
    """Return the rate at the right edge of the charts, so that most intervals fit."""
    highs = [base * 1.25]
    for positives, n in frame.select("positives", "train").iter_rows():
        if n:
            highs.append(min(wilson(positives, n)[1], max(positives / n * 1.3, base * 2)))
    return min(max(highs), 1.0) or 1.0
