"""From what a look has gathered to what it says of every feature and table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from recsys.config.schema_data import SparseConfig
from recsys.data.prepare.split import SPLITS
from recsys.data.profile import numbers, values
from recsys.data.profile.data_profile import Feature, Found, Numbers, Table
from recsys.data.profile.drift import Drift, drift, psi
from recsys.data.profile.tallies import TALLY
from recsys.data.transforms import Fitted, dense_columns, is_bag, label_column, sparse_columns
from recsys.data.transforms.encodings import Count, Target
from recsys.data.transforms.hashing import bucket_ids
from recsys.data.transforms.steps import Fill
from recsys.data.transforms.times import WAVES, Cyclic

if TYPE_CHECKING:
    from recsys.data.profile.profiler import Profiler


def found(look: Profiler, fitted: Fitted) -> Found:
    counts = {n: seen.result() for n, seen in look.values.items()}
    samples = {s: sample.result() for s, sample in zip(SPLITS, look.samples, strict=True) if sample.seen}
    empty = next(iter(samples.values())).clear()
    samples = {s: samples.get(s, empty) for s in SPLITS}
    features = [_number(look, n, samples) for n in look.numbers]
    features += [_value(look, fitted, n, c) for n, c in counts.items()]
    order = {n: i for i, n in enumerate([*(c.parsed for c in dense_columns(look.data).values()), *look.data.sparse])}
    features.sort(key=lambda f: order[f.name])
    rows, positives = (tuple(int(n) for n in x) for x in (look.rows, look.positives))
    return Found(rows, positives, features, _tables(fitted, counts), label_column(look.data) is not None)


def _number(look: Profiler, name: str, samples: dict[str, pl.DataFrame]) -> Feature:
    time, sparse = name in look.times, sparse_columns(look.data)
    there = {s: f[name].drop_nulls().to_numpy() for s, f in samples.items()}
    spans: list[dict[str, float] | None] = []
    for s, m in zip(SPLITS, look.moments[name], strict=True):
        spans.append({**m.params(), **numbers.quantiles(there[s])} if m.n else None)
    shown = Numbers(
        spans, numbers.histogram(list(there.values()), time=time), samples["train"].height, look.samples[0].seen
    )
    cells = numbers.cells(samples, name, time=time)
    parts = {part: _ordered(s.result()) for (n, part), s in look.parts.items() if n == name}
    drifts = [_drifts(p) for p in parts.values()] or [_drifts(cells)]  # a model sees the parts, not the time
    of = sparse.get(name)
    return Feature(
        name=name,
        kind="time" if time else "quantiles" if of else "dense",
        reads=(of.column or name) if of else _dense_reads(look, name),
        told=f"{of.quantiles} ranges of equally many training rows" if of else _steps(look, name),
        table=(of.table or name) if of else None,
        missing=_shares(look.missing[name], look.rows),
        distinct=look.distinct[name].count,
        exact=look.distinct[name].exact,
        oov=None,
        cells=cells,
        drift=(_largest([d[0] for d in drifts]), _largest([d[1] for d in drifts])),
        iv=max(_value_of(c) for c in ([*parts.values()] or [cells])),
        numbers=shown,
        parts=parts,
    )


def _value(look: Profiler, fitted: Fitted, name: str, counts: pl.DataFrame) -> Feature:
    c = sparse_columns(look.data).get(name)
    cells = values.cells(counts, look.absent[name])
    table = (c.table or name) if c else None
    inside = counts.filter(pl.col("train") > 0)
    if c is not None and c.encode == "vocabulary":
        inside = values.known(counts, fitted.vocabularies[table or ""])
    if c is None:
        steps = dense_columns(look.data)[name].steps
        kind = "count" if isinstance(steps[0], Count) else "target" if isinstance(steps[0], Target) else "dense"
    else:
        kind = "cross" if c.cross else "bag" if is_bag(c) else "sparse"
    return Feature(
        name=name,
        kind=f"{kind}, hashed" if c and c.encode == "hash" else f"{kind}, id" if c and c.encode == "id" else kind,
        reads=" × ".join(c.cross or [c.column or name]) if c else _dense_reads(look, name),
        told=_encoding(c) if c else _steps(look, name),
        table=table,
        missing=_shares(look.missing[name], look.rows),
        distinct=int((counts["train"] > 0).sum()),
        exact=True,
        oov=None if c and c.encode in ("hash", "id") else values.unknown_share(counts, inside),
        cells=cells,
        drift=_drifts(cells),
        iv=_value_of(cells),
        lengths=_ordered(look.lengths[name].result()) if name in look.lengths else None,
    )


def _tables(fitted: Fitted, counts: dict[str, pl.DataFrame]) -> list[Table]:
    columns, made = sparse_columns(fitted.data), []
    for name, features in fitted.features.tables.items():
        c = columns[features[0].name]
        names = tuple(f.name for f in features)
        if c.encode == "quantiles":
            made.append(Table(name, names, features[0].cardinality, "quantiles", 1, c.quantiles or 0, 0))
            continue
        least = max(columns[n].min_count or 1 for n in names)
        whole = counts[names[0]]
        if len(names) > 1:
            whole = pl.concat(counts[n] for n in names).group_by("value").sum()
        seen = whole.filter(pl.col("train") > 0)["value"]
        used = bucket_ids(seen, c.buckets or 1).n_unique() if c.encode == "hash" else None
        encode = c.encode or "vocabulary"
        made.append(values.table(name, names, features[0].cardinality, encode, least, whole, used))
    return made


def _ordered(counts: pl.DataFrame) -> pl.DataFrame:
    """Cells of small whole numbers, in order: lengths of bags, parts of times. Many share cells by powers of two."""
    label = pl.col("value").cast(pl.String)
    if counts.height > 2 * values.TOP:
        least = 2 ** pl.col("value").clip(1).log(2).floor().cast(pl.Int64)
        counts = counts.with_columns(least.alias("value")).group_by("value").sum()
        label = pl.when(pl.col("value") > 1).then(pl.format("{} – {}", "value", pl.col("value") * 2 - 1))
        label = label.otherwise(pl.lit("0 – 1"))
    return counts.sort("value", nulls_last=True).select(
        label.fill_null("").alias("label"), pl.col("value").is_null().alias("special"), *TALLY
    )


def _drifts(cells: pl.DataFrame) -> tuple[Drift | None, Drift | None]:
    train, validation, test = (cells[s].to_numpy() for s in SPLITS)
    return drift(train, validation), drift(train, test)


def _largest(drifts: list[Drift | None]) -> Drift | None:
    return max((d for d in drifts if d is not None), key=lambda d: d.psi, default=None)


def _value_of(cells: pl.DataFrame) -> float:
    positives = cells["positives"].to_numpy()
    negatives = cells["train"].to_numpy() - positives
    return psi(positives, negatives) if positives.sum() and negatives.sum() else 0.0


def _shares(part: np.ndarray, whole: np.ndarray) -> tuple[float | None, ...]:
    return tuple(float(p / w) if w else None for p, w in zip(part, whole, strict=True))


def _dense_reads(look: Profiler, typed: str) -> str:
    return next(c.column for c in dense_columns(look.data).values() if c.parsed == typed)


def _steps(look: Profiler, typed: str) -> str:
    """What the config does with a dense column, such as: fill 0, log, standardise."""
    mine = [c for c in dense_columns(look.data).values() if c.parsed == typed]
    if isinstance(mine[0].steps[0] if mine[0].steps else None, Cyclic):
        parts = dict.fromkeys(s.part for c in mine for s in c.steps if isinstance(s, Cyclic))
        return f"{', '.join(WAVES)} of {', '.join(parts)}"
    told = [] if mine[0].fill is None else [f"fill {mine[0].fill:g}"]
    for s in mine[0].steps:
        options = (
            ", ".join(f"{k} {v:g}" if isinstance(v, float) else f"{k} {v}" for k, v in vars(s).items() if v is not None)
            if not isinstance(s, Fill)
            else ""
        )
        name = f"fill {s.kind}" if isinstance(s, Fill) else type(s).__name__.lower()
        told.append(f"{name} ({options})" if options else name)
    return ", ".join(told)


def _encoding(c: SparseConfig) -> str:
    if c.encode == "id":
        return f"a row of {c.rows or 0:,}, as it is" + (f", {c.pooling}" if is_bag(c) else "")
    how = f"hashed into {c.buckets:,} buckets" if c.encode == "hash" and c.buckets else f"min_count {c.min_count or 1}"
    return f"{how}, {c.pooling}" if is_bag(c) else how
