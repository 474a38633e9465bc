"""Convert Python values to the type of a raw column: text for CSV, the column's type for Parquet."""

from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import polars as pl

from recsys.base.errors import UserError

Reader = Callable[[Any], Any]
MISSING = ("", "nan")  # text that counts as a missing number


class RowError(UserError):
    """A row that cannot be read: row, column, value and the reason. rows: what the message calls the rows"""

    def __init__(self, column: str, value: object, why: str, row: int | None, rows: str = "rows") -> None:
        shown = repr(value) if len(repr(value)) <= 80 else repr(value)[:77] + "..."
        super().__init__(f"{'' if row is None else f'{rows}[{row}]: '}column {column}: {shown} {why}")
        self.column, self.value, self.why, self.row = column, value, why, row


def reader(
    dtype: pl.DataType, *, separator: str | None = None, empty_is_missing: bool = False, whole_floats: bool = False
) -> Reader:
    """Return a function that converts a Python value to a value of a `dtype` column, None if it is missing.

    The function raises ValueError for a value that cannot be converted.

    Args:
        dtype: type of the column.
        separator: joins the elements of a list, if the column is text.
        empty_is_missing: whether empty text is a missing value.
        whole_floats: whether the text of 7.0 is 7.
    """
    typed = _typed(dtype, separator, empty_is_missing)

    def read(value: object) -> Any:
        if isinstance(value, np.generic | np.ndarray):
            value = value.tolist()
        if whole_floats:
            value = without_point(value)
        try:
            return None if value is None else typed(value)
        except UnicodeError as e:
            raise ValueError("is not UTF-8 text") from e
        except ArithmeticError as e:
            raise ValueError(f"is out of the range of {dtype}") from e

    return read


def without_point(value: object) -> object:
    """Return floats that are whole numbers as integers, in lists too."""
    if isinstance(value, list | tuple):
        return [without_point(v) for v in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _typed(dtype: pl.DataType, separator: str | None, empty_is_missing: bool) -> Reader:
    if dtype == pl.String:
        return lambda value: _text(value, separator) or (None if empty_is_missing else "")
    if dtype.is_integer():
        bounds = integer_bounds(dtype)
        return lambda value: _integer(value, *bounds)
    if dtype.is_float():
        return lambda value: None if (number := _number(value, float)) is None else float(number)
    if dtype.is_decimal():
        return _decimal
    if dtype == pl.Boolean:
        return _boolean
    if isinstance(dtype, pl.Datetime):
        zone = ZoneInfo(dtype.time_zone) if dtype.time_zone else None
        return lambda value: _moment(value, zone)
    if dtype == pl.Date:
        return lambda value: None if (moment := _moment(value, None)) is None else moment.date()
    if isinstance(dtype, pl.List | pl.Array):
        element = reader(dtype.inner)  # type: ignore[arg-type]
        return lambda value: _elements(value, element)
    return lambda value: value


def _text(value: object, separator: str | None) -> str | None:
    if isinstance(value, str):
        if not value.isascii():
            value.encode()  # raises for surrogates
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return None if value != value else repr(value)
    if isinstance(value, int | Decimal | date):
        return str(value)
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, list | tuple):
        if separator is None:
            raise ValueError("is a list, not one value")
        return separator.join(_text(v, None) or "" for v in value if v is not None)
    raise ValueError(f"has type {type(value).__name__}, which a text column cannot hold")


def _integer(value: object, low: int, high: int) -> int | None:
    number = _number(value, int)
    if number is None or number != number:
        return None
    if number in (float("inf"), float("-inf")) or number != int(number):
        raise ValueError("is not a whole number")
    if not low <= number <= high:
        raise ValueError(f"is not between {low} and {high}")
    return int(number)


def _number(value: object, parse_text: Callable[[str], Any]) -> Any:
    """Return the number; None for text that stands for a missing number."""
    if isinstance(value, int | float | Decimal):
        return value
    if not isinstance(value, str) or "_" in value:
        raise ValueError("is not a number")
    if value.lower() in MISSING:
        return None
    for parse in (parse_text, float):
        try:
            return parse(value)
        except ValueError:
            continue
    raise ValueError("is not a number")


def _decimal(value: object) -> Decimal | None:
    number = _number(value, Decimal) if not isinstance(value, str) else value
    try:
        return None if number is None or str(number).lower() in MISSING else Decimal(str(number))
    except InvalidOperation as e:
        raise ValueError("is not a number") from e


def _boolean(value: object) -> bool | None:
    named = {"true": True, "false": False, "1": True, "0": False} | dict.fromkeys(MISSING)
    if (text := str(value).lower()) not in named:
        raise ValueError("is neither true nor false")
    return named[text]


def _moment(value: object, zone: ZoneInfo | None) -> datetime | None:
    """Parse a time.

    In a column with a time zone, a time without a zone is taken to be in that zone. In a column without one, times are
    converted to UTC.
    """
    if value == "" or value != value:  # NaN means missing, whatever the type
        return None
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError as e:
            raise ValueError("is not a time") from e
    if isinstance(value, date) and not isinstance(value, datetime):
        value = datetime(value.year, value.month, value.day)
    if not isinstance(value, datetime):
        raise ValueError("is not a time")
    if zone is not None:
        return value.astimezone(zone) if value.tzinfo else value.replace(tzinfo=zone)
    return value.astimezone(UTC).replace(tzinfo=None) if value.tzinfo else value


def _elements(value: object, element: Reader) -> list[Any]:
    if not isinstance(value, list | tuple):
        raise ValueError("is not a list")
    return [element(v) for v in value]


def integer_bounds(dtype: pl.DataType) -> tuple[int, int]:
    """Return the smallest and the largest number of a type of integers."""
    bits = int("".join(c for c in str(dtype) if c.isdigit()))
    return (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if dtype.is_signed_integer() else (0, 2**bits - 1)
