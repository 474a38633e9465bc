"""Show a data profile as one HTML page that needs no other file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl

from recsys.data.prepare.split import SPLITS
from recsys.data.profile.data_profile import DataProfile
from recsys.data.profile.feature_section import SPLIT_PAINTS, all_tables, feature_section, rate_interval
from recsys.pages import render
from recsys.pages.charts.bars import Part, bar
from recsys.pages.elements import share, size
from recsys.pages.page_table import Cell, Cells, Column, PageTable, columns, cut

REASONS, EXAMPLES = 12, 10  # bad rows that are shown
SUSPECT = 0.5  # information value above which a feature may contain the label


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
