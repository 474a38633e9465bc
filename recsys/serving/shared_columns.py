"""Transform many rows that share the values of some columns: one user with a thousand candidates.

Features of the shared columns alone are computed once and repeated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from recsys.data.arrays import Arrays, dense_slices, single_valued
from recsys.data.raw.derive import FeatureInputs
from recsys.serving.pipeline import Pipeline
from recsys.serving.raw_columns import Row
from recsys.serving.raw_rows import RawRows

KEPT = 16  # sets of shared columns whose division is kept


@dataclass(frozen=True)
class Division:
    """A pipeline in two parts.

    once: the features of shared columns alone
    each: the other features
    needed: the shared columns that these read, too
    """

    once: Pipeline
    each: Pipeline
    needed: frozenset[str]


class SharedColumns:
    """Transforms rows that share columns. Threads may share it.

    Args:
        rows: the transforms.
        pipeline: the same transforms, for all columns.
    """

    def __init__(self, rows: RawRows, pipeline: Pipeline) -> None:
        self._rows, self._features, self._pipeline = rows, rows.fitted.features, pipeline
        self._divisions: dict[frozenset[str], Division] = {}

    def arrays(self, shared: Row, rows: Sequence[Row]) -> Arrays:
        """Return the features of rows that all have the values of `shared`, too.

        Raises RowError for the first value that cannot be read; it names no row if the value is shared.
        """
        if self._rows.fitted.data.group is not None:  # features may depend on other rows
            return self._pipeline.arrays([{**shared, **row} for row in rows])
        division = self._division(frozenset(shared))
        first = division.once.arrays(shared)
        common = {n: v for n, v in shared.items() if n in division.needed}
        each = division.each.arrays([{**common, **row} for row in rows] if common else rows)
        return self._joined(division, first, each)

    def _joined(self, division: Division, first: Arrays, each: Arrays) -> Arrays:
        arrays = Arrays.empty(each.rows, self._features)
        places, singles = dense_slices(self._features), single_valued(self._features)
        values, lengths = {}, {}
        for pipeline, part in ((division.once, first), (division.each, each)):
            for name, own in dense_slices(pipeline.features).items():
                arrays.dense[:, places[name]] = part.dense[:, own]
            for i, name in enumerate(single_valued(pipeline.features)):
                arrays.ids[:, singles.index(name)] = part.ids[:, i]
            for name in part.values:
                same = part is first
                values[name] = np.tile(part.values[name], each.rows) if same else part.values[name]
                lengths[name] = np.repeat(part.lengths[name], each.rows) if same else part.lengths[name]
        bags = [f.name for f in self._features.sparse if f.multi_valued]
        return Arrays(arrays.dense, arrays.ids, {n: values[n] for n in bags}, {n: lengths[n] for n in bags})

    def _division(self, shared: frozenset[str]) -> Division:
        if shared not in self._divisions:
            while len(self._divisions) >= KEPT:
                self._divisions.pop(next(iter(self._divisions)))
            self._divisions[shared] = self._divided(shared)
        return self._divisions[shared]

    def _divided(self, shared: frozenset[str]) -> Division:
        data = self._rows.fitted.data
        names = {*shared, *(here for here, there in data.source.rename.items() if there in shared)}
        dense = {n for n in data.dense if self._reads({n}, set()) <= names}
        sparse = {n for n in data.sparse if self._reads(set(), {n}) <= names}
        once = self._rows.restricted(dense, sparse)
        each = self._rows.restricted(set(data.dense) - dense, set(data.sparse) - sparse)
        return Division(Pipeline(once), Pipeline(each), frozenset(n for n in shared if n in each.types))

    def _reads(self, dense: set[str], sparse: set[str]) -> set[str]:
        """Return the raw columns that a feature reads."""
        return FeatureInputs.from_config(self._rows.fitted.restricted(dense, sparse).data).raw
