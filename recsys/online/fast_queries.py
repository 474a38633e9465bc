"""Turn histories into queries without polars, where their features are text that is looked up row by row.

Polars takes some milliseconds for a history, whatever its length: `queries.py` arranges the text of rows by group, and
looks it up. Here the text is looked up first, by the same lookups, and NumPy arranges the ids.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from recsys.data.features import GROUP
from recsys.data.features.arrays import Arrays, places_of_ranges, single_valued
from recsys.data.features.blocks import LIST
from recsys.data.features.encoders import SparseColumn
from recsys.data.features.row_sources import Column, Last
from recsys.data.features.value_types import Text
from recsys.interface.features import FeatureSpec
from recsys.online.fast_lookups import Lookup, LookupFeatures
from recsys.online.fast_numbers import NumberParser
from recsys.online.queries import Queries
from recsys.online.raw_columns import Cells, RawColumn, Row, Transpose, text_cleaner
from recsys.online.raw_rows import RowFrames


@dataclass(frozen=True)
class FastQueries:
    """Turns rows into the queries that `Queries.from_rows` returns.

    present: the columns of the group and of the item, which no row may lack, the first ones among the cells
    transpose: turns rows into cells
    lookups: of each sparse feature, in the order of the FeatureSpec, and last of the candidates
    lists: for each multi-valued feature, the most earlier rows that it has, and whether the row that follows comes next
    order: parses the last one of the cells, by which rows are ordered; None keeps their order
    """

    features: FeatureSpec
    item: str
    present: tuple[RawColumn, RawColumn]
    transpose: Transpose
    lookups: LookupFeatures
    lists: dict[str, tuple[int, bool]]
    order: NumberParser | None

    @classmethod
    def from_frames(cls, frames: RowFrames) -> FastQueries | None:
        """Return None for a pipeline whose queries only polars makes."""
        fitted, raw = frames.fitted, {c.name: c for c in frames.columns}
        data, features = fitted.data, fitted.features
        group, item, sequences = data.group, data.item_feature, data.sequences
        assert group is not None and item is not None
        columns = [data.sparse_columns[f.name] for f in features.sparse]
        names, items = [c.column for c in columns], data.sparse_columns[item].column
        if (
            not all(map(_is_looked_up, columns))
            or len(columns) < len(data.sparse_columns)  # features that models do not see are checked
            or (data.dense or data.where or frames.rows.sides or frames.rows.derive)
            or (group.gap is not None or group.by == LIST or (sequences is not None and sequences.pad is not None))
            or not (raw[group.by].dtype == pl.String or raw[group.by].dtype.is_integer())
            or any(text_cleaner(data.source, n) is not None for n in (group.by, items))  # may make values missing
        ):
            return None
        cells = [group.by, items, *names]
        lookups = LookupFeatures()
        indexes = [*(fitted.indexes[f.name] for f in features.sparse), fitted.candidate_index]
        for i, (name, index) in enumerate(zip([*names, items], indexes, strict=True)):
            encoder = columns[i].encoder if index is None else None
            if (lookup := Lookup.from_column(data, raw[name], cells.index(name), index, encoder)) is None:
                return None
            lookups.add(i, lookup)
        order = None
        if group.order is not None:
            if not raw[group.order].holds_numbers:
                return None
            order = NumberParser.from_column(data.source, group.order, raw[group.order].dtype)
            cells.append(group.order)
        follows = sequences is not None
        lists = {
            f.name: (sequences.max_length if sequences is not None else c.look_back.rows if c.look_back else 0, follows)
            for f, c in zip(features.sparse, columns, strict=True)
            if f.multi_valued
        }
        present, transpose = (raw[group.by], raw[items]), Transpose([raw[n] for n in cells])
        return cls(features, item, present, transpose, lookups, lists, order)

    def __call__(self, rows: Sequence[Row], owners: Sequence[int], unordered: Container[int]) -> Queries:
        """Return a query for each owner.

        Raises UserError, KeyError, TypeError, ValueError or ArithmeticError for rows that polars has to read.

        Args:
            rows: the raw rows of all histories, one history after another.
            owners: the number of each row's history, ascending.
            unordered: the histories whose rows are in order already.
        """
        cells = self.transpose.rows(rows)
        for column, values in zip(self.present, cells, strict=False):
            if not all(map(column.read, values)) and any(column.read(v) in (None, "") for v in values):
                raise ValueError
        ids = self._ids(cells, len(rows))
        owner, order = np.array(owners), np.arange(len(rows))
        if self.order is not None:
            numbers = self.order(list(cells[-1]))
            if not np.isfinite(numbers).all():
                raise ValueError
            order = np.lexsort((np.where([o in unordered for o in owners], order, numbers), owner))
        ids = ids[order]
        counts = np.unique(owner, return_counts=True)[1]
        return self._arranged(ids, counts, pl.Series(GROUP, list(map(str, dict.fromkeys(owners)))))

    def _arranged(self, ids: np.ndarray, counts: np.ndarray, groups: pl.Series) -> Queries:
        """Return queries of ordered rows, whose ids are (rows, lookups). counts: (Q,) rows of each query"""
        ends = np.cumsum(counts)
        names = [f.name for f in self.features.sparse]
        following = ids[ends - 1].copy()  # like a group's last row, but with an unknown item
        following[:, names.index(self.item)] = self._ids([[None]] * (3 + len(names)), 1)[0, names.index(self.item)]
        arrays = Arrays.empty(len(ends), self.features)
        for i, name in enumerate(single_valued(self.features)):
            arrays.ids[:, i] = following[:, names.index(name)]
        for name, (most, follows) in self.lists.items():
            column, lengths = names.index(name), np.minimum(counts, most)
            values = ids[places_of_ranges(ends - lengths, lengths), column]
            if follows:
                values = np.insert(values, np.cumsum(lengths), following[:, column])
            arrays.values[name], arrays.lengths[name] = values, (lengths + follows).astype(np.int32)
        candidates, known = ids[:, -1].astype(np.int64), ids[:, -1] > 0
        owner = np.repeat(np.arange(len(ends)), counts)[known]
        return Queries(groups, arrays, self.features, candidates[known], np.bincount(owner, minlength=len(ends)))

    def _ids(self, cells: Sequence[Cells], rows: int) -> np.ndarray:
        """Return the ids of rows for each lookup: (rows, lookups) int32."""
        ids = np.empty((rows, 1 + len(self.features.sparse)), np.int32)
        self.lookups.write(cells, Arrays(np.empty((rows, 0), np.float32), ids, {}, {}))
        return ids


def _is_looked_up(c: SparseColumn) -> bool:
    """Return whether a feature's ids are looked up in or hashed from the text of one raw column, row by row."""
    past = c.look_back is None or isinstance(c.look_back, Last)
    return past and isinstance(c.source, Column) and isinstance(c.value_type, Text)
