"""Transform many rows that share the values of some columns: one user with a thousand candidates.

Features of the shared columns alone are computed once and repeated, and so are features of the user's past.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from recsys.data.features.arrays import Arrays, dense_slices, single_valued
from recsys.data.features.resolved_data import ResolvedData
from recsys.data.raw.derive import FeatureInputs
from recsys.online.raw_columns import Row
from recsys.online.raw_rows import RawRows
from recsys.online.row_transforms import RowTransforms

KEPT = 16  # sets of shared columns whose division is kept


@dataclass(frozen=True)
class Division:
    """A pipeline in two parts.

    once: the features of shared columns and of earlier rows alone
    each: the other features
    needed: the shared columns that these read, too
    past: whether these read earlier rows, too
    """

    once: RowTransforms
    each: RowTransforms
    needed: frozenset[str]
    past: bool = False


class SharedColumns:
    """Transforms rows that share columns. Threads may share it.

    Args:
        rows: the transforms.
        pipeline: the same transforms, for all columns.
    """

    def __init__(self, rows: RawRows, pipeline: RowTransforms) -> None:
        self._rows, self._features, self._pipeline = rows, rows.fitted.features, pipeline
        self._divisions: dict[frozenset[str], Division] = {}

    def arrays(self, shared: Row, rows: Sequence[Row]) -> Arrays:
        """Return the features of rows that all have the values of `shared`, too.

        Raises RowError for the first value that cannot be read; it names no row if the value is shared.
        """
        shared = {n: v for n, v in shared.items() if n in self._pipeline.columns}
        if self._rows.fitted.data.group is not None:  # features may depend on other rows
            return self._pipeline.arrays([{**shared, **row} for row in rows])
        division = self.division(frozenset(shared))
        return self.joined(division.once.arrays(shared), self.each(division, shared, rows), division)

    def each(self, division: Division, shared: Row, rows: Sequence[Row], history: Sequence[Row] = ()) -> Arrays:
        """Return the features of rows that need other columns than the shared ones.

        history: earlier rows of the group
        """
        common = {n: v for n, v in shared.items() if n in division.needed}
        rows = [{**common, **row} for row in rows] if common else rows
        if not division.past:
            return division.each.arrays(rows)
        return Arrays.concatenated([division.each.arrays([row], history) for row in rows])

    def joined(self, first: Arrays, each: Arrays, division: Division) -> Arrays:
        """Return all features of rows: the only row of `first`, repeated, beside the rows of `each`."""
        arrays = Arrays.empty(each.rows, self._features)
        places, singles = dense_slices(self._features), single_valued(self._features)
        values, lengths = {}, {}
        for pipeline, part in ((division.once, first), (division.each, each)):
            for name, span in dense_slices(pipeline.features).items():
                arrays.dense[:, places[name]] = part.dense[:, span]
            for i, name in enumerate(single_valued(pipeline.features)):
                arrays.ids[:, singles.index(name)] = part.ids[:, i]
            for name in part.values:
                same = part is first
                values[name] = np.tile(part.values[name], each.rows) if same else part.values[name]
                lengths[name] = np.repeat(part.lengths[name], each.rows) if same else part.lengths[name]
        bags = [f.name for f in self._features.sparse if f.multi_valued]
        return Arrays(arrays.dense, arrays.ids, {n: values[n] for n in bags}, {n: lengths[n] for n in bags})

    def division(self, shared: frozenset[str]) -> Division:
        """Divide the pipeline by the names of the shared columns, as in the files or as in the YAML."""
        if shared not in self._divisions:
            while len(self._divisions) >= KEPT:
                self._divisions.pop(next(iter(self._divisions)))
            data = self._rows.fitted.data
            names = {*shared, *(theirs for theirs, ours in data.source.rename.items() if ours in shared)}
            grouped = data.group is not None
            past = {*of_the_past(data)} if grouped else set()
            dense = {n for n in data.dense if n in past or self._reads({n}, set()) <= names}
            sparse = {n for n in data.sparse if n in past or self._reads(set(), {n}) <= names}
            others = set(data.dense) - dense, set(data.sparse) - sparse
            own = {n for n, look_back in data.look_backs.items() if look_back.reads_own}
            looks_back = grouped and not own.isdisjoint(others[0] | others[1])
            once = self._rows.restricted(dense, sparse)
            each = self._rows.restricted(*others, grouped=looks_back)
            needed = frozenset(n for n in shared if n in each.types)
            self._divisions[shared] = Division(RowTransforms(once), RowTransforms(each), needed, looks_back)
        return self._divisions[shared]

    def _reads(self, dense: set[str], sparse: set[str]) -> set[str]:
        """Return the raw columns that a feature reads."""
        return FeatureInputs.from_config(self._rows.fitted.restricted(dense, sparse, grouped=False).data).raw


def of_the_past(data: ResolvedData) -> list[str]:
    """Return the features, keys of data.dense and data.sparse, that read earlier rows of a group and not their own."""
    return [n for n, look_back in data.look_backs.items() if not look_back.reads_own]
