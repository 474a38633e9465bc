"""What the values of a raw column mean. It is fixed when the training rows are read; each door converts its own types.

`convert` takes a column of any type, of a file or a data frame, and `read` one value of Python or JSON. Both return
what the training files would have held, so that joins, SQL and features see the same value, or refuse the value.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, ClassVar

import numpy as np
import polars as pl

from recsys.data.features.blocks import BLANK
from recsys.data.features.plain_values import numbers_of, plain, regrouped, series_value, texts_of
from recsys.data.features.value_types import ISO, as_time, is_missing, parts_of

WHOLE = r"^(-?(?:0|[1-9][0-9]*))(?:\.0*)?$"  # a whole number without leading zeros
WRITTEN = [
    f"{day}{clock}{fraction}{zone}"
    for day, clock in (("%Y-%m-%d", ""), ("%Y-%m-%d", " %H:%M:%S"), ("%Y-%m-%d", "T%H:%M:%S"))
    for fraction in (("", "%.3f", "%.6f") if clock else ("",))
    for zone in (("", "Z", "+00:00") if clock else ("",))
]
PRECISE = "%Y-%m-%d %H:%M:%S%.6f"
STYLES: dict[str, Callable[[str], str]] = {"lower": str.lower, "title": str.title, "upper": str.upper}
ZONE = r"[Tt ]\s*[0-9:.,]+\s*(?:[Zz]|UTC|[+-][0-9]{2}(?::?[0-9]{2})?)\s*$"  # after the clock


@dataclass(frozen=True)
class RawType(ABC):
    """The meaning of a raw column.

    dtype: the type of the column in the training files; String in CSV and JSON
    """

    name: ClassVar[str]
    refuses: ClassVar[str]  # what is wrong with a value that it refuses
    others: ClassVar[tuple[type[pl.DataType], ...]] = (pl.List, pl.Array)  # types of columns that hold no such values
    dtype: pl.DataType

    @classmethod
    def of_dtype(cls, dtype: pl.DataType) -> RawType:
        """Return the meaning of a column that has a type in the training files; text is text."""
        if isinstance(dtype, pl.List | pl.Array):
            return RawList(dtype, cls.of_dtype(dtype.inner))  # type: ignore[arg-type]
        if dtype.is_integer():
            return RawWhole(dtype)
        if dtype.is_float() or dtype.is_decimal():
            return RawNumber(dtype)
        if dtype == pl.Boolean:
            return RawBoolean(dtype)
        if isinstance(dtype, pl.Datetime | pl.Date):
            return RawTime(dtype, aware=getattr(dtype, "time_zone", None) is not None)
        return RawText(pl.String())

    def convert(self, values: pl.Series) -> pl.Series:
        """Return values of any type as the training files hold them, null if missing or refused.

        Raises TypeError for a type of which no value can be read.
        """
        x = plain(values)
        if x.dtype in self.others:
            raise TypeError(f"holds {x.dtype}, and values of type {self.name} in the training rows")
        return self._converted(x)

    @abstractmethod
    def _converted(self, x: pl.Series) -> pl.Series:
        """Convert text, numbers without NaN, booleans and times."""

    def read(self, value: object) -> Any:
        """Return a value of Python or JSON as the training files hold it, None if missing; equal to `convert`.

        Raises ValueError if it is refused.
        """
        if value is None:
            return None
        quick = self._quick(value)
        return self._slow(value) if quick is NotImplemented else quick

    def _quick(self, value: object) -> object:
        """Convert the usual values without polars; NotImplemented for the others."""
        return NotImplemented

    def _slow(self, value: object) -> object:
        if type(value).__name__ in ("NAType", "NaTType"):  # of pandas
            return None
        try:
            given = pl.Series([series_value(value)])
            converted = self.convert(given)
        except UnicodeError as e:
            raise ValueError("is not UTF-8 text") from e
        except OverflowError as e:
            raise ValueError(f"is out of the range of {self.dtype}") from e
        except (TypeError, pl.exceptions.PolarsError) as e:
            kind = type(value).__name__
            why = f"has type {kind}, which a column of type {self.name} cannot hold"
            why = self.refuses if isinstance(self, RawList) or isinstance(value, str | int | float) else why
            raise ValueError("is a list, not one value" if kind in ("list", "tuple") else why) from e
        if self.refused(given, converted).any():
            raise ValueError(self.why(given))
        return converted.to_list()[0]

    def why(self, given: pl.Series) -> str:
        """Return why values (n,) were refused."""
        return self.refuses

    def refused(self, given: pl.Series, converted: pl.Series) -> pl.Series:
        """Return which values were refused: those that were given and are null."""
        if converted.null_count() == given.null_count():
            return pl.Series([False]).new_from_index(0, len(given))
        return converted.is_null() & ~is_missing(plain(given))

    def canonical(self, texts: pl.Series) -> pl.Series:
        """Return text of the training files in the one form that each value has. No type but text has several."""
        return texts

    def to_json(self) -> dict[str, Any]:
        """Return what `from_json` reads, for a column of text."""
        return {"type": self.name} | {k: v for k, v in asdict(self).items() if k not in ("dtype", "read_by_sql")}

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> RawType:
        """Return the type of a column of text."""
        return RAW_TYPES[value["type"]](pl.String(), **{k: v for k, v in value.items() if k != "type"})


@dataclass(frozen=True)
class RawText(RawType):
    """Text, compared exactly: 7 is not "0007". Whole floats are written without a point."""

    name = "text"
    refuses = "cannot be text"

    def _converted(self, x: pl.Series) -> pl.Series:
        if x.dtype in (pl.Datetime, pl.Date):
            return RawTime(self.dtype, aware=getattr(x.dtype, "time_zone", None) is not None).convert(x)
        return texts_of(x)

    def _quick(self, value: object) -> object:
        plain = type(value) is int or (type(value) is str and value.isascii())
        return str(value) if plain else NotImplemented


@dataclass(frozen=True)
class UntypedText(RawText):
    """Text of runs that were prepared before columns had types: their servers read 7.0 as "7.0"."""

    def _quick(self, value: object) -> object:
        return repr(value) if type(value) is float and value == value else super()._quick(value)


@dataclass(frozen=True)
class RawWhole(RawType):
    """Whole numbers: 7, 7.0, "7" and true (1) are numbers. Other text is an unknown value where files are text.

    point: text of the training files is written as 7.0
    """

    name = "whole number"
    refuses = "is not a whole number"
    others = (*RawType.others, pl.Datetime, pl.Date)
    point: bool = False

    def _converted(self, x: pl.Series) -> pl.Series:
        if self.dtype == pl.String:
            return self.canonical(texts_of(x.cast(pl.Int8) if x.dtype == pl.Boolean else x))
        if x.dtype == pl.String:
            x = x.str.strip_chars(BLANK)
            whole = x.str.replace(r"\.0*$", "").cast(self.dtype, strict=False)  # floats lose digits
            return whole if whole.null_count() == x.null_count() else whole.fill_null(self._whole(numbers_of(x)))
        return self._whole(x) if x.dtype.is_float() else x.cast(self.dtype, strict=False)

    def why(self, given: pl.Series) -> str:
        numbers = plain(given)
        numbers = numbers_of(numbers) if numbers.dtype == pl.String else numbers.cast(pl.Float64)
        if numbers.is_null().any():
            return "is not a number"
        bounds = np.iinfo(str(self.dtype).lower())
        whole = bool((numbers == numbers.floor()).all())
        return f"is not between {bounds.min} and {bounds.max}" if whole else self.refuses

    def _whole(self, x: pl.Series) -> pl.Series:
        return pl.select(pl.when(x == x.floor()).then(x).cast(self.dtype, strict=False).alias(x.name)).to_series()

    def canonical(self, texts: pl.Series) -> pl.Series:
        if not self.point and not texts.str.contains_any([".", " ", "\t", "a", "A"]).any():
            return texts
        texts = texts.replace(["nan", "NaN", "NAN"], None)
        digits = texts.str.strip_chars(BLANK).str.extract(WHOLE, 1).replace("-0", "0")
        return (digits + ".0" if self.point else digits).fill_null(texts).alias(texts.name)

    def _quick(self, value: object) -> object:
        if self.dtype != pl.String:
            fits = type(value) is int and self.dtype == pl.Int64 and abs(value) < 2**63
            return value if fits else NotImplemented
        plain = type(value) is str and value.isascii() and value.isdigit() and (value[0] != "0" or value == "0")
        if type(value) is int or plain:
            return f"{value}.0" if self.point else str(value)
        return value if type(value) is str and not value else NotImplemented

    @classmethod
    def held(cls, texts: pl.Series) -> RawWhole | None:
        """Return the type if all values are whole numbers without leading zeros."""
        if not texts.str.contains(WHOLE).all():
            return None
        return cls(pl.String(), point=bool(texts.str.ends_with(".0").all()))


@dataclass(frozen=True)
class RawNumber(RawType):
    """Numbers. decimal: the mark in text"""

    name = "number"
    refuses = "is not a number"
    others = (*RawType.others, pl.Datetime, pl.Date)
    decimal: str = "."

    def convert(self, values: pl.Series) -> pl.Series:
        return super().convert(values.cast(pl.Float64) if values.dtype.is_decimal() else values)  # no text with marks

    def _converted(self, x: pl.Series) -> pl.Series:
        x = x.cast(pl.Int8) if x.dtype == pl.Boolean else x
        if self.dtype != pl.String:
            numbers = numbers_of(x) if x.dtype == pl.String else x.cast(pl.Float64, strict=False)
            return numbers.cast(self.dtype, strict=False)
        if x.dtype == pl.String:
            return x
        return x.cast(pl.String).str.replace(r"\.0$", "").str.replace(".", self.decimal, literal=True)

    def _quick(self, value: object) -> object:
        if self.dtype == pl.String:
            if type(value) is float and value == value:
                return repr(value).removesuffix(".0").replace(".", self.decimal)
            return value if type(value) is str and value.isascii() else NotImplemented
        quick = isinstance(value, int | float) and self.dtype == pl.Float64 and abs(value) < 2**53
        return float(value) if quick else NotImplemented  # type: ignore[arg-type]

    @classmethod
    def held(cls, texts: pl.Series, decimal: str, thousands: str = "") -> RawNumber | None:
        """Return the type if all values are numbers."""
        numbers = texts.str.replace_all(thousands, "", literal=True).str.replace(decimal, ".", literal=True)
        return None if numbers_of(numbers).null_count() else cls(pl.String(), decimal)


@dataclass(frozen=True)
class RawBoolean(RawType):
    """True and False, whatever their case; 1 and 0. style: how the training files write them: lower | title | upper"""

    name = "boolean"
    refuses = "is neither true nor false"
    others = (*RawType.others, pl.Datetime, pl.Date)
    style: str = "lower"

    def _converted(self, x: pl.Series) -> pl.Series:
        text = texts_of(x)
        bare = text.str.strip_chars(BLANK).str.to_lowercase()
        words = dict.fromkeys(("true", "1", "1.0"), "true") | dict.fromkeys(("false", "0", "0.0"), "false")
        if self.dtype != pl.String:
            return bare.replace_strict(words, default=None, return_dtype=pl.String) == "true"
        names = {name: STYLES[self.style](word) for name, word in words.items()}
        return bare.replace_strict(names, default=None, return_dtype=pl.String).fill_null(text).alias(x.name)

    def canonical(self, texts: pl.Series) -> pl.Series:
        return self._converted(texts)

    def _quick(self, value: object) -> object:
        if type(value) is not bool:
            return NotImplemented
        return STYLES[self.style](str(value)) if self.dtype == pl.String else value

    @classmethod
    def held(cls, texts: pl.Series) -> RawBoolean | None:
        """Return the type if all values are true or false."""
        if len(texts) > 6 or not set(texts.str.to_lowercase()) <= {"true", "false"}:
            return None
        styles = [name for name, style in STYLES.items() if all(style(t) == t for t in texts)]
        return cls(pl.String(), styles[0] if len(styles) == 1 else "lower")


@dataclass(frozen=True)
class RawTime(RawType):
    """Times: instants, if they have a zone (aware), else local times. A zone that meets none is read as UTC.

    written: how the training files write them, for columns of text; empty if not in one way, or with other offsets
    read_by_sql: SQL reads the text
    """

    name = "time"
    refuses = "is not a time"
    others = (*RawType.others, pl.Boolean)
    aware: bool = False
    written: str = ""
    read_by_sql: bool = False

    def _converted(self, x: pl.Series) -> pl.Series:
        if x.dtype == pl.String and self.dtype == pl.String:
            return x
        if self.read_by_sql and not self.written:
            raise TypeError(f"holds {x.dtype}, and SQL reads its text; give the text as in the training files")
        if self.dtype == pl.String and x.dtype not in (pl.Datetime, pl.Date) and not self.read_by_sql:
            return texts_of(x)
        if self.dtype.is_numeric() and x.dtype.is_numeric():
            return x.cast(self.dtype, strict=False)
        if isinstance(x.dtype, pl.Datetime) and x.dtype.time_zone is not None:
            x = x.dt.convert_time_zone("UTC").dt.replace_time_zone(None)
        moments = x.to_frame("x").select(as_time("x", x.dtype)).to_series().alias(x.name)
        if x.dtype.is_numeric():  # no count since 1970, and no day
            likely = moments.is_between(datetime(1980, 1, 1), datetime(2100, 1, 1)).fill_null(False)
            moments = moments.zip_with(likely, moments.clear(len(x)))
        if self.dtype.is_numeric():
            since = moments.dt.epoch("us").cast(self.dtype)
            return numbers_of(x).cast(self.dtype, strict=False).fill_null(since) if x.dtype == pl.String else since
        if self.dtype == pl.String:
            texts = moments.dt.strftime(self.written or PRECISE + "Z" * self.aware).alias("x")
            fits = texts.to_frame().select(as_time("x", pl.String())).to_series() == moments
            precise = moments.dt.strftime(PRECISE + "Z" * self.aware)  # files may hold days, or seconds
            return texts.zip_with(fits.fill_null(True), precise).alias(x.name)
        if isinstance(self.dtype, pl.Datetime) and self.dtype.time_zone is not None:
            moments = moments.dt.replace_time_zone("UTC").dt.convert_time_zone(self.dtype.time_zone)
        return moments.cast(self.dtype)

    def mixes_zones(self, given: pl.Series) -> bool:
        """Return whether times with a zone meet times without one."""
        if given.dtype in (pl.Datetime, pl.Date):
            return (getattr(given.dtype, "time_zone", None) is not None) != self.aware
        if given.dtype != pl.String or given.null_count() == len(given):
            return False
        return bool((given.str.contains(ZONE) != self.aware).any())

    def _quick(self, value: object) -> object:
        return value if self.dtype == pl.String and type(value) is str and value.isascii() else NotImplemented

    @classmethod
    def held(cls, texts: pl.Series) -> RawTime | None:
        """Return the type if all values are times."""
        if not texts.str.contains(ISO).all():
            return None
        moments = texts.to_frame("x").select(as_time("x", pl.String())).to_series()
        aware = bool(texts.str.contains(ZONE).any())
        formats = (f for f in WRITTEN if (moments.dt.strftime(f) == texts).fill_null(False).all())
        return None if moments.null_count() else cls(pl.String(), aware, next(formats, ""))


@dataclass(frozen=True)
class RawJoined(RawType):
    """Lists of values of one type that are written as text, which a separator divides."""

    name, refuses, others = "joined", "cannot be text", ()
    separator: str
    element: RawType

    def _converted(self, x: pl.Series) -> pl.Series:
        if isinstance(x.dtype, pl.List | pl.Array):
            elements = self.element.convert(x.explode(empty_as_null=False, keep_nulls=False))
            return regrouped(elements, x).list.join(self.separator, ignore_nulls=True)
        if x.dtype != pl.String:
            return self.element.convert(x)
        if not isinstance(self.element, RawWhole | RawBoolean):
            return x
        return self._converted(x.to_frame("x").select(parts_of(pl.col("x"), self.separator)).to_series().alias(x.name))

    def _quick(self, value: object) -> object:
        plain = type(value) is str and value.isascii() and not isinstance(self.element, RawWhole | RawBoolean)
        return value if plain else NotImplemented


@dataclass(frozen=True)
class RawList(RawType):
    """Lists of values of one type. separator: divides the values of text, which is no list without one"""

    name, refuses, others = "list", "is not a list", ()
    element: RawType
    separator: str | None = None

    def _converted(self, x: pl.Series) -> pl.Series:
        if self.separator is not None and (x.dtype == pl.String or x.dtype.is_numeric()):  # 7 is a list of one
            x = texts_of(x).to_frame("x").select(parts_of(pl.col("x"), self.separator)).to_series().alias(x.name)
        if x.dtype == pl.Null:
            return x.cast(self.dtype)
        if not x.dtype.is_nested():
            raise TypeError(f"holds {x.dtype}, and lists in the training rows")
        given = x.explode(empty_as_null=False, keep_nulls=False)
        converted = self.element.convert(given)
        whole = regrouped(converted, x)
        if (refused := self.element.refused(given, converted)).any():
            bad = regrouped(refused, x).list.any()
            whole = pl.select(pl.when(~bad.fill_null(False)).then(whole).alias(x.name)).to_series()
        return whole.cast(self.dtype, strict=False)

    def why(self, given: pl.Series) -> str:
        return self.element.refuses if isinstance(given.dtype, pl.List | pl.Array) else self.refuses


RAW_TYPES: dict[str, type[RawType]] = {t.name: t for t in (RawText, RawWhole, RawNumber, RawBoolean, RawTime)}
