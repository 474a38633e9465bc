"""Learn transforms, vocabularies and quantiles from the training split, in as few passes as possible.

A pass is a `StatisticsPass`, which is called on every chunk of the training split, on any machine. The partial
statistics are merged in the order of the chunks, so that the result does not depend on which machine read which chunk.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import polars as pl

from recsys.data.features.blocks import HISTORY, LABEL, ROW
from recsys.data.features.dense_columns import DenseColumn
from recsys.data.features.encoders import SparseColumn, State, Vocabulary
from recsys.data.features.find_types import Types, canonical_values
from recsys.data.features.fitted import Fitted
from recsys.data.features.label_columns import (
    fit_labels,
    fit_weight,
    kept_columns,
    label_statistics,
    with_first_position,
)
from recsys.data.features.resolved_data import ResolvedData
from recsys.data.features.row_contents import Contents, content_columns, numbers_of
from recsys.data.features.steps import Params
from recsys.data.features.training_statistics import Counts, Mergeable, Statistic, ValueSample
from recsys.interface.features import OUT_OF_VOCABULARY
from recsys.interface.labels import Label


@dataclass
class PartialStatistics:
    """The statistics of one chunk. contents: a sample of its rows, if features need one"""

    rows: int = 0
    contents: Contents | None = None
    statistics: dict[str, Mergeable] = field(default_factory=dict)
    tables: dict[str, pl.DataFrame] = field(default_factory=dict)  # counts of values


@dataclass(frozen=True)
class StatisticsPass:
    """Collects the next statistic of each dense feature, and in the first pass the statistics of sparse features."""

    data: ResolvedData
    params: dict[str, list[Params]]
    first: bool
    types: Types

    @cached_property
    def columns(self) -> set[str]:
        """The columns of parsed rows that this pass reads."""
        dense = self.data.dense_columns
        names = {dense[n].parsed for n, _ in _next_statistics(dense, self.params)}
        if self.first:
            names |= {self._column(n) for n, _ in _sparse_statistics(self.data)}
            names |= {c for n in self.data.sparse_columns for c in self._columns_of_unseen(n)}
            names |= {*content_columns(self.data)}
        return names | set(kept_columns(self.data)) | {LABEL}

    def _column(self, name: str) -> str:
        """Return the column of a feature's values. A sequence's items are in HISTORY, each training item once."""
        return HISTORY if self.data.sequences is not None and name == self.data.item_feature else name

    def _columns_of_unseen(self, name: str) -> tuple[str, ...]:
        """Return the columns whose values have rows even if the training split lacks them (min_count=0)."""
        encoder = self.data.sparse_columns[name].encoder
        if encoder.vocabulary is None or encoder.vocabulary.min_count:
            return ()
        return (name, *self.data.query_columns) if name == self.data.item_feature else (name,)

    def __call__(self, frames: Iterable[pl.DataFrame], values: dict[str, pl.Series]) -> PartialStatistics:
        """Return the statistics of one chunk.

        Args:
            frames: the chunk's training rows, text as codes.
            values: the text of the codes, by column.
        """
        dense = self.data.dense_columns
        values = canonical_values(self.data, self.types, values)
        collected = dict(_next_statistics(dense, self.params))
        if self.first:
            collected |= dict(_sparse_statistics(self.data)) | dict(label_statistics(self.data))
        fitted = Fitted(self.data, self.params)
        columns = [
            dense[n].transformed(self.params[n], fitted.code_index(dense[n].parsed, values)).alias(n)
            for n in collected
            if n in dense
        ]
        hashed = content_columns(self.data) if self.first else []
        codes = {n: numbers_of(values[n]) for n in hashed if n in values}
        partial = PartialStatistics(contents=Contents() if hashed else None)
        for frame in frames:
            if frame.is_empty():
                continue
            partial.rows += frame.height
            steps = frame.select(columns)
            if partial.contents is not None:
                partial.contents.add(frame, hashed, codes)
            for name, statistic in collected.items():
                column = steps[name] if name in dense else frame[self._column(name)]
                if column.dtype == pl.List:
                    items = frame.select(ROW, column.alias(name)).explode(name).drop_nulls(name)
                    statistic.add(items[name], items)
                else:
                    statistic.add(column, frame)
        for name, statistic in collected.items():
            if isinstance(statistic, Counts):
                text = values[dense[name].parsed if name in dense else self._column(name)]
                partial.tables[name] = statistic.table(text)
                if name not in dense and (columns_of_unseen := self._columns_of_unseen(name)):
                    unseen, counts = pl.concat([values[c] for c in columns_of_unseen]), partial.tables[name]
                    unseen = unseen.filter((unseen != "") & ~unseen.is_in(counts["value"].implode())).unique()
                    zeros = pl.DataFrame({"value": unseen, "count": 0}, schema=counts.schema)
                    partial.tables[name] = pl.concat([counts, zeros])
            else:
                partial.statistics[name] = statistic  # type: ignore[assignment]  # all but Counts merge
        return partial


class Training(Protocol):
    """The training split, in chunks."""

    def collect(self, statistics_pass: StatisticsPass) -> Iterator[PartialStatistics]:
        """Yield the statistics of each chunk, in order. Tables may be left out and kept for `total`."""

    def total(self, names: Sequence[str], keys: Sequence[str], least: int) -> pl.DataFrame:
        """Return the sum of the last pass's tables of these names, as `sum_tables` does, in the order of `keys`."""


