"""Learn transforms, vocabularies and quantiles from the training split, in as few passes as they need.

A pass is a `Gather`, which every chunk of the training split is shown to, wherever it lies; what comes of it is summed
up in the chunks' order, so that it does not depend on who went through them.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import polars as pl

from recsys.config.schema_data import DataConfig, SparseConfig
from recsys.data.transforms.column_names import HISTORY, LABEL, ROW
from recsys.data.transforms.columns import DenseColumn, dense_columns, item_feature, known_rows, sparse_columns
from recsys.data.transforms.fitted import Fitted, dense_expr
from recsys.data.transforms.steps import Params
from recsys.data.transforms.training_statistics import Counts, Mergeable, Sample, Statistic
from recsys.data.transforms.vectors import Vectors
from recsys.errors import UserError
from recsys.features import OUT_OF_VOCABULARY


@dataclass
class PartialStatistics:
    """What a chunk has to say."""

    rows: int = 0
    statistics: dict[str, Mergeable] = field(default_factory=dict)
    tables: dict[str, pl.DataFrame] = field(default_factory=dict)  # of counts


@dataclass(frozen=True)
class StatisticsPass:
    """One pass: the next statistic of each dense feature, and in the first pass what sparse features need."""

    data: DataConfig
    params: dict[str, list[Params]]
    first: bool

    @cached_property
    def columns(self) -> set[str]:
        """Of typed rows, those that it reads."""
        dense = dense_columns(self.data)
        shown = {dense[n].typed for n, _ in _next(dense, self.params)}
        return shown | ({self._read(n) for n, _ in _sparse(self.data)} if self.first else set()) | {LABEL}

    def _read(self, name: str) -> str:
        """The column of a feature's values: of sequences' items, that of all a group trains on, once."""
        return HISTORY if self.data.sequences is not None and name == item_feature(self.data) else name

    def __call__(self, frames: Iterable[pl.DataFrame], values: dict[str, pl.Series]) -> PartialStatistics:
        """frames: a chunk's training rows, text as codes; values: the text of the codes."""
        dense = dense_columns(self.data)
        shown = dict(_next(dense, self.params)) | (dict(_sparse(self.data)) if self.first else {})
        fitted = Fitted(self.data, self.params)
        columns = [dense_expr(dense[n], self.params[n], fitted.index(dense[n].typed, values)).alias(n)
                   for n in shown if n in dense]  # fmt: skip
        found = PartialStatistics()
        for frame in frames:
            if frame.is_empty():
                continue
            found.rows += frame.height
            steps = frame.select(columns)
            for name, statistic in shown.items():
                column = steps[name] if name in dense else frame[self._read(name)]
                if column.dtype == pl.List:
                    items = frame.select(ROW, column.alias(name)).explode(name).drop_nulls(name)
                    statistic.add(items[name], items)
                else:
                    statistic.add(column, frame)
        for name, statistic in shown.items():
            if isinstance(statistic, Counts):
                text = values[dense[name].typed if name in dense else self._read(name)]
                found.tables[name] = statistic.table(text)
            else:
                found.statistics[name] = statistic  # type: ignore[assignment]
        return found


class Training(Protocol):
    """The training split, in chunks."""

    def gather(self, gather: StatisticsPass) -> Iterator[PartialStatistics]:
        """What each chunk says, in their order; it may keep the tables to itself."""

    def total(self, names: Sequence[str], keys: Sequence[str], least: int) -> pl.DataFrame:
        """The sum of all tables of these names that the last pass gave; what counts less than `least` is left out."""


