"""Sections of the page: a feature, and the bad rows."""

import calendar
from html import escape

import polars as pl

from recsys.data.prepare.split import SPLITS
from recsys.data.profile import profile_charts
from recsys.data.profile.data_profile import DataProfile, FeatureProfile, Numbers
from recsys.data.profile.distributions import QUANTILES
from recsys.data.profile.html_cells import cells
from recsys.data.profile.table_sizes import thresholds
from recsys.pages.formatting import html, number, seconds, share
from recsys.pages.sortable_tables import Column, table

NAMES = {"day_of_week": list(calendar.day_abbr), "month": list(calendar.month_abbr)[1:]}


def feature(f: FeatureProfile, at: int, profile: DataProfile) -> str:
    """Return the folded section of the feature with index `at`: its description, charts and cells."""
    base = profile.positives[0] / profile.rows[0] if profile.rows[0] else 0.0
    table_ = next((t for t in profile.tables if t.name == f.table), None)
    facts = [f"reads {escape(f.reads)}" if f.reads != f.name else "", escape(f.encoding)]
    facts.append(f"{'' if f.exact else 'about '}{f.distinct:,} distinct in training")
    parts = [f"<p>{'; '.join(x for x in facts if x)}.</p>", _spans(f, f.numbers) if f.numbers is not None else ""]
    rows = "lookups" if f.lengths is not None else "rows"
    what = "value" if f.numbers is None else "time" if f.kind == "time" else "range"
    left = f"<h4>{_title(f)}</h4>{cells(f.cells, what, rows, _base(f, base))}"
    if f.lengths is not None:
        left += f"<h4>Values per row</h4>{cells(f.lengths, 'values', 'rows', base)}"
    right = _histogram(f.numbers, time=f.kind == "time") if f.numbers is not None else ""
    if f.parts:
        left, right = right + left + "".join(_part(p, frame, base) for p, frame in f.parts.items()), ""
    if table_ is not None and table_.thresholds is not None and table_.lookups:
        right += thresholds(table_, f)
    parts.append(f'<div class="two"><div>{left}</div><div>{right}</div></div>' if right else left)
    return (
        f'<details class="feature" id="f-{at}"><summary><b>{escape(f.name)}</b><span class="kind">{escape(f.kind)}'
        f"</span>{_drift(f)}</summary>{''.join(parts)}</details>"
    )


def _base(f: FeatureProfile, base: float) -> float:
    """Return the rate of positives over the cells' rows, which for bags are lookups; `base` if there are none."""
    lookups = int(f.cells["train"].sum())
    return int(f.cells["positives"].sum()) / lookups if lookups else base


def _title(f: FeatureProfile) -> str:
    if f.numbers is None:
        return "The most frequent values" if any(f.cells["special"] & (f.cells["label"] != "")) else "By value"
    few = not any(c in label for label in f.cells["label"] for c in "≤>")
    if few:
        return "By value"
    sampled = f"<small>; from {f.numbers.sampled:,} sampled rows</small>" if f.numbers.sampled < f.numbers.seen else ""
    return f"By tenths of the training {'rows' if f.lengths is None else 'lookups'}{sampled}"


def chip(psi: float, reading: str) -> str:
    return f'<span class="chip {reading}">{psi:.3f}</span>'


def _drift(f: FeatureProfile) -> str:
    chips = [f"{s} {chip(d.psi, d.reading)}" for s, d in zip(SPLITS[1:], f.drift, strict=True) if d is not None]
    return f'<span class="drifts">drift: {" ".join(chips)}</span>' if chips else ""


def _spans(f: FeatureProfile, n: Numbers) -> str:
    """Return a table with the quantiles, the mean and the share of missing values of each split."""
    time = f.kind == "time"
    to_text = seconds if time else number
    shares = [q for q in QUANTILES if not time or 0.1 < q < 0.9]
    names = ("min", *(f"{q:.0%}" for q in shares), "max", *(() if time else ("mean", "std")))
    lines = []
    for split, span, missing in zip(SPLITS, n.spans, f.missing, strict=True):
        if missing is not None:
            values = [to_text(span[name]) if span else "–" for name in names]
            lines.append([split, *(escape(v) for v in values), share(missing)])
    shown = {"50%": "median"}
    columns = [
        Column("", left=True),
        *(Column(shown.get(x, x.replace("%", " %"))) for x in names),
        Column("missing"),
    ]
    return table(columns, lines)


def _part(part: str, frame: pl.DataFrame, base: float) -> str:
    """Return the cells of a part of times: hours by number, days and months by name."""
    name = part.replace("_", " ")
    if part in NAMES:
        named = pl.col("label").replace({str(i): short for i, short in enumerate(NAMES[part])})
        frame = frame.with_columns(named)
    return f"<h4>By {escape(name)}</h4>{cells(frame, name, 'rows', base)}"


def _histogram(n: Numbers, *, time: bool) -> str:
    if n.histogram is None:
        return ""
    splits = [s for i, s in enumerate(SPLITS) if n.histogram.counts[i].any()]
    scale = "; the axis is logarithmic" if n.histogram.unit else ""
    sampled = f"; {n.sampled:,} rows sampled from {n.seen:,}" if n.sampled < n.seen else ""
    title = f"<h4>Distribution of raw {'times' if time else 'numbers'}<small>{scale}{sampled}</small></h4>"
    return title + profile_charts.legend(splits) + profile_charts.histogram(n.histogram, time=time)


def bad_rows(reasons: pl.DataFrame, examples: pl.DataFrame) -> str:
    """Return a table of reasons, each with its count and first row, and a folded table of some rows.

    Args:
        reasons: reason, count, and file, line, text of the first row.
        examples: reason, file, line, text.
    """
    where = [Column("file", left=True), Column("line"), Column("text", left=True)]
    counted = [[html(r["reason"], 80), f"{r['count']:,}", *_place(r)] for r in reasons.iter_rows(named=True)]
    some = [[html(r["reason"], 80), *_place(r)] for r in examples.iter_rows(named=True)]
    first = table([Column("reason", left=True), *where], some)
    return (
        table([Column("reason", left=True), Column("rows"), *where], counted)
        + f"<details><summary>the first {len(some)}</summary>{first}</details>"
    )


def _place(row: dict[str, str | None]) -> list[str]:
    file, line, text = (row[k] or "" for k in ("file", "line", "text"))
    return [html(file.rpartition("/")[2]), escape(line), f"<code>{html(text, 90)}</code>"]
