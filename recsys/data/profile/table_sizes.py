"""Sections of the page: the sizes of tables, with the config's threshold of frequency and with others."""

from html import escape

from recsys.data.profile import profile_charts
from recsys.data.profile.data_profile import DIMS, DataProfile, FeatureProfile, Table
from recsys.pages.formatting import share, size
from recsys.pages.sortable_tables import Column, table

SHOWN = 40  # tables shown; the rest is folded


def thresholds(t: Table, f: FeatureProfile) -> str:
    """Return the sizes of a feature's table with different thresholds."""
    assert t.thresholds is not None
    shared = [x for x in t.features if x != f.name]
    which = f" of table {escape(t.name)}, shared with {escape(', '.join(shared))}" if shared else ""
    note = f"<p>{escape(_hashed(t))}</p>" if t.encode == "hash" else ""
    largest = int(t.thresholds["rows"].max())  # type: ignore[arg-type]
    lines, kinds = [], []
    for r in t.thresholds.iter_rows(named=True):
        own = t.encode == "vocabulary" and r["min_count"] == t.min_count
        lines.append([
            "0, 1" if r["min_count"] == 1 else str(r["min_count"]),
            f"{r['rows']:,}",
            profile_charts.bar(r["rows"] / largest, "var(--c3)", 44),
            *(size(r["rows"] * dim * 4) for dim in DIMS),
            share(r["covered"]),
        ])  # fmt: skip
        kinds.append("best" if own else "")
    columns = [
        Column("min_count"), Column("rows", tooltip="of the table"), Column("", left=True),
        *(Column(f"at dim {d}") for d in DIMS),
        Column("covered", tooltip="share of training lookups whose value has a row of its own"),
    ]  # fmt: skip
    curve = ""
    if t.coverage is not None:
        curve = (
            "<h4>Coverage by the most frequent values<small>; share of training lookups by number of values, "
            f"logarithmic; rings: the thresholds above</small></h4>{profile_charts.coverage(t)}"
        )
    own = " (bold: the config's)" if t.encode == "vocabulary" else ""
    title = f"<h4>Sizes by threshold of frequency{which}<small>{own}</small></h4>"
    return f"{title}{note}{table(columns, lines, kinds)}{curve}"


def _hashed(t: Table) -> str:
    shared = 1 - (t.used or 0) / t.distinct if t.distinct else 0.0
    return (
        f"Hashed: {t.distinct:,} training values fall into {t.used or 0:,} of {t.rows - 1:,} buckets, "
        f"{share(shared)} of them share a bucket with another value. The table below shows a vocabulary instead."
    )


def table_section(profile: DataProfile) -> str:
    """Return the sizes of all tables with the config's thresholds."""
    order = sorted(profile.tables, key=lambda t: -t.rows)
    if not order:
        return ""
    whole, largest = sum(t.rows for t in order), order[0].rows
    lines = []
    for i, t in enumerate(order):
        mark = f'<i style="background:{profile_charts.colour(i)}"></i>'
        lines.append([
            f"{mark}{escape(t.name)}", t.encode,
            "" if t.encode != "vocabulary" else str(t.min_count), f"{t.distinct:,}", f"{t.rows:,}",
            profile_charts.bar(t.rows / largest, profile_charts.colour(i)), *(size(t.rows * d * 4) for d in DIMS),
            escape(_features(t)),
        ])  # fmt: skip
    columns = [
        Column("table", left=True), Column("encode", left=True), Column("min_count"),
        Column("distinct"), Column("rows"), Column("", left=True), *(Column(f"at dim {d}") for d in DIMS),
        Column("shared by" if any(_features(t) for t in order) else "", left=True),
    ]  # fmt: skip
    total = ", ".join(f"{size(whole * d * 4)} at dim {d}" for d in DIMS)
    many = f"{len(order)} tables" if len(order) > 1 else "one table"
    head = (
        f"<h2>Tables</h2><p>With this config: {whole:,} rows in {many}; {total} (weights only: rows × dim × 4 bytes, "
        "float32). Row 0 of each table is for values that are rare or were never seen.</p>"
    )
    rest = ""
    if len(lines) > SHOWN + 8:
        rest = f"<details><summary>{len(lines) - SHOWN} more</summary>{table(columns, lines[SHOWN:])}</details>"
        lines = lines[:SHOWN]
    return head + profile_charts.strip(order) + table(columns, lines) + rest


def _features(t: Table) -> str:
    return "" if t.features == (t.name,) else ", ".join(t.features)
