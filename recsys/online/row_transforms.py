"""Transform raw rows into arrays or tensors at serving time, one or a few rows per call.

The steps are the same as in data preparation, but without files:

    pipeline = RowTransforms.load("outputs/my_run")
    pipeline.save("serving")                      # one folder, which needs neither the run nor the raw data
    tensors = RowTransforms.load("serving")({"int_1": 3, "cat_1": "68fd1e64", ...})

`arrays` returns the same as numpy arrays. This module imports neither Lightning nor Hydra nor torchrec, and torch only
when a pipeline is called for tensors. Most features are computed without polars (fast_columns.py), the others by the
steps in raw_rows.py, which `recsys.predict` uses, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from recsys.base.errors import UserError
from recsys.data.features.arrays import Arrays, dense_slices, single_valued
from recsys.data.features.resolved_data import ResolvedData
from recsys.data.raw.derive import FeatureInputs
from recsys.online.fast_columns import ColumnFeatures
from recsys.online.raw_columns import Row, python_columns
from recsys.online.raw_rows import RawRows, RowFrames

if TYPE_CHECKING:
    from recsys.data.features.batch_tensors import RowTensors

UNUSUAL = (UserError, KeyError, TypeError, ValueError, ArithmeticError)  # rows that only polars reads, or bad ones
KEPT = 16  # sets of shared columns whose division is kept


class RowTransforms:
    """Fitted transforms for serving single rows. Threads may share a RowTransforms."""

    def __init__(self, rows: RawRows) -> None:
        self._rows, self.fitted, self.features = rows, rows.fitted, rows.fitted.features
        self._frames = RowFrames(rows)
        self._fast: ColumnFeatures | None = None
        self._rest: RowFrames | None = None
        if self.fitted.data.sequences is None:
            self._fast = ColumnFeatures(self._frames)
            # with groups, each row has to have one, whatever the features
            checks_groups = self.fitted.data.group is None or self._fast.groups is not None
            if self._fast.dense or self._fast.sparse or not checks_groups:
                self._rest = RowFrames(rows.restricted(self._fast.dense, self._fast.sparse))

    @classmethod
    def load(cls, folder: str | Path) -> RowTransforms:
        """Load a pipeline from a folder that `save` wrote, a folder of prepared data, or a run's folder.

        Raises UserError for any other folder.
        """
        return cls(RawRows.load(Path(folder)))

    def save(self, folder: str | Path) -> None:
        """Write all that `load` needs into one folder, which may be copied anywhere."""
        self._rows.save(Path(folder))

    @property
    def columns(self) -> frozenset[str]:
        """The keys of rows that are read, named as in the files or the YAML."""
        return self._frames.names

    def __call__(self, rows: Row | Sequence[Row], history: Sequence[Row] = ()) -> RowTensors:
        """Return the features of one row or of several as tensors; see `arrays`. Imports torch."""
        from recsys.data.features.batch_tensors import RowTensors

        return RowTensors.from_arrays(self.arrays(rows, history), self.features)

    def arrays(self, rows: Row | Sequence[Row], history: Sequence[Row] = ()) -> Arrays:
        """Return the features of one row or of several. A row maps raw columns, named as in the files or the YAML, to
        values.

        Columns that a row lacks are missing values; columns that no feature reads are ignored. Columns of side tables
        come from the row if it has them, else from the table. Raises RowError for the first row that cannot be read.

        Args:
            rows: one row or several. Features that read earlier rows of a group (lags, last values) also read earlier
                rows of the same call, unless they are of the same time (data.group.ties).
            history: earlier rows, which such features read (lags, last values); no features are returned for them.
        """
        given: Sequence[Row] = [rows] if isinstance(rows, Mapping) else rows
        if self._fast is not None and given:
            try:
                arrays = self._fast.from_rows([*history, *given])
                if first := arrays.rows - len(given):  # leave the history out
                    values = {n: v[arrays.lengths[n][:first].sum() :] for n, v in arrays.values.items()}
                    lengths = {n: x[first:] for n, x in arrays.lengths.items()}
                    arrays = Arrays(arrays.dense[first:], arrays.ids[first:], values, lengths)
                if self._rest is not None:
                    # features that go through polars
                    frames, features = self._rest, self._rest.features
                    rest = Arrays.from_frame(frames.frame(given, history), features, frames.fitted.matrices)
                    places = dense_slices(self.features)
                    for name, own in dense_slices(features).items():
                        arrays.dense[:, places[name]] = rest.dense[:, own]
                    singles = single_valued(self.features)
                    for i, name in enumerate(single_valued(features)):
                        arrays.ids[:, singles.index(name)] = rest.ids[:, i]
                    arrays.values.update(rest.values)
                    arrays.lengths.update(rest.lengths)
                return self._in_order(arrays)
            except UNUSUAL:
                pass  # polars reads the rows, or says what is wrong with them
        return Arrays.from_frame(self.frame(rows, history), self.features, self.fitted.matrices)

    def arrays_of_columns(self, columns: Mapping[str, Sequence[Any]], rows: int) -> Arrays:
        """Return the features of rows that are given by column; see `arrays`.

        Args:
            columns: (rows,) values for each raw column: lists, numpy arrays or polars Series. Columns that are left
                out have no values.
            rows: the number of rows.

        Raises:
            RowError: a row cannot be read.
            UserError: a column has another number of values.
        """
        lists = python_columns(columns, rows)
        if self._fast is not None and self._rest is None and rows:
            try:
                return self._in_order(self._fast.from_columns(lists, rows))
            except UNUSUAL:
                pass
        if not lists:
            return self.arrays([{} for _ in range(rows)])
        return self.arrays([dict(zip(lists, values, strict=True)) for values in zip(*lists.values(), strict=True)])

    def frame(self, rows: Row | Sequence[Row], history: Sequence[Row] = ()) -> pl.DataFrame:
        """Return the features that `arrays` returns as a data frame.

        Each column is a feature and has the type Float32, Int32 or List(Int32).
        """
        return self._frames.frame(rows, history)

    def _in_order(self, arrays: Arrays) -> Arrays:
        """Return the arrays with multi-valued features in the order of the FeatureSpec."""
        bags = [f.name for f in self.features.sparse if f.multi_valued]
        values, lengths = ({n: x[n] for n in bags} for x in (arrays.values, arrays.lengths))
        return Arrays(arrays.dense, arrays.ids, values, lengths)


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
