"""The types of values in parsed rows: how a raw column is read as each of them, and which values cannot be read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import polars as pl

from recsys.base.ranges import FLOAT32_MAX
from recsys.data.features.blocks import BLANK
from recsys.data.features.vectors import normalise
from recsys.files.text_values import as_text
from recsys.schema.source_schema import SourceConfig

# 2024-01-31, 2024/01/31 or 20240131; then T or a space, 12:34, 12:34:56 or 123456, a fraction; then Z or +02:00
ISO = (
    r"^\s*([0-9]{4})(?:-([0-9]{1,2})-|/([0-9]{1,2})/|([0-9]{2}))([0-9]{1,2})"
    r"(?:[Tt ]\s*([0-9]{1,2}):?([0-9]{2})(?::?([0-9]{2}))?(?:[.,]([0-9]*))?)?"
    r"\s*(?:[Zz]|UTC|([+-])([0-9]{2}):?([0-9]{2})?)?\s*$"
)
DAY = (19_000_101, 21_991_231)  # numbers in this range are dates yyyymmdd if there is such a day
UNITS = ((1e11, 1_000_000), (1e14, 1_000), (1e17, 1))  # below 1e11: seconds (to the year 5138), ...; above all: ns
LAST = 2**63 - 1
SINCE, UNTIL = 315_532_800, 4_102_444_800  # 1980 and 2100, in seconds since 1970


def unit_of_time(x: float) -> str | None:
    """Return the unit of a number that counts from 1970 to a moment between 1980 and 2100; None for other numbers."""
    units = {"seconds": 1, "milliseconds": 1e3, "microseconds": 1e6, "nanoseconds": 1e9}
    return next((name for name, factor in units.items() if SINCE <= x / factor < UNTIL), None)


def as_time(column: str, dtype: pl.DataType) -> pl.Expr:
    """Parse a column as Datetime (microseconds, UTC; as they are if they have no zone), null if not a time.

    Numbers count from 1970 in the unit that fits their magnitude; text is ISO 8601, a date, or a number.
    """
    x = pl.col(column)
    if isinstance(dtype, pl.Datetime):
        x = x if dtype.time_zone is None else x.dt.convert_time_zone("UTC").dt.replace_time_zone(None)
        return x.cast(pl.Datetime("us"))
    if dtype == pl.Date:
        return x.cast(pl.Datetime("us"))
    if dtype == pl.String:
        return x.map_batches(_times_from_text, return_dtype=pl.Datetime("us"), is_elementwise=True)
    return _time_from_number(x.cast(pl.Float64, strict=False))


def _time_from_number(x: pl.Expr) -> pl.Expr:
    micros: pl.Expr = pl.when(x.abs() < LAST).then(x / 1_000)
    for limit, factor in reversed(UNITS):
        micros = pl.when(x.abs() < limit).then(x * factor).otherwise(micros)
    since = micros.floor().cast(pl.Int64, strict=False).cast(pl.Datetime("us"))
    day = pl.when((x >= DAY[0]) & (x <= DAY[1]) & (x == x.floor())).then(x).cast(pl.Int64).cast(pl.String)
    return pl.coalesce(day.str.to_datetime("%Y%m%d", time_unit="us", strict=False), since)


def _times_from_text(texts: pl.Series) -> pl.Series:
    """Parse numbers and ISO 8601; null for other text and for days and hours that do not exist."""
    x = pl.col("x")
    frame = texts.alias("x").to_frame()
    numbers = frame.select(_time_from_number(x.str.strip_chars().cast(pl.Float64, strict=False))).to_series()
    if numbers.null_count() == texts.null_count():  # no text left, which takes longer to parse
        return numbers
    parts = frame.select(x.str.extract_groups(ISO)).unnest("x")  # columns 1 to 12, the groups of ISO
    day = [pl.col("1"), pl.coalesce("2", "3", "4"), pl.col("5")]
    clock = pl.col("6", "7", "8").fill_null("0")
    local = pl.concat_str([*day, clock], separator=" ")
    fraction = pl.col("9").fill_null("").str.head(6).str.pad_end(6, "0").cast(pl.Int64)
    minutes = pl.col("11").cast(pl.Int64) * 60 + pl.col("12").cast(pl.Int64).fill_null(0)
    ahead = pl.when(pl.col("10") == "-").then(-minutes).otherwise(minutes).fill_null(0)
    moment = local.str.to_datetime("%Y %m %d %H %M %S", time_unit="us", strict=False)
    moment += pl.duration(microseconds=fraction, minutes=-ahead)
    return parts.select(pl.coalesce(numbers, moment)).to_series()


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


def as_number(source: SourceConfig, schema: pl.Schema, column: str) -> pl.Expr:
    """Return the column as Float64, null for text that is not a number; spaces around numbers are ignored."""
    x = pl.col(column)
    if schema[column] == pl.String:
        x = x.str.strip_chars(BLANK)
        if source.thousands is not None:
            x = x.str.replace_all(source.thousands, "", literal=True)
        if source.decimal != ".":
            x = x.str.replace(source.decimal, ".", literal=True)
    return x.cast(pl.Float64, strict=False).fill_nan(None)


def as_value(schema: pl.Schema, column: str) -> pl.Expr:
    """Return the column as text: the form in which values are looked up."""
    return as_text(pl.col(column), schema[column])


def parts_of(x: pl.Expr, separator: str) -> pl.Expr:
    """Return the parts of a text without the spaces around them."""
    parts = x.cast(pl.String).str.split(separator)
    return parts if separator == " " else parts.list.eval(pl.element().str.strip_chars(BLANK))


def is_missing(raw: pl.Series) -> pl.Series:
    """Return which values of a raw column are missing: nulls, NaN, and text that is empty or nan."""
    if raw.dtype == pl.String:
        return raw.is_null() | raw.str.strip_chars(BLANK).str.to_lowercase().is_in(["nan", ""]).fill_null(True)
    return raw.is_null() | raw.is_nan().fill_null(True) if raw.dtype.is_float() else raw.is_null()


@dataclass(frozen=True)
class ValueType(ABC):
    """A type of values in parsed rows.

    reads: its name in the fingerprints of prepared data
    takes_lists: whether a raw column may hold a list in each row
    not_of: types of raw columns that cannot be read, and what they do not hold
    """

    reads: ClassVar[str]
    takes_lists: ClassVar[bool] = False
    not_of: ClassVar[tuple[tuple[type[pl.DataType], ...], str]] = ((), "")

    @abstractmethod
    def expr(self, source: SourceConfig, schema: pl.Schema, column: str) -> pl.Expr:
        """Return the values of a raw column, null where they are missing or cannot be read."""

    def checks(self, column: str, raw: pl.Series, parsed: pl.Series) -> list[Check]:
        """Find the rows whose values cannot be read."""
        return []


@dataclass(frozen=True)
class Text(ValueType):
    """Text, null if missing. Chunks store a code for each text."""

    reads = "value"

    def expr(self, source: SourceConfig, schema: pl.Schema, column: str) -> pl.Expr:
        return as_value(schema, column)

    def lists(self, x: pl.Expr, inner: pl.DataType) -> pl.Expr:
        """Return the elements of lists without empty and missing ones."""
        return x.cast(pl.List(pl.String)).list.eval(pl.element().filter(pl.element() != ""))  # nor null


@dataclass(frozen=True)
class Number(ValueType):
    """Float64, null if missing."""

    reads = "number"
    problem: ClassVar[str] = "is not a number"

    def expr(self, source: SourceConfig, schema: pl.Schema, column: str) -> pl.Expr:
        return as_number(source, schema, column)

    def checks(self, column: str, raw: pl.Series, parsed: pl.Series) -> list[Check]:
        if parsed.null_count() == raw.null_count():  # usually all values are good, which is quick to check
            low, high = parsed.min(), parsed.max()
            if not isinstance(low, float) or not isinstance(high, float) or max(-low, high) <= FLOAT32_MAX:
                return []
        lost = (parsed.is_null() & ~is_missing(raw)) | parsed.is_infinite().fill_null(False)
        beyond = (parsed.abs() > FLOAT32_MAX).fill_null(False)
        return [Check(lost, column, self.problem), Check(beyond, column, "is out of the range of float32")]


@dataclass(frozen=True)
class Moment(Number):
    """A number, or a time as seconds since 1970: Float64, null if missing."""

    problem = "is neither a number nor a time"
    not_of = ((pl.Time, pl.Duration, pl.Boolean), "a date or time")

    def expr(self, source: SourceConfig, schema: pl.Schema, column: str) -> pl.Expr:
        dtype = schema[column]
        if dtype.is_numeric():
            return as_number(source, schema, column)
        seconds = as_time(column, dtype).dt.epoch("us") / 1e6  # an instant, whatever its zone
        return pl.coalesce(as_number(source, schema, column), seconds) if dtype == pl.String else seconds


@dataclass(frozen=True)
class Time(ValueType):
    """Datetime in microseconds, null if missing.

    zone: the time zone of the clock and the calendar; None for times as they are written, without a zone, or UTC
    """

    reads = "time"
    not_of = Moment.not_of
    zone: str | None = None

    def expr(self, source: SourceConfig, schema: pl.Schema, column: str) -> pl.Expr:
        dtype, moment = schema[column], as_time(column, schema[column])
        zone = self.zone or getattr(dtype, "time_zone", None)
        if zone is None:
            return moment
        return moment.dt.replace_time_zone("UTC").dt.convert_time_zone(zone).dt.replace_time_zone(None)

    def checks(self, column: str, raw: pl.Series, parsed: pl.Series) -> list[Check]:
        if parsed.null_count() == raw.null_count():
            return []
        return [Check(parsed.is_null() & ~is_missing(raw), column, "is not a time")]


@dataclass(frozen=True)
class Vector(ValueType):
    """Vectors of `width` numbers, lists or text divided by `split`: Array(Float32), null if missing.

    normalise: how features normalise the vectors: l2 | layer, in this order
    """

    reads = "vector"
    takes_lists = True
    width: int
    split: str | None
    normalise: tuple[str, ...]

    def expr(self, source: SourceConfig, schema: pl.Schema, column: str) -> pl.Expr:
        dtype, x = schema[column], pl.col(column)
        if isinstance(dtype, pl.Array):
            x = x.arr.to_list()
        elif not isinstance(dtype, pl.List):
            x = x.cast(pl.String).str.strip_chars(BLANK + "[]()")
            x = parts_of(x, self.split or ",").list.eval(pl.element().filter(pl.element() != ""))
        x = x.list.eval(pl.element().cast(pl.Float32, strict=False))
        whole = (x.list.len() == self.width) & x.list.eval(pl.element().is_finite().fill_null(False)).list.all()
        return pl.when(whole).then(x).list.to_array(self.width)

    def checks(self, column: str, raw: pl.Series, parsed: pl.Series) -> list[Check]:
        if parsed.null_count() == raw.null_count():
            return []
        lost = parsed.is_null() & raw.is_not_null()
        given = raw != "" if raw.dtype == pl.String else lost
        return [Check(lost & given.fill_null(False), column, f"is not a vector of {self.width} numbers")]

    def normalised(self, x: pl.Expr) -> pl.Expr:
        """Return the vectors, normalised; zeros if missing."""
        dtype = pl.Array(pl.Float32, self.width)

        def normalised(values: pl.Series) -> pl.Series:
            matrix = np.nan_to_num(values.to_numpy().reshape(-1, self.width))  # a missing vector is NaN
            return pl.Series(values.name, normalise(matrix, self.normalise), dtype=dtype)

        x = x.fill_null(pl.lit([0.0] * self.width, dtype=dtype))
        return x.map_batches(normalised, return_dtype=dtype, is_elementwise=True) if self.normalise else x


@dataclass(frozen=True)
class RowNumber(ValueType):
    """Whole numbers that are rows of a table: Int64, null for other values. A missing value has no row, so it is bad.

    rows: the number of rows of the table
    """

    reads = "id"
    rows: int

    def expr(self, source: SourceConfig, schema: pl.Schema, column: str) -> pl.Expr:
        return self._whole(pl.col(column), schema[column])

    def lists(self, x: pl.Expr, inner: pl.DataType) -> pl.Expr:
        """Return the elements of lists without empty and missing ones."""
        given = pl.element().is_not_null()
        x = x.list.eval(pl.element().filter(given & (pl.element() != "") if inner == pl.String else given))
        return x.list.eval(self._whole(pl.element(), inner)).cast(pl.List(pl.Int64))

    @staticmethod
    def _whole(x: pl.Expr, dtype: pl.DataType) -> pl.Expr:
        """Cast 7 and 7.0 to 7 (columns of whole numbers with missing values are floats), and 7.5 to null."""
        if dtype.is_integer() or dtype == pl.Boolean:
            return x.cast(pl.Int64, strict=False)
        number = (x.str.strip_chars(BLANK) if dtype == pl.String else x).cast(pl.Float64, strict=False)
        return pl.when(number == number.floor()).then(number).cast(pl.Int64, strict=False)

    def checks(self, column: str, raw: pl.Series, parsed: pl.Series) -> list[Check]:
        problem = f"is not a whole number from 0 to {self.rows - 1}"
        if parsed.dtype == pl.List:
            outside = pl.element().is_null() | (pl.element() < 0) | (pl.element() >= self.rows)
            bad = parsed.to_frame("x").select(pl.col("x").list.eval(outside).list.any().fill_null(False))
            return [Check(bad.to_series(), column, problem)]
        low, high = parsed.min(), parsed.max()
        if not parsed.null_count() and isinstance(low, int) and isinstance(high, int) and 0 <= low <= high < self.rows:
            return []
        missing = Check(is_missing(raw), column, "is missing, and encode=id has no row for that")
        return [missing, Check(~parsed.is_between(0, self.rows - 1).fill_null(False), column, problem)]
