"""Values of any type as the few kinds that raw columns are converted from: text, numbers, booleans, times and lists."""

from __future__ import annotations

import math
import sys
from datetime import UTC, date, datetime
from decimal import Decimal

import numpy as np
import polars as pl

from recsys.data.features.blocks import BLANK
from recsys.data.features.row_sources import lists
from recsys.files.text_values import as_text

FLOAT64_MAX = sys.float_info.max


def plain(x: pl.Series) -> pl.Series:
    """Return the series as text, numbers without NaN, booleans, times or lists. Raises TypeError for other types."""
    dtype = x.dtype
    if dtype in (pl.Categorical, pl.Enum, pl.Binary):
        return x.cast(pl.String, strict=False)
    if dtype.is_decimal():  # 7.00 is 7
        return x.cast(pl.String).str.replace(r"(\.[0-9]*?)0+$", "$1").str.strip_chars_end(".")
    if dtype.is_float():
        return x.fill_nan(None)
    if dtype in (pl.String, pl.Boolean, pl.Date, pl.Datetime, pl.List, pl.Array, pl.Null) or dtype.is_numeric():
        return x
    raise TypeError(f"holds {dtype}")


def series_value(value: object) -> object:
    """Return a value, or a list without mixed types, of which polars makes a series."""
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if isinstance(value, list | tuple):
        values = [None if isinstance(v, list | tuple) else series_value(v) for v in value]
        kinds = {type(v) for v in values if v is not None}
        return values if len(kinds) < 2 else [None if v is None else str(v) for v in values]
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, str):
        value.encode()  # raises for surrogates
    elif isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(UTC)
    elif isinstance(value, Decimal) and not value.is_finite():
        return math.nan if value.is_nan() else float(value)
    elif type(value) is int and abs(value) > FLOAT64_MAX:
        raise OverflowError
    elif not (value is None or isinstance(value, date | int | float | Decimal)):
        raise TypeError
    return value


def texts_of(x: pl.Series) -> pl.Series:
    """Return values as text, whole floats without a point."""
    return x.to_frame("x").select(as_text(pl.col("x"), x.dtype)).to_series().alias(x.name)


def numbers_of(texts: pl.Series) -> pl.Series:
    """Return the numbers of text as Float64, null if it is none."""
    return texts.str.strip_chars(BLANK).cast(pl.Float64, strict=False).fill_nan(None)


def regrouped(elements: pl.Series, like: pl.Series) -> pl.Series:
    """Return the elements of lists as lists of the same lengths; null where `like` is."""
    rows = like.arr.to_list() if isinstance(like.dtype, pl.Array) else like
    grouped = lists(elements, rows.list.len().fill_null(0).to_numpy())
    return pl.select(pl.when(rows.is_not_null()).then(grouped).alias(like.name)).to_series()