def merge_statistics(partials: Iterable[PartialStatistics]) -> PartialStatistics:
    """Return the statistics of all chunks, without tables. partials: in the order of the chunks"""
    merged = PartialStatistics()
    for partial in partials:
        merged.rows += partial.rows
        if partial.contents is not None:
            merged.contents = merged.contents or Contents()
            merged.contents.merge(partial.contents)
        for name, part in partial.statistics.items():
            if name in merged.statistics:
                merged.statistics[name].merge(part)
            else:
                merged.statistics[name] = part
    return merged


def fit(data: ResolvedData, training: Training, types: Types | None = None) -> Fitted:
    """Fit all transforms and vocabularies.

    The first pass fits vocabularies and the first step of each dense feature, the second pass the second steps, and so
    on. Ids are assigned from 1 by descending count, ties by value; id 0 is for values that are rare or were never seen.
    A missing value is a value of its own (the empty string), but multi-valued columns ignore it. Hashed features need
    no fitting.

    Args:
        types: the meaning of the raw columns of text; by default, each text is a value of its own.

    Raises:
        UserError: the training split has no rows.
    """
    dense, sparse = data.dense_columns, data.sparse_columns
    params: dict[str, list[Params]] = {name: [] for name in dense}
    states: dict[str, State] = {}
    vocabularies: dict[str, pl.DataFrame] = {}
    labels, mean_weight = tuple[Label, ...](), 1.0
    contents: Contents | None = None
    first = True
    while (pending := dict(_next_statistics(dense, params))) or first:
        seen = merge_statistics(training.collect(StatisticsPass(data, params, first, types or {})))
        merged = seen.statistics
        if not seen.rows:
            raise data.without_rows("train")
        for name, statistic in pending.items():
            table = training.total([name], statistic.keys, 1) if isinstance(statistic, Counts) else merged[name]
            params[name].append(dense[name].steps[len(params[name])].fit(table))
        if first:
            vocabularies = _vocabularies(sparse, training, data.item_feature)
            for name, of_feature in _sparse_statistics(data):
                if (encoder := sparse[name].encoder).vocabulary is None:
                    counted = isinstance(of_feature, Counts)
                    states[name] = encoder.fit(training.total([name], ["value"], 1) if counted else merged[name])
            contents = seen.contents
            labels, mean_weight = fit_labels(data, seen.rows, merged), fit_weight(data, merged)
            data = with_first_position(data, merged)
        first = False
    of_text = None if types is None else dict(types)
    return Fitted(data, params, vocabularies, {}, states, None, labels, mean_weight, types=of_text, contents=contents)


def _next_statistics(
    dense: Mapping[str, DenseColumn], params: dict[str, list[Params]]
) -> Iterator[tuple[str, Statistic]]:
    """Yield the statistic that each feature's next step is fitted to; steps that learn nothing are skipped."""
    for name, c in dense.items():
        for step in c.steps[len(params[name]) :]:
            if (statistic := step.statistic()) is not None:
                yield name, statistic
                break
            params[name].append({})


def _sparse_statistics(data: ResolvedData) -> Iterator[tuple[str, Counts | ValueSample]]:
    for name, c in data.sparse_columns.items():
        if (statistic := c.encoder.statistic()) is not None:
            yield name, statistic


def _vocabularies(sparse: Mapping[str, SparseColumn], training: Training, item: str | None) -> dict[str, pl.DataFrame]:
    """Return a frame (value, count, id) for each table."""
    vocabularies = {}
    for table, (names, rules) in vocabulary_tables(sparse, item).items():
        counts = training.total(names, ["value"], rules.min_count).with_columns(pl.col("count").cast(pl.UInt32))
        by_count = counts.sort("count", descending=True, maintain_order=True)  # ties stay in the order of the values
        if rules.capacity is not None:
            by_count = by_count.head(rules.capacity - 1)
        ids = pl.int_range(len(by_count), dtype=pl.Int32, eager=True) + (OUT_OF_VOCABULARY + 1)
        vocabularies[table] = by_count.with_columns(ids.alias("id"))
    return vocabularies


def vocabulary_tables(sparse: Mapping[str, SparseColumn], item: str | None) -> dict[str, tuple[list[str], Vocabulary]]:
    """Return the features whose values are in the vocabulary of each table, and the strictest of their rules.

    item: the feature whose values are retrieved; the values of histories are left out of its table
    """
    features: dict[str, list[str]] = {}
    for name, c in sparse.items():
        if c.encoder.vocabulary is not None:
            features.setdefault(c.table, []).append(name)
    features = {table: [item] if item in names else names for table, names in features.items()}
    return {t: (names, Vocabulary.strictest(sparse[n].encoder for n in names)) for t, names in features.items()}


class InMemory:
    """A training split that is one frame of parsed rows, text as codes."""

    def __init__(self, frame: pl.DataFrame, values: dict[str, pl.Series]) -> None:
        rows = pl.int_range(frame.height, dtype=pl.Int64, eager=True).alias(ROW)
        self._frame, self._values = frame.with_columns([rows] if ROW not in frame.columns else []), values
        self._tables: dict[str, pl.DataFrame] = {}

    def collect(self, statistics_pass: StatisticsPass) -> Iterator[PartialStatistics]:
        partial = statistics_pass([self._frame], self._values)
        self._tables = partial.tables
        yield partial

    def total(self, names: Sequence[str], keys: Sequence[str], least: int) -> pl.DataFrame:
        return sum_tables(pl.concat([self._tables[n] for n in names]).lazy(), keys, least).collect().sort(keys)


def sum_tables(tables: pl.LazyFrame, keys: Sequence[str], least: int) -> pl.LazyFrame:
    """Sum the rows of tables of counts that agree on `keys`; leave out counts below `least`."""
    return tables.group_by(keys).sum().filter(pl.col("count") >= least)
