"""Show a data profile as one HTML page that needs no other file."""

from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

import polars as pl

from recsys.data.prepare.split import SPLITS
from recsys.data.profile import profile_charts
from recsys.data.profile.data_profile import DataProfile, FeatureProfile
from recsys.data.profile.drift import Drift
from recsys.data.profile.feature_sections import bad_rows, chip, feature
from recsys.data.profile.table_sizes import table_section
from recsys.pages import document, footer
from recsys.pages.formatting import html, share, size
from recsys.pages.sortable_tables import Column, table

REASONS, EXAMPLES = 12, 10  # bad rows that are shown
FORMULAS = (
    "Drift: the population stability index, PSI = Σ (p − q) ln(p / q), where p and q are the shares of training rows "
    "and of validation or test rows in each cell. Cells are tenths of the training rows for numbers; the 20 most "
    "frequent values, and all others together, for values (bags: lookups); parts for times. Missing values are a cell. "
    "Shares below 0.0001 count as 0.0001. Usual interpretation: below 0.1 stable, 0.1 to 0.25 some drift, above 0.25 "
    "large drift (Siddiqi 2006, Credit Risk Scorecards). A drift also counts as stable below the 95 % quantile "
    "without drift: (1/n + 1/m) χ² with cells − 1 degrees of freedom, for n and m rows (Yurdakul 2018).",
    "Information value: the same sum between positive and negative training rows, over the same cells. Below 0.02 a "
    "feature by itself predicts little, above 0.3 much; above 0.5, check whether it contains the label (Siddiqi 2006).",
    "Out of vocabulary: the share of lookups whose value has no row of its own, because it is rarer than min_count in "
    "training or not in training at all. For count and target encodings: values not in training. Hashed features have "
    "none.",
    "Rates are computed over training rows (bags: lookups), with Wilson's 95 % interval. Counts of values and of "
    "missing values, min, max, mean and std are computed over all rows. Quantiles, histograms and ranges are computed "
    "over at most 262,144 rows of each split, sampled by a hash of the row number (fewer with more than 64 columns of "
    "numbers). Above 16,384, the number of distinct numbers is an estimate (standard error 0.8 %).",
    "Bytes: rows × dim × 4 (float32), without the optimizer's state. A vocabulary's table has one row for each value "
    "with at least min_count training lookups, and row 0 for all others.",
)


def page(profile: DataProfile, info: Mapping[str, Any], bad: Path) -> str:
    """Return the page.

    Args:
        profile: the data profile.
        info: the content of prepared.json.
        bad: the file of bad rows, which may be missing.
    """
    title = f"Data profile: {info['name']}"
    parts = [
        f"<h1>{escape(title)}</h1><p>{html(str(info['root']), 120)}; split {escape(info['split'])}</p>",
        _cards(profile, info),
        _splits(profile),
        _bad(info, bad),
        _summary(profile),
        table_section(profile),
        '<h2>Each feature<button id="all" type="button">expand all</button></h2>',
        *(feature(f, i, profile) for i, f in enumerate(profile.features)),
    ]
    body = "\n".join(p for p in parts if p) + "\n" + footer("", FORMULAS)
    return document(title, body, Path(__file__).parent, "" if profile.labelled else "unlabelled")


def _cards(profile: DataProfile, info: Mapping[str, Any]) -> str:
    rows, whole = profile.rows, sum(t.rows for t in profile.tables)
    large = sum(f.worst is not None and f.worst.reading == "large" for f in profile.features)
    total = sum(rows) + info["bad_rows"]
    cards = [
        (f"{sum(rows):,}", "rows"),
        (share(profile.positives[0] / rows[0] if rows[0] else None), "of training rows are positive"),
        (f"{info['bad_rows']:,}", f"bad rows, {share(info['bad_rows'] / total if total else 0.0)}"),
        (f"{len(profile.features)}", "columns that features read"),
        (f"{large}", "of them with a large drift between splits"),
        (f"{whole:,}", f"table rows, {size(whole * 64)} at dim 16"),
    ]
    inside = "".join(f"<div><b>{escape(b)}</b><span>{escape(s)}</span></div>" for b, s in cards)
    return f'<div class="cards">{inside}</div>'


