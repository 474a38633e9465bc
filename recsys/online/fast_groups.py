"""Features of the earlier rows of a group, without polars: ids that are looked up row by row, and gathered by NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from recsys.data.features.arrays import Arrays, places_of_ranges
from recsys.online.fast_lookups import Lookup, LookupFeatures
from recsys.online.fast_numbers import NumberParser
from recsys.online.raw_columns import Cells, RawColumn


@dataclass
class GroupFeatures:
    """The features that are ids of earlier rows of the same group.

    group: the column that names the group, and its place among the cells
    order: parses the column by which rows are ordered, with its place; None keeps their order
    gap: a longer one begins a new session
    lags: for each such feature, its place in `Arrays.ids`, its lookup, and how many rows before it reads
    lasts: for each such feature, its name, its lookup, and the most rows that it has
    lookups, size: the lookups that were added, and their number
    """

    group: tuple[RawColumn, int]
    order: tuple[NumberParser, int] | None
    gap: float | None
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
