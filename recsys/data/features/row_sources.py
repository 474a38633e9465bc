"""What a feature reads: one raw column, several columns, a list in a column, or earlier rows of its group."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar, Generic, TypeVar

import numpy as np
import polars as pl

from recsys.base.errors import UserError
from recsys.data.features.arrays import places_of_ranges
from recsys.data.features.blocks import CONDITION, one_line
from recsys.data.features.value_types import Check, RowNumber, Text, ValueType, as_value, parts_of
from recsys.schema.data_schema import DenseConfig, SparseConfig
from recsys.schema.source_schema import SourceConfig

C = TypeVar("C", DenseConfig, SparseConfig)
JOINT = "\x1f"  # joins the values of a cross: ASCII's unit separator
LOOK_BACK_KEYS = ("lag", "difference", "last")


@dataclass(frozen=True)
class FeatureEntry(Generic[C]):
    """An entry of data.dense or data.sparse. What is made of it raises UserError if its keys contradict each other.

    name: the feature's name
    key: its config key, which begins messages
    own: its config
    full: the same with the defaults filled in, of which those that do not apply to the feature are ignored
    """

    name: str
    key: str
    own: C
    full: C


@dataclass(frozen=True)
class RowSource(ABC):
    """What a feature reads of a raw row.

    column: the raw column; of a cross, the name of the feature
    max_length: the longest list that is kept; None without a limit
    """

    is_list: ClassVar[bool] = False  # a row has any number of values
    takes_lists: ClassVar[bool] = False  # the raw column may hold a list in each row
    column: str
    max_length: int | None = None

    @classmethod
    def from_config(cls, entry: FeatureEntry[SparseConfig]) -> RowSource:
        """Return the source of a sparse feature."""
        c, own, where = entry.full, entry.own, entry.key
        keys = [k for k in ("split", "pattern", "cross", "quantiles") if getattr(c, k) is not None]
        if len(keys) > 1:
            raise UserError(f"{where}: {keys[0]} and {keys[1]} cannot be combined; remove one of them")
        column = c.column or entry.name
        if c.cross is not None:
            if len(set(c.cross)) < max(2, len(c.cross)):
                raise UserError(f"{where}.cross={c.cross}: needs two or more different columns")
            if own.column is not None:
                raise UserError(f"{where}.column={own.column}: is ignored with cross; remove one of them")
            return Cross(column, c.max_length, tuple(c.cross))
        if c.split is not None:
            return Separated(column, c.max_length, c.split)
        if c.pattern is None:
            return Column(column, c.max_length)
        try:
            pl.Series([""]).str.extract_all(c.pattern)
        except pl.exceptions.PolarsError as e:
            lines = [line for line in str(e).splitlines() if line.startswith("error: ")] or [one_line(e)]
            problem = lines[0].removeprefix("error: ")
            raise UserError(f"{where}.pattern={c.pattern!r}: not a regular expression: {problem}") from e
        return Pattern(column, c.max_length, pattern=c.pattern)

    @property
    def columns(self) -> tuple[str, ...]:
        """The raw columns."""
        return (self.column,)

    @property
    def absent(self) -> str:
        """The text of a missing value."""
        return ""

    def fingerprint(self) -> list[object]:
        """Return column, cross, pattern, split and max_length, for the fingerprints of prepared data."""
        own = (getattr(self, name, None) for name in ("crossed", "pattern", "separator"))
        return [self.column, *own, self.max_length]

    @abstractmethod
    def expr(self, type_: ValueType, source: SourceConfig, schema: pl.Schema) -> pl.Expr:
        """Return the column of parsed rows: values, or lists of them."""

    def checks(self, type_: ValueType, raw: pl.DataFrame, parsed: pl.Series) -> list[Check]:
        """Find the rows whose values cannot be read."""
        return type_.checks(self.column, raw[self.column], parsed)


@dataclass(frozen=True)
class Column(RowSource):
    """The value of a column."""

    def expr(self, type_: ValueType, source: SourceConfig, schema: pl.Schema) -> pl.Expr:
        return type_.expr(source, schema, self.column)


@dataclass(frozen=True)
class Cross(RowSource):
    """The values of several columns, which together form one value."""

    crossed: tuple[str, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        return self.crossed

    @property
    def absent(self) -> str:
        return JOINT.join([""] * len(self.crossed))

    def expr(self, type_: ValueType, source: SourceConfig, schema: pl.Schema) -> pl.Expr:
        return pl.concat_str([as_value(schema, c).fill_null("") for c in self.crossed], separator=JOINT)

    def checks(self, type_: ValueType, raw: pl.DataFrame, parsed: pl.Series) -> list[Check]:
        return []


@dataclass(frozen=True)
class Separated(RowSource):
    """The elements of a list, or of text that a separator divides."""

    is_list = takes_lists = True
    separator: str | None = None

    def expr(self, type_: ValueType, source: SourceConfig, schema: pl.Schema) -> pl.Expr:
        values, inner = self._lists(schema[self.column])
        assert isinstance(type_, Text | RowNumber)
        lists = type_.lists(values, inner)
        return lists.list.head(self.max_length) if self.max_length else lists

    def _lists(self, dtype: pl.DataType) -> tuple[pl.Expr, pl.DataType]:
        """Return the lists of a raw column, and the type of their elements."""
        x = pl.col(self.column)
        if isinstance(dtype, pl.List | pl.Array):
            return x.arr.to_list() if isinstance(dtype, pl.Array) else x, dtype.inner  # type: ignore[return-value]
        return parts_of(x, self.separator or ""), pl.String()


@dataclass(frozen=True)
class Pattern(Separated):
    """The matches of a regular expression in a column's text."""

    takes_lists = False
    pattern: str = ""

    def _lists(self, dtype: pl.DataType) -> tuple[pl.Expr, pl.DataType]:
        return pl.col(self.column).cast(pl.String).str.extract_all(self.pattern), pl.String()


