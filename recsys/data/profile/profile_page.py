"""A look at the data as one HTML page that needs no other file."""

from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

import polars as pl

from recsys.data.prepare.split import SPLITS
from recsys.data.profile import charts as pictures
from recsys.data.profile.data_profile import Feature, Found
from recsys.data.profile.drift import Drift
from recsys.data.profile.sections import bad_rows, chip, feature
from recsys.data.profile.table_sizes import table_section
from recsys.html import document, footer
from recsys.html.sortable_tables import Column, table
from recsys.html.text import html, share, size

REASONS, EXAMPLES = 12, 10  # of bad rows that are shown
FORMULAS = (
    "Drift: the population stability index, PSI = Σ (p − q) ln(p / q), of the shares p of training and q of validation "
    "or test rows by cell: tenths of the training rows for numbers, the 20 most frequent values and all others for "
    "values (lookups, of bags), parts for times; missing ones are a cell. Shares below 0.0001 count as 0.0001. Usual "
    "reading: below 0.1 stable, to 0.25 some, above large (Siddiqi 2006, Credit Risk Scorecards). It is taken for "
    "stable, too, where it is below what 95 % of draws without drift give: (1/n + 1/m) χ² of cells − 1 degrees of "
    "freedom, for n and m rows (Yurdakul 2018).",
    "Information value: the same sum between positive and negative training rows, by the same cells. Below 0.02 a "
    "feature by itself tells little, above 0.3 much; above 0.5 look whether it knows the label (Siddiqi 2006).",
    "Out of vocabulary: share of lookups whose value has no row of its own, being rarer than min_count in training or "
    "not in it. Of encodings by count or target: values not in training. Hashed features have none.",
    "Rates are of training rows, with Wilson's 95 % interval; of bags, of lookups. Values, missing ones, min, max, "
    "mean and std are of all rows. Quantiles, histograms and ranges are of all rows up to 262,144 a split, else of as "
    "many, chosen by a hash of their place (fewer where there are more than 64 columns of numbers). Distinct numbers "
    "above 16,384 are estimated (standard error 0.8 %).",
    "Bytes: rows × dim × 4 (float32), without the optimizer's state. A table of min_count has one row for each value "
    "at least as frequent in training, and row 0 for all others.",
)


def page(found: Found, info: Mapping[str, Any], bad: Path) -> str:
    """info: of prepared.json; bad: the file of bad rows, which need not be there."""
    title = f"A look at {info['name']}"
    parts = [
        f"<h1>{escape(title)}</h1><p>{html(str(info['root']), 120)}; split {escape(info['split'])}</p>",
        _cards(found, info),
        _splits(found),
        _bad(info, bad),
        _summary(found),
        table_section(found),
        '<h2>Each feature<button id="all" type="button">open all</button></h2>',
        *(feature(f, i, found) for i, f in enumerate(found.features)),
    ]
    body = "\n".join(p for p in parts if p) + "\n" + footer("", FORMULAS)
    return document(title, body, Path(__file__).parent, "" if found.labelled else "unlabelled")


def _cards(found: Found, info: Mapping[str, Any]) -> str:
    rows, whole = found.rows, sum(t.rows for t in found.tables)
    large = sum(f.worst is not None and f.worst.reading == "large" for f in found.features)
    total = sum(rows) + info["bad_rows"]
    cards = [
        (f"{sum(rows):,}", "rows"),
        (share(found.positives[0] / rows[0] if rows[0] else None), "of training rows are positive"),
        (f"{info['bad_rows']:,}", f"bad rows, {share(info['bad_rows'] / total if total else 0.0)}"),
        (f"{len(found.features)}", "columns that features read"),
        (f"{large}", "of them drift much between splits"),
        (f"{whole:,}", f"table rows, {size(whole * 64)} at dim 16"),
    ]
    inside = "".join(f"<div><b>{escape(b)}</b><span>{escape(s)}</span></div>" for b, s in cards)
    return f'<div class="cards">{inside}</div>'


def _splits(found: Found) -> str:
    total, base = sum(found.rows) or 1, found.positives[0] / max(found.rows[0], 1)
    rates = [p / n for p, n in zip(found.positives, found.rows, strict=True) if n]
    top = min(max([r * 1.25 for r in rates] or [1.0]), 1.0) or 1.0
    lines = []
    for s, n, p in zip(SPLITS, found.rows, found.positives, strict=True):
        mark = f'<i style="background:{pictures.COLOURS[s]}"></i>{s}'
        positive = share(p / n) if n else "–"
        part = pictures.bar(n / total, pictures.COLOURS[s])
        lines.append([mark, f"{n:,}", share(n / total), part, f"{p:,}", positive, pictures.rate(p, n, base, top)])
    columns = [
        Column("split", left=True), Column("rows"), Column("share"), Column("", left=True), Column("positive"),
        Column("rate"), Column("95 % interval", left=True, told="the dashed line: training"),
    ]  # fmt: skip
    return f"<h2>Splits</h2>{table(columns, lines, cls='splits')}"


def _bad(info: Mapping[str, Any], path: Path) -> str:
    """Counted by streaming: a share of a terabyte's rows may be bad."""
    if not info["bad_rows"] or not path.exists():
        return ""
    scan = pl.scan_csv(path, infer_schema=False)
    counts = scan.group_by("reason").agg(pl.len().alias("count"), pl.col("file", "line", "text").first())
    reasons = counts.sort(["count", "reason"], descending=[True, False])
    counted = reasons.head(REASONS).collect(engine="streaming")
    told = f"{info['bad_rows']:,} rows could not be read and are in none of the numbers here; all lie in {path.name}."
    return f"<h2>Bad rows</h2><p>{escape(told)}</p>{bad_rows(counted, scan.head(EXAMPLES).collect())}"


def _summary(found: Found) -> str:
    """All features, those that drift most first; a click on a head sorts."""
    rows = {t.name: t.rows for t in found.tables}
    order = sorted(enumerate(found.features), key=lambda f: -(f[1].worst.psi if f[1].worst else -1))
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
        Column("#", told="as in the config"), Column("column", left=True), Column("type", left=True),
        Column("missing", told="share of training rows"), Column("", left=True), Column("distinct", told="in training"),
        *(Column(f"unknown, {s}", told="share of lookups out of vocabulary") for s in SPLITS[1:]),
        *(Column(f"drift, {s}", told="population stability index, from training") for s in SPLITS[1:]),
        Column("inf. value", told="information value: how much the feature tells of the label by itself"),
        Column("table rows"),
    ]  # fmt: skip
    told = (
        "Those that drift most between the splits come first; a click on a head sorts. "
        '<span class="chip stable">stable</span> <span class="chip some">some drift</span> '
        '<span class="chip large">large drift</span>'
    )
    return f"<h2>Features</h2><p>{told}</p>{table(columns, lines, cls='sortable')}"


def _missing(f: Feature) -> tuple[str, str]:
    part = f.missing[0]
    return _sortable(part, share(part)), f'<td class="l">{pictures.bar(part or 0.0, "var(--other)", 48)}</td>'


def _drift(d: Drift | None) -> str:
    return _sortable(None if d is None else d.psi, "–" if d is None else chip(d.psi, d.reading))


def _sortable(value: float | None, shown: str) -> str:
    return f'<td data-v="{-1 if value is None else value}">{shown}</td>'
