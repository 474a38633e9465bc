"""Show a data profile as one HTML page that needs no other file."""

import calendar
from collections.abc import Mapping
from math import log10
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from markupsafe import Markup

from recsys.data.prepare.split import SPLITS
from recsys.data.profile.data_profile import DIMS, DataProfile, FeatureProfile, Numbers, Table, wilson
from recsys.data.profile.distributions import QUANTILES, from_axis
from recsys.pages import render
from recsys.pages.charts.axes import Axis
from recsys.pages.charts.bars import Part, Stack, bar, colour, lying, thin_bars
from recsys.pages.charts.plots import PLOT_WIDTH, Dot, dots, dots_in_cell, histogram
from recsys.pages.elements import number, seconds, share, size
from recsys.pages.page_table import Cell, Cells, Column, PageTable, Paint, columns, cut

REASONS, EXAMPLES = 12, 10  # bad rows that are shown
SUSPECT = 0.5  # information value above which a feature may contain the label

CURVE_PIXELS = 180  # of the coverage curve, in pixels
PAGE = 1184  # width of the page in pixels
Titled = tuple[str, str, PageTable]  # title, small text behind it, cells
SPLIT_PAINTS = [Paint(s, f"var(--c{i})") for i, s in enumerate(SPLITS)]
NAMES = {"day_of_week": list(calendar.day_abbr), "month": list(calendar.month_abbr)[1:]}


def page(profile: DataProfile, info: Mapping[str, Any], bad: Path) -> str:
    """Return the page.

    Args:
        info: the content of prepared.json.
        bad: the file of bad rows, which may be missing.
    """
    return render(
        "data/profile/profile_page.html",
        title=f"Data profile: {info['name']}",
        root=str(info["root"]),
        split=info["split"],
        facts=_facts(profile, info),
        splits=_splits(profile),
        bad=_bad_rows(bad) if info["bad_rows"] and bad.exists() else None,
        bad_count=info["bad_rows"],
        bad_file=bad.name,
        summary=_summary(profile),
        tables=all_tables(profile),
        features=[feature_section(f, profile) for f in profile.features],
    )


def _facts(profile: DataProfile, info: Mapping[str, Any]) -> list[tuple[str, str]]:
    rows, bad = profile.rows, info["bad_rows"]
    large = sum(f.worst is not None and f.worst.reading == "large" for f in profile.features)
    table_rows = sum(t.rows for t in profile.tables)
    positive = share(profile.positives[0] / rows[0] if rows[0] else None)
    return [
        (f"{sum(rows):,}", "rows"),
        *([(positive, "of training rows are positive")] if profile.labelled else []),
        (f"{bad:,}", f"bad rows, {share(bad / (sum(rows) + bad))} of all" if bad else "bad rows"),
        (f"{len(profile.features)}", "columns that features read"),
        (f"{large}", "of them with a large drift between splits"),
        (f"{table_rows:,}", f"table rows, {size(table_rows * 64)} at dim 16"),
    ]


def _splits(profile: DataProfile) -> PageTable:
    total, base = sum(profile.rows) or 1, profile.positives[0] / max(profile.rows[0], 1)
    rates = [p / n for p, n in zip(profile.positives, profile.rows, strict=True) if n]
    top = min(max([r * 1.25 for r in rates] or [1.0]), 1.0) or 1.0
    rows: list[Cells] = []
    for paint, n, p in zip(SPLIT_PAINTS, profile.rows, profile.positives, strict=True):
        part = bar([Part(n / total, paint.colour)])
        positive = [f"{p:,}", share(p / n) if n else "–", rate_interval(p, n, base, top)] if profile.labelled else []
        rows.append([Cell(paint.name, mark=paint.colour), f"{n:,}", share(n / total), part, *positive])
    heads = columns(("split", "rows", "share", ""), left=("split", ""))
    if profile.labelled:
        heads += [*columns(("positive", "rate")), Column("95 % interval", True, "the dashed line: training")]
    return PageTable(heads, rows)


def _bad_rows(path: Path) -> tuple[PageTable, PageTable]:
    """Return the reasons, each with its count and first row, and some rows. They are streamed, as they may be many."""
    scan = pl.scan_csv(path, infer_schema=False, glob=False)
    counts = scan.group_by("reason").agg(pl.len().alias("count"), pl.col("file", "line", "text").first())
    reasons = counts.sort(["count", "reason"], descending=[True, False]).head(REASONS).collect(engine="streaming")
    left = ("reason", "file", "text")
    counted = [[cut(r["reason"], 80), f"{r['count']:,}", *_place(r)] for r in reasons.iter_rows(named=True)]
    some = [[cut(r["reason"], 80), *_place(r)] for r in scan.head(EXAMPLES).collect().iter_rows(named=True)]
    first = PageTable(columns(("reason", "rows", "file", "line", "text"), left), counted)
    return first, PageTable(columns(("reason", "file", "line", "text"), left), some)


