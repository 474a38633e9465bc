"""`encode: id`: whole numbers that are rows of the table already. Nothing is fitted, and they never become text."""

import polars as pl

from recsys.config.schema_data import DataConfig, SparseConfig
from recsys.data.transforms.columns import is_split, sparse_columns

Check = tuple[pl.Series, str]  # (rows,) whether they cannot be used, and why


def whole_numbers(raw: pl.DataFrame, name: str, c: SparseConfig) -> pl.Expr:
    """Int64, or lists of it, null where there is no whole number."""
    column = c.column or name
    dtype, x = raw.schema[column], pl.col(column)
    if not is_split(c):
        return _whole(x, dtype)
    if isinstance(dtype, pl.Array):
        x, dtype = x.arr.to_list(), pl.List(dtype.inner)
    if c.pattern is not None:
        x, dtype = x.cast(pl.String).str.extract_all(c.pattern), pl.List(pl.String)
    elif not isinstance(dtype, pl.List):
        x, dtype = x.cast(pl.String).str.split(c.split or ""), pl.List(pl.String)
    there = (
        pl.element().is_not_null() & (pl.element() != "") if dtype.inner == pl.String else pl.element().is_not_null()
    )
    x = x.list.eval(pl.element().filter(there))
    x = x.list.head(c.max_length) if c.max_length else x
    return x.list.eval(_whole(pl.element(), dtype.inner)).cast(pl.List(pl.Int64))


def _whole(x: pl.Expr, dtype: object) -> pl.Expr:
    """7 and 7.0 (as whole numbers come out of columns with missing ones) are 7; 7.5 is none."""
    if isinstance(dtype, pl.DataType) and (dtype.is_integer() or dtype == pl.Boolean):
        return x.cast(pl.Int64, strict=False)
    number = x.cast(pl.Float64, strict=False)
    return pl.when(number == number.floor()).then(number).cast(pl.Int64, strict=False)


def id_columns(data: DataConfig) -> dict[str, tuple[str, int]]:
    """By feature, the raw column and the table's rows."""
    return {n: (c.column or n, c.rows or 0) for n, c in sparse_columns(data).items() if c.encode == "id"}


def id_checks(columns: dict[str, tuple[str, int]], raw: pl.DataFrame, frame: pl.DataFrame) -> list[Check]:
    """A missing value is bad too: each row of the table is some value's, and none is known to be that of missing ones.

    raw: the rows as they were read; frame: typed.
    """
    checks: list[Check] = []
    for name, (column, rows) in columns.items():
        x = frame[name]
        odd = f"{column} is not a row of its table: a whole number from 0 to {rows - 1}"
        if x.dtype == pl.List:
            outside = pl.element().is_null() | (pl.element() < 0) | (pl.element() >= rows)
            found = frame.select(pl.col(name).list.eval(outside).list.any().fill_null(False)).to_series()
            checks.append((found, odd))
        elif not _all_rows(x, rows):
            there = raw[column].is_not_null()
            if raw[column].dtype == pl.String:
                there = there & ~raw[column].str.to_lowercase().is_in(["nan", ""])
            elif raw[column].dtype.is_float():
                there = there & raw[column].is_not_nan()
            checks.append((~there.fill_null(False), f"{column} is missing, and encode=id has no row for that"))
            checks.append((~x.is_between(0, rows - 1).fill_null(False), odd))
    return checks


def _all_rows(x: pl.Series, rows: int) -> bool:
    """Whether no row needs a closer look: nearly always, and quick to tell."""
    if x.null_count() or x.is_empty():
        return x.is_empty()
    low, high = x.min(), x.max()
    return isinstance(low, int) and isinstance(high, int) and low >= 0 and high < rows
