"""Parse and check the values of `encode: id`: whole numbers that are rows of the table. Nothing is fitted."""

from typing import NamedTuple

import polars as pl

from recsys.data.transforms.resolved_data import ResolvedData, is_split
from recsys.data.transforms.values import parts_of
from recsys.schema.data_schema import SparseConfig


def whole_numbers(schema: pl.Schema, name: str, c: SparseConfig) -> pl.Expr:
    """Return Int64, or lists of it, null for values that are not whole numbers."""
    column = c.column or name
    dtype, x = schema[column], pl.col(column)
    if not is_split(c):
        return _whole(x, dtype)
    if isinstance(dtype, pl.Array):
        x, dtype = x.arr.to_list(), pl.List(dtype.inner)
    if c.pattern is not None:
        x, dtype = x.cast(pl.String).str.extract_all(c.pattern), pl.List(pl.String)
    elif not isinstance(dtype, pl.List):
        x, dtype = parts_of(x, c.split or ""), pl.List(pl.String)
    given = pl.element().is_not_null()
    x = x.list.eval(pl.element().filter(given & (pl.element() != "") if dtype.inner == pl.String else given))
    x = x.list.head(c.max_length) if c.max_length else x
    return x.list.eval(_whole(pl.element(), dtype.inner)).cast(pl.List(pl.Int64))


def _whole(x: pl.Expr, dtype: object) -> pl.Expr:
    """Cast 7 and 7.0 to 7 (columns of whole numbers with missing values are floats), and 7.5 to null."""
    if isinstance(dtype, pl.DataType) and (dtype.is_integer() or dtype == pl.Boolean):
        return x.cast(pl.Int64, strict=False)
    number = x.cast(pl.Float64, strict=False)
    return pl.when(number == number.floor()).then(number).cast(pl.Int64, strict=False)


class Check(NamedTuple):
    """Rows that cannot be read for one reason.

    bad: (rows,) which rows
    column: the raw column
    problem: description of the problem
    role: role of the column, such as label
    """

    bad: pl.Series
    column: str
    problem: str
    role: str = ""

    @property
    def reason(self) -> str:
        return " ".join(filter(None, [self.role, self.column, self.problem]))


def id_columns(data: ResolvedData) -> dict[str, tuple[str, int]]:
    """Return the raw column and the table's number of rows for each feature of encode=id."""
    return {n: (c.column or n, c.rows or 0) for n, c in data.sparse_columns.items() if c.encode == "id"}


def id_checks(columns: dict[str, tuple[str, int]], raw: pl.DataFrame, frame: pl.DataFrame) -> list[Check]:
    """Find rows whose ids are missing or out of range. A missing value is bad because no table row is meant for it.

    Args:
        columns: columns that `id_columns` returned.
        raw: the raw rows.
        frame: the parsed rows.
    """
    checks: list[Check] = []
    for name, (column, rows) in columns.items():
        x = frame[name]
        problem = f"is not a whole number from 0 to {rows - 1}"
        if x.dtype == pl.List:
            outside = pl.element().is_null() | (pl.element() < 0) | (pl.element() >= rows)
            bad = frame.select(pl.col(name).list.eval(outside).list.any().fill_null(False)).to_series()
            checks.append(Check(bad, column, problem))
        elif not _all_in_range(x, rows):
            given = raw[column].is_not_null()
            if raw[column].dtype == pl.String:
                given = given & ~raw[column].str.to_lowercase().is_in(["nan", ""])
            elif raw[column].dtype.is_float():
                given = given & raw[column].is_not_nan()
            checks.append(Check(~given.fill_null(False), column, "is missing, and encode=id has no row for that"))
            checks.append(Check(~x.is_between(0, rows - 1).fill_null(False), column, problem))
    return checks


def _all_in_range(x: pl.Series, rows: int) -> bool:
    """Return True if all ids are valid: the usual case, which is quick to check."""
    if x.null_count() or x.is_empty():
        return x.is_empty()
    low, high = x.min(), x.max()
    return isinstance(low, int) and isinstance(high, int) and low >= 0 and high < rows
