"""Tables of cells: their rows, their shares of each split and their rates of positives."""

import polars as pl
from markupsafe import Markup

from recsys.data.prepare.split import SPLITS
from recsys.data.profile.drift import wilson
from recsys.pages.charts.bars import Part, thin_bars
from recsys.pages.charts.plots import Dot, dots_in_cell
from recsys.pages.formatting import share
from recsys.pages.page_table import Cell, Cells, Column, PageTable, Paint, columns, cut

SPLIT_PAINTS = [Paint(s, f"var(--c{i})") for i, s in enumerate(SPLITS)]


def cell_table(frame: pl.DataFrame, what: str, rows: str, base: float, *, labelled: bool) -> PageTable:
    """Return a table of cells.

    Args:
        frame: the cells.
        what: the header of the cells' labels.
        rows: the header of the cells' rows.
        base: the rate of positives in all training rows.
        labelled: whether rows have labels, and cells rates of positives.
    """
    totals = [int(frame[s].sum()) for s in SPLITS]
    # the largest share of a cell; the bar of all others may be longer and is cut
    single = frame.filter(~(pl.col("special") & (pl.col("label") != ""))).select(SPLITS).rows()
    widest = max((n / total for row in single for n, total in zip(row, totals, strict=True) if n), default=1.0)
    highs = [base * 1.25]
    for positives, n in frame.select("positives", "train").iter_rows():
        if n:
            highs.append(min(wilson(positives, n)[1], max(positives / n * 1.3, base * 2)))
    top = min(max(highs), 1.0) or 1.0  # the rate at the right edge of the charts, so that most intervals fit
    lines: list[Cells] = []
    for r in frame.iter_rows(named=True):
        shares = [r[s] / n if n else None for s, n in zip(SPLITS, totals, strict=True)]
        parts = [
            [Part(part, p.colour, pale=part > widest)] if part else []
            for p, part in zip(SPLIT_PAINTS, shares, strict=True)
        ]
        shown = [share(part) for part in shares if part is not None]
        rate = share(r["positives"] / r["train"]) if r["train"] else "–"
        positive = [rate, rate_interval(r["positives"], r["train"], base, top)] if labelled else []
        parted = cut(" × ".join(part or "(missing)" for part in r["label"].split("\x1f")))
        label = Cell(r["label"] or "(missing)", "special") if r["special"] else parted
        lines.append([label, f"{r['train']:,}", thin_bars(parts, widest), *shown, *positive])
    splits = [s for s, n in zip(SPLITS, totals, strict=True) if n]
    heads = columns([what, rows, "share by split", *splits], left=(what, "share by split"))
    if labelled:
        interval = Column("rate, 95 % interval", left=True, tooltip="the dashed line: all training rows")
        heads += [Column("positive"), interval]
    return PageTable(heads, lines, kind="cells")


def rate_interval(positives: int, rows: int, base: float, top: float) -> Markup | str:
    """Draw the share of positives with its 95 % interval, and a line at the share of all rows.

    Args:
        positives: rows whose label is 1.
        rows: all rows of the cell.
        base: the share of positives in all rows.
        top: the share at the right edge.
    """
    if not rows:
        return ""
    low, high = wilson(positives, rows)
    colour = "var(--up)" if low > base else "var(--down)" if high < base else "var(--other)"
    rate = share(positives / rows)
    tip = f"{rate} of {rows:,} (95 %: {share(low)} to {share(high)}); all rows {share(base)}"
    return dots_in_cell([Dot(positives / rows, colour, tip, low, high)], (0.0, top), base, 112)