def _place(row: dict[str, str | None]) -> Cells:
    file, line, text = (row[k] or "" for k in ("file", "line", "text"))
    return [cut(file.rpartition("/")[2]), line, cut(text, 90, "code")]


def _summary(profile: DataProfile) -> PageTable:
    """Return a sortable table of all features, those with the largest drift first."""
    table_rows = {t.name: t.rows for t in profile.tables}
    order = sorted(enumerate(profile.features), key=lambda f: -(f[1].worst.psi if f[1].worst else -1))
    rows: list[Cells] = []
    for i, f in order:
        missing, table_size = f.missing[0], table_rows.get(f.table or "")
        drifts = [
            Cell("–", sort=-1) if d is None else Cell(chip=f"{d.psi:.3f}", chip_kind=d.reading, sort=d.psi)
            for d in f.drift
        ]
        value = Cell(f"{f.iv:.3f}", "bad" if f.iv > SUSPECT else "", sort=f.iv)
        rows.append(
            [
                Cell(f"{i + 1}", sort=i),
                Cell(f.name, link=f"f-{i}"),
                Cell(f.kind, "kind"),
                _sortable(missing, share(missing)),
                bar([Part(missing or 0.0, "var(--other)")], 48),
                _sortable(f.distinct, f"{'' if f.exact else '≈ '}{f.distinct:,}"),
                *(_sortable(o, share(o)) for o in f.oov or (None, None)),
                *drifts,
                *([value] if profile.labelled else []),
                _sortable(table_size, "–" if table_size is None else f"{table_size:,}"),
            ]
        )
    information = Column("information value", tooltip="how well the feature predicts the label by itself")
    heads = [
        Column("#", tooltip="as in the config"),
        Column("column", left=True),
        Column("type", left=True),
        Column("missing", tooltip="share of training rows"),
        Column("", left=True),
        Column("distinct", tooltip="in training"),
        *(Column(f"unknown, {s}", tooltip="share of lookups out of vocabulary") for s in SPLITS[1:]),
        *(Column(f"drift, {s}", tooltip="population stability index, from training") for s in SPLITS[1:]),
        *([information] if profile.labelled else []),
        Column("table rows"),
    ]
    return PageTable(heads, rows, kind="sortable", first=len(rows))


def _sortable(value: float | None, shown: str) -> Cell:
    return Cell(shown, sort=-1 if value is None else value)


# --- a feature ---------------------------------------------------------------------------------------


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
        kinds.append("best" if t.encoder.vocabulary is not None and least == t.min_count else "")
    heads = [
        Column("min_count"),
        Column("rows", tooltip="of the table"),
        Column("", left=True),
        *(Column(f"at dim {d}") for d in DIMS),
        Column("covered", tooltip="share of training lookups whose value has a row of its own"),
    ]
    shared = ", ".join(x for x in t.features if x != f.name)
    hashed = ""
    if (used := t.used) is not None:
        shared_buckets = share(1 - used / t.distinct if t.distinct else 0.0)
        hashed = (
            f"Hashed: {t.distinct:,} training values fall into {used:,} of {t.rows - 1:,} buckets, {shared_buckets} of "
            "them share a bucket with another value. The table below shows a vocabulary instead."
        )
    sizes = PageTable(heads, rows, kinds)
    return {
        "table": t,
        "shared": shared,
        "hashed": hashed,
        "sizes": sizes,
        "curve": _coverage(t),
        "chosen": t.encoder.vocabulary is not None,
    }


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
        chosen = r["min_count"] == t.min_count and t.encoder.vocabulary is not None
        rings.append(Dot(r["covered"], "var(--c2)", tip, place=values, hollow=not chosen))
    curve = [(float(n), float(part)) for n, part in zip(counts, covered, strict=True)]
    top = log10(max(int(counts[-1]), 2))
    powers = [10**k for k in range(int(top) + 1)]
    x = Axis(0, top, 40, PLOT_WIDTH - 20, log=True, marks=powers, text="{:,.0f}".format)
    y = Axis(0, 1, CURVE_PIXELS - 22, 8, marks=(0.0, 0.5, 1.0), text="{:.0%}".format)
    return dots(rings, x, y, curve=curve, size=(PLOT_WIDTH, CURVE_PIXELS))


def all_tables(profile: DataProfile) -> dict[str, Any] | None:
    """Return the sizes of all tables with the config's thresholds."""
    order = sorted(profile.tables, key=lambda t: -t.rows)
    if not order:
        return None
    rows: list[Cells] = []
    for i, t in enumerate(order):
        least = str(t.min_count) if t.encoder.vocabulary is not None else ""
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


