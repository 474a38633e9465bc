"""Values as text: the one form in which values are looked up, and in which keys are stored."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import polars as pl


def as_text(x: pl.Expr, dtype: pl.DataType) -> pl.Expr:
    """Return values as text. 7.0 is 7: a column of whole numbers with missing values is stored as floats."""
    if dtype == pl.String or not dtype.is_float():
        return x if dtype == pl.String else x.cast(pl.String)
    x = x.fill_nan(None)
    whole = x.cast(pl.Int64, strict=False)
    return pl.when(whole.cast(dtype) == x).then(whole.cast(pl.String)).otherwise(x.cast(pl.String))


def text_of(value: object) -> str | None:
    """Return one value as `as_text` does, None for NaN. Raises ValueError if it is not text, a number or a boolean."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float | Decimal) and (value != value or value == int(value)):
        return None if value != value else str(int(value))
    if not isinstance(value, float | Decimal):
        raise ValueError("is a list, not one value" if isinstance(value, list | tuple) else "is not one value")
    return str(value)
