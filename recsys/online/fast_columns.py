"""Compute features without polars where they are functions of one raw column, of the same row or of earlier ones.

polars takes about 0.1 ms for each expression, even for one row. `ColumnFeatures` is compiled once for a pipeline. All
other features (joined and derived columns, crosses, differences, vectors in rows, ...) go through polars.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import polars as pl

from recsys.data.features.arrays import Arrays, dense_slices, places_of_ranges, single_valued
from recsys.data.features.blocks import ROW
from recsys.data.features.dense_columns import DenseColumn
from recsys.data.features.encoders import SparseColumn
from recsys.data.features.row_sources import Cross
from recsys.data.features.value_types import RowNumber, Text, Time, Vector
from recsys.online.fast_lookups import Lookup, LookupFeatures, PolarsMemo
from recsys.online.fast_numbers import NumberFeatures, NumberParser, chain_of, is_fast
from recsys.online.raw_columns import Cells, RawColumn, Row, Transpose, text_cleaner
from recsys.online.raw_rows import RowFrames


@dataclass
class GroupFeatures:
    """The features that are ids of earlier rows of the same group.

    group: the column that names the group, and its place among the cells
    order: parses the column by which rows are ordered, with its place; None keeps their order
    gap: a longer one begins a new session
    moments: rows with an equal order do not see each other
    lags: for each such feature, its place in `Arrays.ids`, its lookup, and how many rows before it reads
    lasts: for each such feature, its name, its lookup, and the most rows that it has
    lookups, size: the lookups that were added, and their number
    """

    group: tuple[RawColumn, int]
    order: tuple[NumberParser, int] | None
    gap: float | None
    moments: bool
    lags: list[tuple[int, int, int]] = field(default_factory=list)
    lasts: list[tuple[str, int, int]] = field(default_factory=list)
    lookups: LookupFeatures = field(default_factory=LookupFeatures)
    size: int = 0

    def add(self, lookup: Lookup) -> int:
        """Add a lookup and return its number."""
        self.lookups.add(self.size, lookup)
        self.size += 1
        return self.size - 1

    def write(self, cells: Sequence[Cells], arrays: Arrays) -> None:
        """Write all features. Raises ValueError, TypeError or OverflowError for rows that polars has to read."""
        column, place = self.group
        names = list(map(column.read, cells[place]))
        if None in names or "" in names:
            raise ValueError
        rows, codes = np.arange(arrays.rows), np.unique(names, return_inverse=True)[1]
        numbers = np.zeros(arrays.rows)
        if self.order is not None:
            parser, place = self.order
            numbers = parser(list(cells[place]))
            if not np.isfinite(numbers).all():
                raise ValueError
        order = np.lexsort((numbers, codes))
        new = np.diff(codes[order], prepend=-1) != 0
        if self.gap is not None:
            new[1:] |= np.diff(numbers[order]) > self.gap
        at = np.argsort(order)  # the place of each row among the ordered ones
        starts = np.maximum.accumulate(np.where(new, rows, 0))[at]
        if self.moments:  # each row looks back from the first one of its moment
            new[1:] |= np.diff(numbers[order]) > 0
            at = np.maximum.accumulate(np.where(new, rows, 0))[at]
        ids, missing = self._ids(cells, arrays.rows)[order], self._ids([[None]] * len(cells), 1)[0]
        for target, lookup, lag in self.lags:
            arrays.ids[:, target] = np.where(at - lag >= starts, ids[np.maximum(at - lag, 0), lookup], missing[lookup])
        for name, lookup, last in self.lasts:
            first = np.maximum(starts, at - last)
            arrays.values[name] = ids[places_of_ranges(first, at - first), lookup]
            arrays.lengths[name] = (at - first).astype(np.int32)

    def _ids(self, cells: Sequence[Cells], rows: int) -> np.ndarray:
        """Return the ids of rows for each lookup: (rows, lookups) int32."""
        ids = np.empty((rows, self.size), np.int32)
        self.lookups.write(cells, Arrays(np.empty((rows, 0), np.float32), ids, {}, {}))
        return ids


class ColumnFeatures:
    """The features of a pipeline that are computed by column.

    dense, sparse: keys of data.dense and data.sparse whose features go through polars
    groups: the features of earlier rows; None without groups, and if only polars arranges them
    """

    def __init__(self, frames: RowFrames) -> None:
        self._frames, self._fitted, self._features = frames, frames.fitted, frames.features
        self._slices, data = dense_slices(self._features), self._fitted.data
        self._singles = {name: i for i, name in enumerate(single_valued(self._features))}
        made = {*frames.rows.derive, *(name for _, names in frames.rows.sides.values() for name in names)}
        self._raw = {c.name: c for c in frames.columns if c.name not in made}
        self._places: dict[str, int] = {}  # of raw columns among the cells
        self._numbers, self._looked_up, self.groups = NumberFeatures(), LookupFeatures(), self._group_features()
        self._remembered: dict[str, list[str]] = {}  # raw column -> features
        dense = {c.parsed: self._add_dense(n, c) for n, c in data.dense_columns.items()}
        sparse = {n: self._add_sparse(n, s) for n, s in data.sparse_columns.items()}
        self.dense, self.sparse = ({n for n, added in x.items() if not added} for x in (dense, sparse))
        self._transpose = Transpose([self._raw[name] for name in self._places])
        self._memo: PolarsMemo | None = None
        if self._remembered:
            names = {name for names in self._remembered.values() for name in names}
            kept = {c.parsed for n, c in data.dense_columns.items() if n in names}
            rows = frames.rows.restricted(kept, names, grouped=False)
            places = {n: self._places[n] for n in self._remembered}
            self._memo = PolarsMemo(RowFrames(rows), self._remembered, places)

    def from_rows(self, rows: Sequence[Row]) -> Arrays:
        """Return the arrays of rows, in which other features are not set.

        Raises UserError, KeyError, TypeError, ValueError or ArithmeticError for rows that polars has to read.
        """
        return self._arrays(self._transpose.rows(rows), len(rows))

    def from_columns(self, columns: Mapping[str, Cells], rows: int) -> Arrays:
        """Return the arrays of raw columns by name, in which other features are not set; see `from_rows`."""
        return self._arrays(self._transpose.columns(columns, rows), rows)

    def _arrays(self, cells: Sequence[Cells], rows: int) -> Arrays:
        arrays = Arrays.empty(rows, self._features)
        self._numbers.write(cells, arrays)
        self._looked_up.write(cells, arrays)
        if self.groups is not None:
            self.groups.write(cells, arrays)
        if self._memo is not None:
            self._memo.write(cells, arrays, self._slices)
        return arrays

    def _place(self, column: str) -> int:
        return self._places.setdefault(column, len(self._places))

    def _group_features(self) -> GroupFeatures | None:
        data = self._fitted.data
        if (c := data.group) is None or (raw := self._raw.get(c.by)) is None:
            return None
        known = raw.dtype == pl.String or raw.dtype.is_integer()
        if not known or text_cleaner(data.source, c.by) is not None:  # which may make names missing
            return None
        if c.order is None:
            return GroupFeatures((raw, self._place(c.by)), None, c.gap, data.has_moments)
        if (by := self._raw.get(c.order)) is None or not by.holds_numbers:
            return None
        parser = NumberParser.from_column(data.source, c.order, by.dtype)
        return GroupFeatures((raw, self._place(c.by)), (parser, self._place(c.order)), c.gap, data.has_moments)

    def _add_dense(self, name: str, c: DenseColumn) -> bool:
        """Add a dense feature; return False if it cannot be added."""
        raw = self._raw.get(c.column)
        if raw is None or c.look_back is not None or isinstance(c.value_type, Vector):
            return False
        if isinstance(c.value_type, Text):
            index = self._fitted.indexes[c.parsed]
            lookup = Lookup.from_column(self._fitted.data, raw, self._place(raw.name), index)
            if lookup is None:
                return False
            if c.is_number:  # the feature of each row of its fitted table, that of unknown values first
                params = self._fitted.dense[name]
                rows = pl.int_range(params[0]["table"].height + 1, dtype=pl.Int32, eager=True)
                no_row = pl.Series([None], dtype=pl.Int64).new_from_index(0, len(rows))
                table = pl.DataFrame({c.parsed: rows, ROW: no_row}).select(c.expr(params, lambda x: x)).to_numpy()
            else:
                table = self._fitted.matrices[name]
            self._looked_up.tables.append((self._slices[name], lookup, table))
            return True
        if isinstance(c.value_type, Time):
            return self._remember(name, raw)
        steps = chain_of(c, self._fitted.dense[name])
        if not raw.holds_numbers or not is_fast(steps):
            return False
        parser = NumberParser.from_column(self._fitted.data.source, raw.name, raw.dtype)
        self._numbers.add_dense(parser, self._place(raw.name), self._slices[name].start, steps)
        return True

    def _add_sparse(self, name: str, c: SparseColumn) -> bool:
        """Add a sparse feature; return False if it cannot be added."""
        data, raw, past = self._fitted.data, self._raw.get(c.column), c.look_back
        # features that models do not see are checked, and so is a missing item
        if raw is None or isinstance(c.source, Cross) or not c.model or name == data.item_feature:
            return False
        is_text = isinstance(c.value_type, Text)
        looks_up = self.groups is not None and is_text and (past is None or past.condition is None)
        if (past is not None or c.sequence) and (not looks_up or c.sequence):
            return False
        if c.source.is_list:
            return self._remember(name, raw)
        if not is_text:
            if not raw.holds_numbers:
                return False
            parser = NumberParser.from_column(self._fitted.data.source, raw.name, raw.dtype)
            if isinstance(c.value_type, RowNumber):
                parser = replace(parser, thousands=None, decimal=".", exact=True)
            ids = c.encoder.ids_of_numbers(self._fitted.encoders.get(name, []))
            self._numbers.add_ids(parser, self._place(raw.name), self._singles[name], ids)
            return True
        lookup = Lookup.from_column(data, raw, self._place(raw.name), self._fitted.indexes[name], c.encoder)
        if lookup is None:
            return False
        if self.groups is None or past is None:
            self._looked_up.add(self._singles[name], lookup)
        elif past.is_list:
            self.groups.lasts.append((name, self.groups.add(lookup), past.rows))
        else:
            self.groups.lags.append((self._singles[name], self.groups.add(lookup), past.rows))
        return True

    def _remember(self, name: str, raw: RawColumn) -> bool:
        if raw.dtype == pl.String:
            self._place(raw.name)
            self._remembered.setdefault(raw.name, []).append(name)
        return raw.dtype == pl.String
