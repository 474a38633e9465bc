"""The raw columns that features read: their keys in rows, and how their values are read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from operator import itemgetter
from typing import Any

import polars as pl

from recsys.base.errors import UserError
from recsys.data.features.blocks import BLANK, TEXT_FORMATS
from recsys.data.features.fitted import Fitted
from recsys.data.features.raw_types import (
    RawJoined,
    RawList,
    RawNumber,
    RawText,
    RawTime,
    RawType,
    RawWhole,
    UntypedText,
)
from recsys.data.features.resolved_data import ResolvedData
from recsys.data.features.row_sources import Separated
from recsys.data.features.value_types import Number, Time
from recsys.data.raw.derive import null_texts
from recsys.online.row_error import RowError
from recsys.schema.source_schema import SourceConfig

Row = Mapping[str, Any]
Cells = Sequence[Any]  # the values of one column
MAX_TRANSPOSED_ROWS = 8  # rows that are transposed one by one


@dataclass(frozen=True)
class RawColumn:
    """A raw column: its type, and the keys of a row under which its value may be found.

    read: converts a value of Python or JSON to one of `type.dtype`, None if missing; ValueError if it is refused
    """

    name: str
    keys: tuple[str, ...]
    type: RawType
    read: Callable[[Any], Any]

    @property
    def dtype(self) -> pl.DataType:
        """The type of the column in the training files."""
        return self.type.dtype

    @property
    def is_exact(self) -> bool:
        """True if text is looked up as it is."""
        return isinstance(self.type, RawText)

    @property
    def holds_numbers(self) -> bool:
        """True if a NumberParser reads the values of this column."""
        return self.dtype in (pl.String, pl.Float64, pl.Float32) or self.dtype.is_integer()

    def value(self, row: Row, row_number: int | None) -> Any:
        """Return the row's value of this column, None if missing. Raises RowError if it cannot be read."""
        for key in self.keys:
            if key in row:
                try:
                    return self.read(row[key])
                except ValueError as e:
                    raise RowError(key, row[key], str(e), row_number) from e
        return None


def raw_type(fitted: Fitted, name: str, dtype: pl.DataType) -> RawType:
    """Return the meaning of a raw column. dtype: its type in the training files"""
    known, data = fitted.types, fitted.data
    text: RawType = UntypedText(pl.String()) if known is None else known.get(name, RawText(pl.String()))
    if data.source.decimal != "." and isinstance(text, RawText) and Number in data.column_reads.get(name, ()):
        text = RawNumber(pl.String(), data.source.decimal)  # 1.5 as text may be 15
    own = RawType.of_dtype(dtype)
    is_number = isinstance(text if isinstance(own, RawText) else own, RawWhole | RawNumber)
    if is_number and data.column_reads.get(name) == {Time} and name not in data.moments.values():
        return RawTime(own.dtype)  # numbers since 1970, of which only clocks and calendars are read
    sources = [c.source for c in data.sparse_columns.values() if c.column == name]
    separators = {s.separator for s in sources if isinstance(s, Separated) and s.separator is not None}
    separator = separators.pop() if len(separators) == 1 else None
    if isinstance(own, RawList):
        return replace(own, element=text if isinstance(own.element, RawText) else own.element, separator=separator)
    if not isinstance(own, RawText):
        return own
    return text if separator is None else RawJoined(own.dtype, separator, text)


def column_of(data: ResolvedData, name: str, type_: RawType) -> RawColumn:
    """Return the raw column that the YAML names `name`."""
    renamed = data.source.rename
    keys = [renamed.get(name, name)]
    if name not in [*keys, *renamed.values()]:
        keys.append(name)
    if type_.dtype != pl.String or data.source.format not in TEXT_FORMATS:
        return RawColumn(name, tuple(keys), type_, type_.read)

    def read(value: Any) -> Any:
        return type_.read(value) or None  # in these formats, an empty field is a missing value

    return RawColumn(name, tuple(keys), type_, read)


def text_cleaner(source: SourceConfig, column: str) -> Callable[[str], str | None] | None:
    """Return the function that does for one value what `derive.clean` does for a column; None if it does nothing."""
    missing, strip = null_texts(source, column), source.strip
    if not (missing or strip):
        return None

    def clean(text: str) -> str | None:
        bare = text.strip(BLANK)
        return None if bare in missing else (bare or None) if strip else text

    return clean


class Transpose:
    """Turns rows into columns."""

    def __init__(self, columns: Sequence[RawColumn]) -> None:
        self._keys = [(c.keys[0], c.keys[-1]) for c in columns]
        first = [key for key, _ in self._keys]
        # one call into C for each row; itemgetter returns a tuple only if it has several keys
        self._get = itemgetter(*first) if len(first) > 1 else lambda row: tuple(row[key] for key in first)

    def rows(self, rows: Sequence[Row]) -> list[Cells]:
        """Return the values of each column of at least one row: (rows,) each, None if missing.

        Raises TypeError if a row is not a dict.
        """
        if set(map(type, rows)) != {dict}:
            if not all(isinstance(row, Mapping) for row in rows):
                raise TypeError
            rows = [dict(row) for row in rows]
        keys = list(rows[0])
        # as the rows of one client usually are
        if len(rows) > MAX_TRANSPOSED_ROWS and list(chain.from_iterable(rows)) == keys * len(rows):
            values: list[Any] = list(chain.from_iterable(map(dict.values, rows)))  # type: ignore[arg-type]
            return self.columns({key: values[i :: len(keys)] for i, key in enumerate(keys)}, len(rows))
        try:
            tuples = [self._get(row) for row in rows]
        except KeyError:  # a row lacks a key, or has the other name
            tuples = [[row[a] if a in row else row.get(b) for a, b in self._keys] for row in rows]
        return list(zip(*tuples, strict=True))

    def columns(self, columns: Mapping[str, Cells], rows: int) -> list[Cells]:
        """Return the values of each column, taken from raw columns by name: (rows,) each, None if missing."""
        nothing = [None] * rows
        return [columns[a] if a in columns else columns.get(b, nothing) for a, b in self._keys]


def python_columns(columns: Mapping[str, Any], rows: int) -> dict[str, list[Any]]:
    """Return columns (lists, tuples, numpy arrays, polars Series) as lists. Raises UserError for a wrong length."""
    lists = {}
    for name, values in columns.items():
        if type(values) is not list:
            to_list = getattr(values, "tolist", None) or getattr(values, "to_list", None)
            values = list(values) if to_list is None else to_list()
        lists[name] = values
        if len(lists[name]) != rows:
            raise UserError(f"column {name}: has {len(lists[name])} values for {rows} rows; give one for each row")
    return lists