def fit(data: DataConfig, training: Training, vectors: dict[str, Vectors] | None = None) -> Fitted:
    """Learn all that is to be learnt; vectors were learnt elsewhere.

    One pass learns vocabularies and the first step of each dense feature, the next one second steps, and so on.
    Ids follow descending counts, ties by value, from 1; id 0 is for what is rare or was never seen.
    A missing value is a value of its own (the empty string), multi-valued columns have none.
    Of hashed features there is nothing to learn.
    """
    dense, sparse = dense_columns(data), sparse_columns(data)
    params: dict[str, list[Params]] = {name: [] for name in dense}
    bounds: dict[str, list[float]] = {}
    vocabularies: dict[str, pl.DataFrame] = {}
    first = True
    while (todo := dict(_next(dense, params))) or first:
        rows, merged = _merged(training.gather(StatisticsPass(data, params, first)))
        if not rows:
            raise UserError(f"data={data.name}: the train split has no rows; see data.split")
        for name, statistic in todo.items():
            counted = isinstance(statistic, Counts)
            seen = training.total([name], statistic.keys, 1) if counted else merged[name]  # type: ignore[attr-defined]
            params[name].append(dense[name].steps[len(params[name])].fit(seen))
        if first:
            vocabularies = _vocabularies(sparse, training)
            for name, s in _sparse(data):
                if isinstance(s, Sample):
                    bounds[name] = _bounds(merged[name], sparse[name].quantiles or 1)  # type: ignore[arg-type]
        first = False
    return Fitted(data, params, vocabularies, vectors or {}, bounds)


def _next(dense: dict[str, DenseColumn], params: dict[str, list[Params]]) -> Iterator[tuple[str, Statistic]]:
    """What each feature's next step must see; steps that learn nothing are passed."""
    for name, c in dense.items():
        for step in c.steps[len(params[name]) :]:
            if (statistic := step.statistic()) is not None:
                yield name, statistic
                break
            params[name].append({})


def _sparse(data: DataConfig) -> Iterator[tuple[str, Counts | Sample]]:
    for name, s in sparse_columns(data).items():
        if s.encode == "quantiles":
            yield name, Sample()
        elif known_rows(s) is None:
            yield name, Counts()


def _merged(found: Iterable[PartialStatistics]) -> tuple[int, dict[str, Mergeable]]:
    rows = 0
    merged: dict[str, Mergeable] = {}
    for one in found:
        rows += one.rows
        for name, statistic in one.statistics.items():
            if name in merged:
                merged[name].merge(statistic)
            else:
                merged[name] = statistic
    return rows, merged


def _vocabularies(sparse: dict[str, SparseConfig], training: Training) -> dict[str, pl.DataFrame]:
    """By table: value, count, id."""
    features: dict[str, list[str]] = {}
    for name, c in sparse.items():
        if known_rows(c) is None:
            features.setdefault(c.table or name, []).append(name)
    found = {}
    for table, names in features.items():
        least = max(sparse[n].min_count or 1 for n in names)
        found[table] = (
            training.total(names, ["value"], least)
            .sort(["count", "value"], descending=[True, False])
            .with_row_index("id", offset=OUT_OF_VOCABULARY + 1)
            .select("value", pl.col("count").cast(pl.UInt32), pl.col("id").cast(pl.Int32))
        )
    return found


def _bounds(sample: Sample, n: int) -> list[float]:
    """Of at most n buckets: a bucket holds what is above one bound and not above the next; ties share one."""
    return sorted(set(sample.quantiles([i / n for i in range(1, n)])))


class InMemory:
    """A training split that is one frame of `typed` rows."""

    def __init__(self, frame: pl.DataFrame, values: dict[str, pl.Series]) -> None:
        rows = pl.int_range(frame.height, dtype=pl.Int64, eager=True).alias(ROW)
        self._frame, self._values = frame.with_columns([rows] if ROW not in frame.columns else []), values
        self._tables: dict[str, pl.DataFrame] = {}

    def gather(self, gather: StatisticsPass) -> Iterator[PartialStatistics]:
        found = gather([self._frame], self._values)
        self._tables = found.tables
        yield found

    def total(self, names: Sequence[str], keys: Sequence[str], least: int) -> pl.DataFrame:
        return summed(pl.concat([self._tables[n] for n in names]).lazy(), keys, least).collect()


def summed(tables: pl.LazyFrame, keys: Sequence[str], least: int) -> pl.LazyFrame:
    """Tables of counts that agree on `keys` as one; what counts less than `least` is left out."""
    return tables.group_by(keys).sum().filter(pl.col("count") >= least)
