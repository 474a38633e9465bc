"""The section of a feature: its description, charts and cells."""

import calendar
from typing import Any

import numpy as np
import polars as pl

from recsys.data.prepare.split import SPLITS
from recsys.data.profile.cell_table import SPLIT_PAINTS, cell_table
from recsys.data.profile.data_profile import DataProfile, FeatureProfile, Numbers
from recsys.data.profile.distributions import QUANTILES, from_axis
from recsys.data.profile.table_sizes import table_sizes
from recsys.pages.charts.axes import Axis
from recsys.pages.charts.plots import WIDE, histogram
from recsys.pages.formatting import number, seconds, share
from recsys.pages.page_table import Cells, PageTable, columns

NAMES = {"day_of_week": list(calendar.day_abbr), "month": list(calendar.month_abbr)[1:]}
Titled = tuple[str, str, PageTable]  # title, small text behind it, cells


def feature_section(f: FeatureProfile, profile: DataProfile) -> dict[str, Any]:
    """Return the values that the template shows of a feature."""
    base = profile.positives[0] / profile.rows[0] if profile.rows[0] else 0.0
    table = next((t for t in profile.tables if t.name == f.table), None)
    drifts = [(s, f"{d.psi:.3f}", d.reading) for s, d in zip(SPLITS[1:], f.drift, strict=True) if d is not None]
    facts = [f"reads {f.reads}"] if f.reads != f.name else []
    facts += [f.encoding] if f.encoding else []
    return {
        "name": f.name,
        "kind": f.kind,
        "drifts": drifts,
        "facts": [*facts, f"{'' if f.exact else 'about '}{f.distinct:,} distinct in training"],
        "spans": None if f.numbers is None else _spans(f, f.numbers),
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


def _spans(f: FeatureProfile, n: Numbers) -> PageTable:
    """Return a table with the quantiles, the mean and the share of missing values of each split."""
    time = f.is_time
    to_text = seconds if time else number
    shares = [q for q in QUANTILES if not time or 0.1 < q < 0.9]
    names = ["min", *(f"{q:.0%}" for q in shares), "max", *(() if time else ("mean", "std"))]
    rows: list[Cells] = []
    for split, span, missing in zip(SPLITS, n.spans, f.missing, strict=True):
        if missing is not None:
            rows.append([split, *(to_text(span[name]) if span else "–" for name in names), share(missing)])
    heads = ["median" if name == "50%" else name.replace("%", " %") for name in names]
    return PageTable(columns(["", *heads, "missing"], left=("",)), rows)


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
    x = Axis(float(h.edges[0]), float(h.edges[-1]), 0, WIDE, unit=h.unit, marks=marks, text=to_text)
    heights = (density / (density.max() or 1))[splits].tolist()
    return {
        "of": "times" if time else "numbers",
        "small": scale + sampled,
        "legend": [p for p, counts in zip(SPLIT_PAINTS, h.counts, strict=True) if counts.any()],
        "chart": histogram(edges, heights, [SPLIT_PAINTS[k] for k in splits], tips, x, 180),
    }
