"""The sizes of tables, with the config's threshold of frequency and with others."""

from math import log10
from typing import Any

import polars as pl
from markupsafe import Markup

from recsys.data.features.encoders import Hash, Vocabulary
from recsys.data.profile.data_profile import DIMS, DataProfile, FeatureProfile, Table
from recsys.pages.charts.axes import Axis
from recsys.pages.charts.bars import Part, Stack, bar, colour, lying
from recsys.pages.charts.plots import WIDE, Dot, dots
from recsys.pages.formatting import share, size
from recsys.pages.page_table import Cell, Cells, Column, PageTable, columns

HIGH = 180  # of the coverage curve, in pixels
PAGE = 1184  # width of the page in pixels


def table_sizes(t: Table, f: FeatureProfile) -> dict[str, Any]:
    """Return the sizes of a feature's table with different thresholds."""
    assert t.thresholds is not None
    largest = int(t.thresholds["rows"].max())  # type: ignore[arg-type]
    rows: list[Cells] = []
    kinds = []
    for r in t.thresholds.iter_rows(named=True):
        least, n = r["min_count"], r["rows"]
        part = bar([Part(n / largest, "var(--c3)")], 44)
        rows.append(["0, 1" if least == 1 else str(least), f"{n:,}", part, *_sizes(n), share(r["covered"])])
        kinds.append("best" if isinstance(t.encoder, Vocabulary) and least == t.min_count else "")
    heads = [
        Column("min_count"), Column("rows", tooltip="of the table"), Column("", left=True),
        *(Column(f"at dim {d}") for d in DIMS),
        Column("covered", tooltip="share of training lookups whose value has a row of its own"),
    ]  # fmt: skip
    shared = ", ".join(x for x in t.features if x != f.name)
    hashed = ""
    if isinstance(t.encoder, Hash):
        used = t.used or 0
        shared_buckets = share(1 - used / t.distinct if t.distinct else 0.0)
        hashed = (
            f"Hashed: {t.distinct:,} training values fall into {used:,} of {t.rows - 1:,} buckets, {shared_buckets} of "
            "them share a bucket with another value. The table below shows a vocabulary instead."
        )
    sizes = PageTable(heads, rows, kinds)
    return {"table": t, "shared": shared, "hashed": hashed, "sizes": sizes, "curve": _coverage(t),
            "chosen": isinstance(t.encoder, Vocabulary)}  # fmt: skip


def _sizes(rows: int) -> list[str]:
    return [size(rows * d * 4) for d in DIMS]


def _coverage(t: Table) -> Markup | None:
    """Draw the share of lookups over the number of most frequent values (logarithmic), and mark the thresholds."""
    if t.coverage is None:
        return None
    assert t.thresholds is not None
    counts, covered = t.coverage
    rings = []
    for r in t.thresholds.filter(pl.col("rows") > 1).iter_rows(named=True):
        values = r["rows"] - 1
        tip = f"min_count {r['min_count']}: {values:,} values, {share(r['covered'])} of lookups"
        chosen = r["min_count"] == t.min_count and isinstance(t.encoder, Vocabulary)
        rings.append(Dot(r["covered"], "var(--c2)", tip, place=values, hollow=not chosen))
    curve = [(float(n), float(part)) for n, part in zip(counts, covered, strict=True)]
    top = log10(max(int(counts[-1]), 2))
    powers = [10**k for k in range(int(top) + 1)]
    x = Axis(0, top, 40, WIDE - 20, log=True, marks=powers, text="{:,.0f}".format)
    y = Axis(0, 1, HIGH - 22, 8, marks=(0.0, 0.5, 1.0), text="{:.0%}".format)
    return dots(rings, x, y, curve=curve, size=(WIDE, HIGH))


def all_tables(profile: DataProfile) -> dict[str, Any] | None:
    """Return the sizes of all tables with the config's thresholds."""
    order = sorted(profile.tables, key=lambda t: -t.rows)
    if not order:
        return None
    rows: list[Cells] = []
    for i, t in enumerate(order):
        least = str(t.min_count) if isinstance(t.encoder, Vocabulary) else ""
        part = bar([Part(t.rows / order[0].rows, colour(i))])
        numbers = [least, f"{t.distinct:,}", f"{t.rows:,}", part, *_sizes(t.rows)]
        rows.append([Cell(t.name, mark=colour(i)), t.encoder.encode, *numbers, _features(t)])
    names = ["table", "encode", "min_count", "distinct", "rows", "", *(f"at dim {d}" for d in DIMS)]
    heads = columns(
        [*names, "shared by" if any(map(_features, order)) else ""], left=("table", "encode", "", "shared by")
    )
    whole = sum(t.rows for t in order)
    totals = ", ".join(f"{size(whole * d * 4)} at dim {d}" for d in DIMS)
    # all tables side by side, in proportion to their rows
    tips = [f"{t.name}: {t.rows:,} rows, {size(t.rows * 64)} at dim 16" for t in order]
    parts = [Part(t.rows, colour(i), t.name, tip) for i, (t, tip) in enumerate(zip(order, tips, strict=True))]
    chart, sizes = lying([Stack(parts)], Axis(0, whole, 0, PAGE), wide=PAGE, thick=34), PageTable(heads, rows)
    return {"number": len(order), "rows": whole, "totals": totals, "chart": chart, "sizes": sizes}


def _features(t: Table) -> str:
    return "" if t.features == (t.name,) else ", ".join(t.features)
