"""Turn raw rows, as dicts, into features with polars: the steps of data preparation, for any feature."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from recsys.base.errors import UserError
from recsys.data.features.blocks import LINE, one_line
from recsys.online.python_values import RowError
from recsys.online.raw_columns import Row, column_of
from recsys.online.raw_rows import RawRows


class RowFrames:
    """Transforms rows into a data frame. An instance holds no state between calls, so threads may share it."""

    def __init__(self, rows: RawRows) -> None:
        self.rows, self.fitted, self.features = rows, rows.fitted, rows.fitted.features
        data = self.fitted.data
        self.columns = [column_of(data, name, dtype) for name, dtype in rows.types.items()]
        self._schema: dict[str, Any] = {LINE: pl.Int64, **rows.types}
        sides = rows.sides.values()
        self._joined = [column_of(data, name, side.table.schema[name]) for side, names in sides for name in names]

    @property
    def names(self) -> frozenset[str]:
        """The keys of rows that are read: raw columns, and joined ones, named as in the files or the YAML."""
        return frozenset(key for c in (*self.columns, *self._joined) for key in c.keys)

    def frame(self, rows: Row | Sequence[Row], history: Sequence[Row] = ()) -> pl.DataFrame:
        """Return one column for each feature: Float32, Int32 or List(Int32).

        Raises RowError for the first row that cannot be read.
        """
        alone = isinstance(rows, Mapping)
        given: Sequence[Row] = [rows] if alone else rows  # type: ignore[list-item, assignment]
        parsed = self.parsed([*history, *given], alone and not history)
        return self.fitted.apply(self.rows.in_context(parsed).tail(len(given)))

    def parsed(self, rows: Sequence[Row], alone: bool = False, *, past: bool = False) -> pl.DataFrame:
        """Return parsed rows with their row numbers in the column LINE.

        Args:
            alone: whether to leave the row's number out of errors.
            past: whether to leave out rows for which data.where is not true.

        Raises:
            RowError: for the first row that cannot be read.
        """
        places = [None] if alone else range(len(rows))
        for place, row in zip(places, rows, strict=True):
            if not isinstance(row, Mapping):
                where = "" if place is None else f"rows[{place}]: "
                raise UserError(f"{where}a row is a dict of columns and values, not {type(row).__name__}")
        values = [
            (i, *(c.value(row, p) for c in self.columns)) for i, (p, row) in enumerate(zip(places, rows, strict=True))
        ]
        try:
            frame = pl.DataFrame(values, schema=self._schema, orient="row")
        except (pl.exceptions.PolarsError, TypeError, ValueError, OverflowError) as e:
            raise UserError(f"a value does not have the type of its column: {one_line(e)}") from e
        given = {}
        for c in self._joined:
            present = [any(key in row for key in c.keys) for row in rows]
            if any(present):
                column_values = pl.Series([c.value(row, p) for p, row in zip(places, rows, strict=True)], dtype=c.dtype)
                given[c.name] = (column_values, pl.Series(present, dtype=pl.Boolean))
        raw = self.rows.complete(frame, given)
        parsed, bad = self.rows.parse_known_types(self.rows.keep_history(raw) if past else raw)
        if bad:
            first = bad[0]
            raise RowError(first.column, raw[first.column][first.line], first.problem, None if alone else first.line)
        return parsed
