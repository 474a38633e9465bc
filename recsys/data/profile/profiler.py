"""Profile parsed rows of all splits. They are stored as Parquet, of which polars counts one column after another.

polars counts every value, so memory grows with the number of distinct values, not of rows. It computes missing values,
moments and distinct numbers from all rows, and quantiles, histograms and cells of numbers from a sample, for which it
would hold a whole column in memory. A split of at most SAMPLE_ROWS rows is its own sample.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import polars as pl

from recsys.data.features import LABEL, Fitted
from recsys.data.features.blocks import SPLIT
from recsys.data.features.encoders import Encoder, SparseColumn, Vocabulary
from recsys.data.features.label_kinds import BinaryLabelColumn
from recsys.data.features.resolved_data import ResolvedData
from recsys.data.features.row_sources import Age, Cross
from recsys.data.features.steps import PARTS, WAVES, Count, Cyclic, FillMean, Target
from recsys.data.features.value_types import Number, Text, Time, Vector
from recsys.data.prepare.split import SPLITS
from recsys.data.profile import distributions
from recsys.data.profile.data_profile import (
    MIN_COUNTS,
    TOP,
    DataProfile,
    Drift,
    FeatureProfile,
    Numbers,
    Table,
    drift,
    psi,
)

SAMPLE_ROWS = 1 << 18  # sampled rows of a split: 95 % of the time a quantile's rank is within 0.2 % of all rows
SAMPLE_NUMBERS = 1 << 24  # sampled numbers of a split, over all columns: 128 MiB
POINTS = 60  # points of the coverage curve
ROWS, PLACE = "__rows__", "__place__"
# the columns that a row adds to the counts of its value: its split, and whether it is a positive training row
TALLY = {name: (pl.col(SPLIT) == i).cast(pl.Int64) for i, name in enumerate(SPLITS)}
TALLY["positives"] = ((pl.col(SPLIT) == 0) & pl.col(LABEL)).cast(pl.Int64)


def profile_rows(
    data: ResolvedData, rows: Iterable[tuple[pl.DataFrame, np.ndarray]], fitted: Fitted, folder: Path | None = None
) -> DataProfile:
    """Return the profile of parsed rows.

    Args:
        rows: frames that `parse_rows` returns, and the split of each row, (rows,): 0 train, 1 validation, 2 test.
        fitted: the transforms fitted on the same data, with vocabularies and table sizes.
        folder: where the rows are stored meanwhile; by default that of temporary files.
    """
    # whether rates of positives mean something: of the first label
    has_rates = isinstance(next(iter(data.label_kinds.values()), None), BinaryLabelColumn)
    parsed = {n: t for n, (_, t, _) in data.parsed_columns.items() if not isinstance(t, Vector)}
    with TemporaryDirectory(dir=folder, prefix="profile-") as stored:
        files = list[Path]()
        for frame, which in rows:
            texts = (n for n, t in parsed.items() if not isinstance(t, Number | Time))  # ids (encode=id) are integers
            lists = {n for n, dtype in frame.schema.items() if dtype == pl.List}
            columns = [pl.col(n).cast(pl.List(pl.String) if n in lists else pl.String) for n in texts]
            is_positive = (
                (pl.col(LABEL) > 0.5).fill_null(False) if has_rates and LABEL in frame.columns else pl.lit(False)
            )
            files.append(Path(stored, f"{len(files):06d}.parquet"))
            kept = frame.with_columns(columns).select(*parsed, is_positive.alias(LABEL), pl.Series(SPLIT, which))
            kept.write_parquet(files[-1], compression="lz4")
        return _Profiler(data, fitted, pl.scan_parquet(files, glob=False), has_rates).result()


@dataclass(frozen=True)
class _Profiler:
    """Profiles stored rows, which have SPLIT and, in LABEL, whether they are positive."""

    data: ResolvedData
    fitted: Fitted
    rows: pl.LazyFrame
    has_rates: bool

    @cached_property
    def schema(self) -> pl.Schema:
        return self.rows.collect_schema()

    @cached_property
    def numbers(self) -> dict[str, pl.Expr]:
        """The columns of numbers and times, as Float64: times in seconds since 1970."""
        types = {n: self.data.parsed_columns[n][1] for n in self.schema if n in self.data.parsed_columns}
        numbers = {n: pl.col(n) for n, t in types.items() if isinstance(t, Number)}
        times = [n for n, t in types.items() if isinstance(t, Time)]
        return numbers | {n: pl.col(n).dt.epoch("us").cast(pl.Float64) / 1e6 for n in times}

    @cached_property
    def totals(self) -> dict[str, np.ndarray]:
        """The rows (ROWS), positive rows (LABEL) and rows without a value, by column, of each split: (3,) each."""
        missing = []
        for n, dtype in self.schema.items():
            if dtype == pl.List:
                missing.append((pl.col(n).list.len().fill_null(0) == 0).alias(n))
            elif n not in (SPLIT, LABEL):
                absent = self.data.parsed_columns[n][0].absent
                missing.append(
                    pl.col(n).is_null() if n in self.numbers else (pl.col(n).fill_null("") == absent).alias(n)
                )
        sums = self.rows.group_by(SPLIT).agg(pl.len().alias(ROWS), pl.col(LABEL).sum(), *(x.sum() for x in missing))
        every = pl.DataFrame({SPLIT: range(3)}, {SPLIT: self.schema[SPLIT]}).lazy()
        whole = every.join(sums, on=SPLIT, how="left", maintain_order="left").fill_null(0)
        return {s.name: s.to_numpy() for s in whole.collect(engine="streaming")}

    @cached_property
    def samples(self) -> dict[str, pl.DataFrame]:
        """The numbers of some rows of each split, and LABEL: those whose places have the smallest hashes."""
        sparse = self.data.sparse_columns
        width = sum((sparse[n].longest or 1) if n in sparse else 1 for n in self.numbers)  # numbers of a row, at most
        limit = max(min(SAMPLE_ROWS, SAMPLE_NUMBERS // max(width, 1)), 1)
        samples = {}
        for i, split in enumerate(SPLITS):
            rows = self.rows.filter(pl.col(SPLIT) == i).select(LABEL, **self.numbers)
            if self.totals[ROWS][i] > limit:
                rows = rows.with_row_index(PLACE).bottom_k(limit, by=pl.col(PLACE).hash())
            samples[split] = rows.collect(engine="streaming")
        return samples

    def result(self) -> DataProfile:
        order = dict.fromkeys([*(c.parsed for c in self.data.dense_columns.values()), *self.data.sparse])
        features = [self._feature(n) for n in order if n in self.schema]
        tables = [self._table(name, [f.name for f in own]) for name, own in self.fitted.features.tables.items()]
        rows, positives = (tuple(int(n) for n in self.totals[key]) for key in (ROWS, LABEL))
        return DataProfile(rows, positives, features, tables, self.has_rates)

    def counts(self, value: pl.Expr) -> pl.DataFrame:
        """Return the columns value and TALLY. A missing text is the empty text; every value of a list counts."""
        rows = self.rows.select(value.alias("value"), **TALLY)
        dtype = rows.collect_schema()["value"]
        if dtype == pl.List:
            rows = rows.explode("value").drop_nulls("value")
        elif dtype == pl.String:
            rows = rows.with_columns(pl.col("value").fill_null(""))
        return rows.group_by("value").sum().collect(engine="streaming")

    @cached_property
    def values(self) -> dict[str, pl.DataFrame]:
        """The counts of each column that holds no numbers."""
        return {n: self.counts(pl.col(n)) for n in self.schema if n not in (*self.numbers, SPLIT, LABEL)}

    def _feature(self, name: str) -> FeatureProfile:
        c = self.data.sparse_columns.get(name)
        lengths = None
        if c is not None and c.is_list:
            lengths = _ordered(self.counts(pl.col(name).list.len().fill_null(0).cast(pl.Int64)))
        return FeatureProfile(
            name=name,
            reads=" × ".join(self.data.parsed_columns[name][0].columns),
            encoding=_encoding(c) if c else _steps(self.data, name),
            table=c.table if c else None,
            missing=_shares(self.totals[name], self.totals[ROWS]),
            lengths=lengths,
            **(self._of_numbers(name, c) if name in self.numbers else self._of_values(name, c)),
        )

    def _of_numbers(self, name: str, c: SparseColumn | None) -> dict[str, Any]:
        """Return the facts of a column of numbers or times."""
        time = self.schema[name] == pl.Datetime
        rows = each_number(self.rows.select(SPLIT, **{name: self.numbers[name]}), name)
        x = pl.col(name)
        std = pl.when(x.max() > x.min()).then(x.std(ddof=0)).otherwise(0.0)  # of equal values, it is a rounding error
        facts = [x.min().alias("min"), x.max().alias("max"), x.mean().alias("mean"), std.alias("std")]
        moments = rows.drop_nulls(name).group_by(SPLIT).agg(*facts, distinct=x.approx_n_unique())
        by_split = {m.pop(SPLIT): m for m in moments.collect(engine="streaming").to_dicts()}
        seen = {s: each_number(f.lazy().select(name, LABEL), name).collect() for s, f in self.samples.items()}
        values = {s: f[name].drop_nulls().to_numpy() for s, f in seen.items()}
        distinct = int(by_split.get(0, {}).get("distinct", 0))
        if exact := self.samples["train"].height == self.totals[ROWS][0]:
            distinct = len(np.unique(values["train"]))
        spans: list[dict[str, float] | None] = []
        for i, s in enumerate(SPLITS):
            known = {k: v for k, v in by_split.get(i, {}).items() if k != "distinct"}
            spans.append(known | distributions.quantiles(values[s]) if known else None)
        histogram = distributions.histogram(list(values.values()), time=time)
        cells = distributions.cells(seen, name, time=time)
        cyclic = {
            s.part
            for d in self.data.dense_columns.values()
            if d.parsed == name
            for s in d.steps
            if isinstance(s, Cyclic)
        }
        parts = {part: _ordered(self.counts(PARTS[part][1](x).cast(pl.Int64))) for part in sorted(cyclic)}
        drifts = [_drifts(p) for p in parts.values()] or [_drifts(cells)]  # a model sees the parts, not the time
        return {
            "kind": "time" if time else "quantiles" if c else "dense",
            "distinct": distinct,
            "exact": exact,
            "oov": None,
            "cells": cells,
            "drift": (_largest([d[0] for d in drifts]), _largest([d[1] for d in drifts])),
            "iv": max(_information_value(p) for p in ([*parts.values()] or [cells])),
            "numbers": Numbers(spans, histogram, self.samples["train"].height, int(self.totals[ROWS][0])),
            "parts": parts,
            "is_time": time,
        }

    def _of_values(self, name: str, c: SparseColumn | None) -> dict[str, Any]:
        """Return the facts of a column of other values."""
        counts = self.values[name]
        cells, known = value_cells(counts, self.data.parsed_columns[name][0].absent), counts.filter(pl.col("train") > 0)
        distinct = known.height
        if c is not None and c.encoder.vocabulary is not None:
            known = counts.join(self.fitted.vocabularies[c.table].select("value"), on="value", how="semi")
        if c is None:
            step = self.data.dense_columns[name].steps[0]
            kind = "count" if isinstance(step, Count) else "target" if isinstance(step, Target) else "dense"
        else:
            kind = "cross" if isinstance(c.source, Cross) else "bag" if c.is_list else "sparse"
            kind += c.encoder.suffix
        return {
            "kind": kind,
            "distinct": distinct,
            "exact": True,
            "oov": None if c and c.encoder.vocabulary is None else unknown_share(counts, known),
            "cells": cells,
            "drift": _drifts(cells),
            "iv": _information_value(cells),
        }

    def _table(self, name: str, features: list[str]) -> Table:
        """Return the sizes of an embedding table and its lookups in training. features: names of those that share it"""
        columns, names = self.data.sparse_columns, tuple(features)
        encoder, rows = columns[names[0]].encoder, self.fitted.features.tables[name][0].cardinality
        if encoder.ranges is not None:
            return Table(name, names, rows, encoder, 1, encoder.ranges, 0)
        whole = pl.concat(self.values[n] for n in names).group_by("value").sum()
        used = None
        if encoder.vocabulary is None and isinstance(encoder.value_type, Text):  # values may share rows
            seen = whole.filter(pl.col("train") > 0)["value"]
            used = encoder.look_up(seen, self.fitted.encoders.get(names[0], [])).n_unique()
        elif encoder.vocabulary is not None:
            encoder = Vocabulary.strictest(columns[n].encoder for n in names)
        return _sizes(name, names, rows, encoder, whole, used)


def each_number(rows: pl.LazyFrame, name: str) -> pl.LazyFrame:
    """Return the rows, with a row for each number of a list in the column `name`; an empty list has none."""
    if rows.collect_schema()[name] != pl.List:
        return rows
    return rows.filter(pl.col(name).list.len() > 0).explode(name)


def value_cells(counts: pl.DataFrame, absent: str) -> pl.DataFrame:
    """Return a cell for each of the most frequent training values and one for all others.

    Args:
        counts: value and TALLY.
        absent: the text of a missing value.
    """
    order = counts.filter(pl.col("train") > 0).sort(["train", "value"], descending=[True, False])
    top = order.head(TOP)
    named = pl.when(pl.col("value") == absent).then(pl.lit("")).otherwise(pl.col("value")).alias("label")
    shown = top.select(named, (pl.col("value") == absent).alias("special"), *TALLY)
    rest = counts.select(*TALLY).sum() - top.select(*TALLY).sum()
    if rest.select(SPLITS).sum_horizontal().item():
        n = counts.height - top.height
        label = pl.DataFrame({"label": [f"all {n:,} others" if n > 1 else "one other"], "special": [True]})
        shown = pl.concat([shown, pl.concat([label, rest], how="horizontal")])
    return shown


def unknown_share(counts: pl.DataFrame, known: pl.DataFrame) -> tuple[float | None, float | None]:
    """Return the share of lookups in validation and in test whose value is not in `known`."""
    total, known_total = counts.select(SPLITS).sum(), known.select(SPLITS).sum()
    validation, test = (1 - known_total[s].item() / n if (n := total[s].item()) else None for s in SPLITS[1:])
    return validation, test


def _sizes(
    name: str, features: tuple[str, ...], rows: int, encoder: Encoder, counts: pl.DataFrame, used: int | None
) -> Table:
    """Return the table. counts: value and TALLY; used: see Table"""
    train = counts.filter(pl.col("train") > 0)["train"].to_numpy()
    min_count = 1 if encoder.vocabulary is None else max(encoder.vocabulary.min_count, 1)
    coverage = None  # some numbers n, and the share of training lookups that the n most frequent values have
    if len(train) >= 3:
        covered = np.cumsum(np.sort(train)[::-1]) / train.sum()
        at = np.unique(np.geomspace(1, len(train), POINTS).round().astype(int))
        coverage = (at, covered[at - 1])
    # a table has one row more than it has frequent values, for the rare ones
    least = np.array(sorted({*MIN_COUNTS, min_count}))
    kept = [train[train >= n] for n in least]
    total = max(int(train.sum()), 1)
    covers = [int(k.sum()) / total for k in kept]
    thresholds = pl.DataFrame({"min_count": least, "rows": [len(k) + 1 for k in kept], "covered": covers})
    return Table(name, features, rows, encoder, min_count, len(train), int(train.sum()), used, thresholds, coverage)


def _ordered(counts: pl.DataFrame) -> pl.DataFrame:
    """Return cells of small whole numbers in order (lengths of bags, parts of times), by powers of two if many."""
    label = pl.col("value").cast(pl.String)
    if counts.height > 2 * TOP:
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


def _information_value(cells: pl.DataFrame) -> float:
    positives = cells["positives"].to_numpy()
    negatives = cells["train"].to_numpy() - positives
    return psi(positives, negatives) if positives.sum() and negatives.sum() else 0.0


def _shares(part: np.ndarray, whole: np.ndarray) -> tuple[float | None, ...]:
    return tuple(float(p / w) if w else None for p, w in zip(part, whole, strict=True))


def _steps(data: ResolvedData, parsed: str) -> str:
    """Return the steps of a dense column as text, such as: fill 0, log, standardise."""
    mine = [c for c in data.dense_columns.values() if c.parsed == parsed]
    if isinstance(mine[0].steps[0] if mine[0].steps else None, Cyclic):
        parts = dict.fromkeys(s.part for c in mine for s in c.steps if isinstance(s, Cyclic))
        return f"{', '.join(WAVES)} of {', '.join(parts)}"
    steps = [] if mine[0].fill is None else [f"fill {mine[0].fill:g}"]
    for s in mine[0].steps:
        given = {k: f"{v:g}" if isinstance(v, float) else v for k, v in vars(s).items() if v is not None}
        options = ", ".join(f"{k} {v}" for k, v in given.items())
        name = f"fill {s.by}" if isinstance(s, FillMean) else type(s).__name__.lower()
        steps.append(f"{name} ({options})" if options else name)
    return ", ".join(steps)


def _encoding(c: SparseColumn) -> str:
    """Return how a sparse feature becomes ids, as text, such as: min_count 15, mean."""
    how = ", ".join(f"{k} {v:,}" for k, v in vars(c.encoder).items() if isinstance(v, int))
    how = f"ages of earlier rows, {how}" if isinstance(c.look_back, Age) else how
    return f"{how}, {c.pooling}" if c.is_list else how
