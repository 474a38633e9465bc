"""What a feature reads of a raw row: one column, several together, or the values that one column lists."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

import polars as pl

from recsys.base.errors import UserError
from recsys.data.features.blocks import one_line
from recsys.data.features.value_types import Check, RowNumber, Text, ValueType, as_value, parts_of
from recsys.schema.data_schema import DenseConfig, SparseConfig
from recsys.schema.source_schema import SourceConfig

C = TypeVar("C", DenseConfig, SparseConfig)
JOINT = "\x1f"  # joins the values of a cross: ASCII's unit separator


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
        return [self.column, None, None, None, self.max_length]

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

    def fingerprint(self) -> list[object]:
        return [self.column, [*self.crossed], None, None, self.max_length]

    def expr(self, type_: ValueType, source: SourceConfig, schema: pl.Schema) -> pl.Expr:
        return pl.concat_str([as_value(schema, c).fill_null("") for c in self.crossed], separator=JOINT)

    def checks(self, type_: ValueType, raw: pl.DataFrame, parsed: pl.Series) -> list[Check]:
        return []


@dataclass(frozen=True)
class Separated(RowSource):
    """The elements of a list, or of text that a separator divides."""

    is_list = takes_lists = True
    separator: str | None = None

    def fingerprint(self) -> list[object]:
        return [self.column, None, None, self.separator, self.max_length]

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

    def fingerprint(self) -> list[object]:
        return [self.column, None, self.pattern, None, self.max_length]

    def _lists(self, dtype: pl.DataType) -> tuple[pl.Expr, pl.DataType]:
        return pl.col(self.column).cast(pl.String).str.extract_all(self.pattern), pl.String()
