"""Transform raw rows into tensors at serving time, one or a few rows per call.

The steps are those of data preparation, but without files:

    pipeline = Pipeline.load("outputs/my_run")
    pipeline.save("serving")                      # one folder, which needs neither the run nor the raw data
    tensors = Pipeline.load("serving")({"int_1": 3, "cat_1": "68fd1e64", ...})

This module imports neither Lightning nor Hydra nor torchrec. The steps are in raw_rows.py; `recsys.predict` uses them
too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from recsys.data.raw.blocks import LINE, TEXT_FORMATS, BadRow, one_line
from recsys.data.transforms.columns import ResolvedData
from recsys.errors import UserError
from recsys.serving.python_values import Reader, RowError, reader
from recsys.serving.raw_rows import RawRows

if TYPE_CHECKING:
    from recsys.data.tensors import Tensors

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Column:
    """A raw column: its type, and the keys of a row under which its value may be found."""

    name: str
    keys: tuple[str, ...]
    dtype: pl.DataType
    read: Reader

    def value(self, row: Row, row_number: int | None) -> Any:
        """Return the row's value of this column, None if missing. Raises RowError if it cannot be read."""
        for key in self.keys:
            if key in row:
                try:
                    return self.read(row[key])
                except ValueError as e:
                    raise RowError(key, row[key], str(e), row_number) from e
        return None


class Pipeline:
    """Fitted transforms for serving single rows. A Pipeline holds no state between calls, so threads may share it."""

    def __init__(self, rows: RawRows) -> None:
        self._rows, self.fitted, self.features = rows, rows.fitted, rows.fitted.features
        data = self.fitted.data
        self._columns = [_column(data, name, dtype) for name, dtype in rows.types.items()]
        self._schema: dict[str, Any] = {LINE: pl.Int64, **rows.types}
        sides = rows.sides.values()
        self._joined = [_column(data, name, side.table.schema[name]) for side, names in sides for name in names]

    @classmethod
    def load(cls, folder: str | Path) -> Pipeline:
        """Load a pipeline from a folder that `save` wrote, a folder of prepared data, or a run's folder.

        Raises UserError for any other folder.
        """
        from recsys.data import tensors  # noqa: F401  (imports torch now, so that the first row does not wait for it)

        return cls(RawRows.load(Path(folder)))

    def save(self, folder: str | Path) -> None:
        """Write all that `load` needs into one folder, which may be copied anywhere."""
        self._rows.save(Path(folder))

    def __call__(self, rows: Row | Sequence[Row], history: Sequence[Row] = ()) -> Tensors:
        """Return the tensors of one row or of several. A row maps raw columns, named as in the files or the YAML, to
        values.

        Columns that a row lacks are missing values; columns that no feature reads are ignored. Columns of side tables
        come from the row if it has them, else from the table. Raises RowError for the first row that cannot be read.

        Args:
            rows: one row or several. Features that read earlier rows of a group (lags, last values) also read earlier
                rows of the same call.
            history: earlier rows, which such features read (lags, last values); no tensors are returned for them.
        """
        from recsys.data.tensors import Tensors

        return Tensors.from_frame(self.frame(rows, history), self.features, self.fitted.matrices)

    def frame(self, rows: Row | Sequence[Row], history: Sequence[Row] = ()) -> pl.DataFrame:
        """Return the same features as calling the pipeline, but as a data frame instead of tensors.

        Each column is a feature and has the type Float32, Int32 or List(Int32).
        """
        alone = isinstance(rows, Mapping)
        given: Sequence[Row] = [rows] if alone else rows  # type: ignore[list-item, assignment]
        raw = self._frame([*history, *given], alone and not history)
        parsed, bad = self._rows.parse_known_types(raw)
        if bad:
            raise _row_error(bad[0], raw, alone and not history)
        return self.fitted.apply(self._rows.in_context(parsed).tail(len(given)))

    def _frame(self, rows: Sequence[Row], alone: bool = False) -> pl.DataFrame:
        """Return the raw columns of the rows, with joined and derived columns."""
        places = [None] if alone else range(len(rows))
        for place, row in zip(places, rows, strict=True):
            if not isinstance(row, Mapping):
                where = "" if place is None else f"rows[{place}]: "
                raise UserError(f"{where}a row is a dict of columns and values, not {type(row).__name__}")
        values = [
            (i, *(c.value(row, p) for c in self._columns)) for i, (p, row) in enumerate(zip(places, rows, strict=True))
        ]
        try:
            frame = pl.DataFrame(values, schema=self._schema, orient="row")
        except (pl.exceptions.PolarsError, TypeError, ValueError, OverflowError) as e:
            raise UserError(f"a value does not have the type of its column: {one_line(e)}") from e
        given = {}
        for c in self._joined:
            present = [any(key in row for key in c.keys) for row in rows]
            if any(present):
                own = pl.Series([c.value(row, p) for p, row in zip(places, rows, strict=True)], dtype=c.dtype)
                given[c.name] = (own, pl.Series(present, dtype=pl.Boolean))
        return self._rows.complete(frame, given)


def _column(data: ResolvedData, name: str, dtype: pl.DataType) -> Column:
    renamed = data.source.rename
    keys = [renamed.get(name, name)]
    if name not in [*keys, *renamed.values()]:
        keys.append(name)
    separators = {c.split for n, c in data.sparse_columns.items() if c.split is not None and (c.column or n) == name}
    separator = separators.pop() if len(separators) == 1 else None
    text = data.source.format in TEXT_FORMATS  # in text files an empty field is a missing value
    whole = data.source.format in ("jsonl", "json")  # reads 7.0 as 7
    return Column(
        name, tuple(keys), dtype, reader(dtype, separator=separator, empty_is_missing=text, whole_floats=whole)
    )


def _row_error(bad: BadRow, raw: pl.DataFrame, alone: bool) -> RowError:
    """Return the error of a row with a column that cannot be read."""
    return RowError(bad.column, raw[bad.column][bad.line], bad.problem, None if alone else bad.line)