def _splits(profile: DataProfile) -> str:
    total, base = sum(profile.rows) or 1, profile.positives[0] / max(profile.rows[0], 1)
    rates = [p / n for p, n in zip(profile.positives, profile.rows, strict=True) if n]
    top = min(max([r * 1.25 for r in rates] or [1.0]), 1.0) or 1.0
    lines = []
    for s, n, p in zip(SPLITS, profile.rows, profile.positives, strict=True):
        mark = f'<i style="background:{profile_charts.COLOURS[s]}"></i>{s}'
        positive = share(p / n) if n else "–"
        part = profile_charts.bar(n / total, profile_charts.COLOURS[s])
        interval = profile_charts.rate_interval(p, n, base, top)
        lines.append([mark, f"{n:,}", share(n / total), part, f"{p:,}", positive, interval])
    columns = [
        Column("split", left=True), Column("rows"), Column("share"), Column("", left=True), Column("positive"),
        Column("rate"), Column("95 % interval", left=True, tooltip="the dashed line: training"),
    ]  # fmt: skip
    return f"<h2>Splits</h2>{table(columns, lines, cls='splits')}"


def _bad(info: Mapping[str, Any], path: Path) -> str:
    """Show the bad rows. They are counted by streaming, because there may be many."""
    if not info["bad_rows"] or not path.exists():
        return ""
    scan = pl.scan_csv(path, infer_schema=False, glob=False)
    counts = scan.group_by("reason").agg(pl.len().alias("count"), pl.col("file", "line", "text").first())
    reasons = counts.sort(["count", "reason"], descending=[True, False])
    counted = reasons.head(REASONS).collect(engine="streaming")
    text = f"{info['bad_rows']:,} rows could not be read and are not counted on this page; {path.name} lists them."
    return f"<h2>Bad rows</h2><p>{escape(text)}</p>{bad_rows(counted, scan.head(EXAMPLES).collect())}"


def _summary(profile: DataProfile) -> str:
    """Return a sortable table of all features, those with the largest drift first."""
    rows = {t.name: t.rows for t in profile.tables}
    order = sorted(enumerate(profile.features), key=lambda f: -(f[1].worst.psi if f[1].worst else -1))
    lines = [
        [
            f'<td data-v="{i}">{i + 1}</td>',
            f'<td class="l"><a href="#f-{i}">{escape(f.name)}</a></td>',
            f'<td class="l"><span class="kind">{escape(f.kind)}</span></td>',
            *_missing(f),
            _sortable(f.distinct, f"{'' if f.exact else '≈ '}{f.distinct:,}"),
            *(_sortable(o, share(o)) for o in f.oov or (None, None)),
            *(_drift(d) for d in f.drift),
            _sortable(f.iv, f'<span class="{"warn" if f.iv > 0.5 else ""}">{f.iv:.3f}</span>'),
            _sortable(rows.get(f.table or ""), f"{rows[f.table]:,}" if f.table in rows else "–"),
        ]
        for i, f in order
    ]
    columns = [
        Column("#", tooltip="as in the config"), Column("column", left=True), Column("type", left=True),
        Column("missing", tooltip="share of training rows"), Column("", left=True),
        Column("distinct", tooltip="in training"),
        *(Column(f"unknown, {s}", tooltip="share of lookups out of vocabulary") for s in SPLITS[1:]),
        *(Column(f"drift, {s}", tooltip="population stability index, from training") for s in SPLITS[1:]),
        Column("inf. value", tooltip="information value: how well the feature predicts the label by itself"),
        Column("table rows"),
    ]  # fmt: skip
    text = (
        "Features with the largest drift between the splits come first; click on a column's head to sort. "
        '<span class="chip stable">stable</span> <span class="chip some">some drift</span> '
        '<span class="chip large">large drift</span>'
    )
    return f"<h2>Features</h2><p>{text}</p>{table(columns, lines, cls='sortable')}"


def _missing(f: FeatureProfile) -> tuple[str, str]:
    part = f.missing[0]
    return _sortable(part, share(part)), f'<td class="l">{profile_charts.bar(part or 0.0, "var(--other)", 48)}</td>'


def _drift(d: Drift | None) -> str:
    return _sortable(None if d is None else d.psi, "–" if d is None else chip(d.psi, d.reading))


def _sortable(value: float | None, shown: str) -> str:
    return f'<td data-v="{-1 if value is None else value}">{shown}</td>'