def cell_table(frame: pl.DataFrame, what: str, rows: str, base: float, *, labelled: bool) -> PageTable:
    """Return a table of cells.

    Args:
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


def feature_section(f: FeatureProfile, profile: DataProfile) -> dict[str, Any]:
    """Return the values that the template shows of a feature."""
    base = profile.positives[0] / profile.rows[0] if profile.rows[0] else 0.0
    table = next((t for t in profile.tables if t.name == f.table), None)
    drifts = [(s, f"{d.psi:.3f}", d.reading) for s, d in zip(SPLITS[1:], f.drift, strict=True) if d is not None]
    facts = [f"reads {f.reads}"] if f.reads != f.name else []
    facts += [f.encoding] if f.encoding else []
    spans = None
    if f.numbers is not None:  # the quantiles, the mean and the share of missing values of each split
        to_text = seconds if f.is_time else number
        shares = [q for q in QUANTILES if not f.is_time or 0.1 < q < 0.9]
        names = ["min", *(f"{q:.0%}" for q in shares), "max", *(() if f.is_time else ("mean", "std"))]
        rows: list[Cells] = []
        for split, span, missing in zip(SPLITS, f.numbers.spans, f.missing, strict=True):
            if missing is not None:
                rows.append([split, *(to_text(span[name]) if span else "–" for name in names), share(missing)])
        heads = ["median" if name == "50%" else name.replace("%", " %") for name in names]
        spans = PageTable(columns(["", *heads, "missing"], left=("",)), rows)
    return {
        "name": f.name,
        "kind": f.kind,
        "drifts": drifts,
        "facts": [*facts, f"{'' if f.exact else 'about '}{f.distinct:,} distinct in training"],
        "spans": spans,
        "cells": _cells(f, base, labelled=profile.labelled),
        "histogram": _histogram(f.numbers, time=f.is_time) if f.numbers is not None else None,
        "sizes": table_sizes(table, f)
        if table is not None and table.thresholds is not None and table.lookups
        else None,
        "parts": bool(f.parts),
    }


def _cells(f: FeatureProfile, base: float, *, labelled: bool) -> list[Titled]:
    what = "value" if f.numbers is None else "time" if f.is_time else "range"
    lookups, positives = int(f.cells["train"].sum()), int(f.cells["positives"].sum())
    own = positives / lookups if lookups else base  # over the cells' rows, which for bags are lookups
    title, small = _title(f)
    rows = "rows" if f.lengths is None else "lookups"
    shown = [(title, small, cell_table(f.cells, what, rows, own, labelled=labelled))]
    if f.lengths is not None:
        shown.append(("Values per row", "", cell_table(f.lengths, "values", "rows", base, labelled=labelled)))
    for part, frame in f.parts.items():
        name = part.replace("_", " ")
        named = frame.with_columns(pl.col("label").replace({str(i): n for i, n in enumerate(NAMES.get(part, []))}))
        shown.append((f"By {name}", "", cell_table(named, name, "rows", base, labelled=labelled)))
    return shown


def _title(f: FeatureProfile) -> tuple[str, str]:
    if f.numbers is None:
        rest = any(f.cells["special"] & (f.cells["label"] != ""))
        return ("The most frequent values" if rest else "By value"), ""
    if not any(c in label for label in f.cells["label"] for c in "≤>"):
        return "By value", ""
    small = f"; from {f.numbers.sampled:,} sampled rows" if f.numbers.sampled < f.numbers.seen else ""
    return f"By tenths of the training {'rows' if f.lengths is None else 'lookups'}", small


def _histogram(n: Numbers, *, time: bool) -> dict[str, Any] | None:
    h = n.histogram
    if h is None:
        return None
    scale = "; the axis is logarithmic" if h.unit else ""
    sampled = f"; {n.sampled:,} rows sampled from {n.seen:,}" if n.sampled < n.seen else ""
    # densities, since bins of whole numbers differ in width: training filled, the other splits as outlines
    to_text = seconds if time else number
    edges = [float(x) for x in from_axis(h.edges, h.unit)]
    shares = h.counts / np.maximum(h.counts.sum(axis=1, keepdims=True), 1)
    density = shares / np.diff(h.edges)
    splits = [k for k, counts in enumerate(h.counts) if counts.any() or not k]
    tips = []
    for i in range(len(edges) - 1):
        parts = [f"\n{SPLITS[k]}: {share(shares[k, i])}" for k in splits if h.counts[k].any()]
        tips.append(f"{to_text(edges[i])} – {to_text(edges[i + 1])}{''.join(parts)}")
    marks = tuple(np.linspace(edges[0], edges[-1], 4)) if time else ()
    x = Axis(float(h.edges[0]), float(h.edges[-1]), 0, PLOT_WIDTH, unit=h.unit, marks=marks, text=to_text)
    heights = (density / (density.max() or 1))[splits].tolist()
    return {
        "of": "times" if time else "numbers",
        "small": scale + sampled,
        "legend": [p for p, counts in zip(SPLIT_PAINTS, h.counts, strict=True) if counts.any()],
        "chart": histogram(edges, heights, [SPLIT_PAINTS[k] for k in splits], tips, x, 180),
    }