@dataclass(frozen=True)
class LookBack(ABC):
    """What a feature takes of earlier rows of its group.

    key: its key in YAML
    rows: the number of earlier rows that it needs
    where: SQL; only earlier rows for which it is true count
    condition: the column of parsed rows that says for which rows it is true; None without `where`
    """

    key: ClassVar[str]
    is_list: ClassVar[bool] = False  # a row has a value of each of these rows
    reads_own: ClassVar[bool] = False  # it reads the row itself, too
    is_difference: ClassVar[bool] = False  # it is a difference of numbers, or of times in seconds
    rows: int
    where: str | None = None
    condition: str | None = field(default=None, compare=False)

    @staticmethod
    def from_config(c: DenseConfig | SparseConfig, where: str) -> LookBack | None:
        """Return what a feature takes of earlier rows; None if it reads its own row alone. where: its config key"""
        age = getattr(c, "age", None)
        if age and c.last is None:  # type: ignore[union-attr]
            raise UserError(f"{where}.age=true: needs last, the number of earlier rows whose ages are listed")
        keys = {k: n for k in LOOK_BACK_KEYS if (n := getattr(c, k, None)) is not None}
        if len(keys) > 1:
            first, second, *_ = keys
            raise UserError(f"{where}: {first} and {second} cannot be combined; remove one of them")
        if not keys and c.where:
            raise UserError(f"{where}.where={c.where!r}: chooses among earlier rows; set lag, difference or last, too")
        kinds: dict[str, type[LookBack]] = {"lag": Lag, "difference": RowDifference, "last": Age if age else Last}
        condition = f"{CONDITION}{where}.where" if c.where else None
        return next((kinds[k](n, c.where, condition) for k, n in keys.items()), None)

    def column(self, rows: pl.DataFrame, name: str, starts: np.ndarray, stops: np.ndarray) -> pl.Series:
        """Return the feature's column.

        Args:
            rows: n rows, one group after another, in order.
            name: the column of their values.
            starts, stops: (n,) each row looks back to rows[start:stop].
        """
        if self.condition is None:
            return self._taken(rows[name], rows[name], starts, stops)
        counts = rows[self.condition].to_numpy()
        before = np.concatenate([[0], np.cumsum(counts)])  # the rows before each row that count
        return self._taken(rows[name], rows[name].filter(rows[self.condition]), before[starts], before[stops])

    @abstractmethod
    def _taken(self, own: pl.Series, past: pl.Series, starts: np.ndarray, stops: np.ndarray) -> pl.Series:
        """Return what rows take: (n,) their own values; a row looks back to past[start:stop]."""


class Lag(LookBack):
    """The value of the n-th row before; missing if the group has no such row."""

    key = "lag"

    def _taken(self, own: pl.Series, past: pl.Series, starts: np.ndarray, stops: np.ndarray) -> pl.Series:
        places = stops - self.rows
        return past.gather(pl.select(pl.when(pl.lit(places >= starts)).then(pl.lit(places))).to_series())


class RowDifference(Lag):
    """The number or time of the row minus that of the n-th row before."""

    key = "difference"
    reads_own = is_difference = True

    def _taken(self, own: pl.Series, past: pl.Series, starts: np.ndarray, stops: np.ndarray) -> pl.Series:
        return own - super()._taken(own, past, starts, stops)


class Last(LookBack):
    """The values of the last n rows before, oldest first."""

    key = "last"
    is_list = True

    def _taken(self, own: pl.Series, past: pl.Series, starts: np.ndarray, stops: np.ndarray) -> pl.Series:
        return slices(past, np.maximum(starts, stops - self.rows), stops)


class Age(LookBack):
    """The number or time of the row minus those of the last n rows before, null where either is missing."""

    key = "last"
    is_list = reads_own = is_difference = True

    def _taken(self, own: pl.Series, past: pl.Series, starts: np.ndarray, stops: np.ndarray) -> pl.Series:
        first = np.maximum(starts, stops - self.rows)
        earlier = past.gather(places_of_ranges(first, stops - first))
        return lists(own.gather(np.repeat(np.arange(len(stops)), stops - first)) - earlier, stops - first)


def slices(x: pl.Series, first: np.ndarray, stop: np.ndarray) -> pl.Series:
    """Return the list x[first:stop] for each pair: (n,), (n,) -> (n,) lists. Missing text becomes the empty text."""
    values = x.fill_null("") if x.dtype == pl.String else x
    return lists(values.gather(places_of_ranges(first, stop - first)), stop - first)


def lists(values: pl.Series, lengths: np.ndarray) -> pl.Series:
    """Return lists of these lengths, (n,), of (P,) values one after another."""
    import pyarrow as pa  # serving needs it only here

    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int64())
    series = pl.from_arrow(pa.LargeListArray.from_arrays(offsets, values.to_arrow()))
    assert isinstance(series, pl.Series)
    return series.alias(values.name)
