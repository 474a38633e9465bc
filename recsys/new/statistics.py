"""Statistics of a column as plain floats; the statistics of polars may have any type."""

from typing import Any

import polars as pl


def _plain(value: Any) -> float:
    return 0.0 if value is None else float(value)


def mean(x: pl.Series) -> float:
    """Return the mean of numbers, or the share of True in a mask; 0 for an empty column."""
    return _plain(x.mean())


def least(x: pl.Series) -> float:
    """Return the smallest number; 0 for an empty column."""
    return _plain(x.min())


def largest(x: pl.Series) -> float:
    """Return the largest number; 0 for an empty column."""
    return _plain(x.max())


def quantile(x: pl.Series, share: float) -> float:
    """Return the number that this share of the values does not exceed; 0 for an empty column."""
    return _plain(x.quantile(share))


def is_skewed(x: pl.Series) -> bool:
    """Return whether a logarithm helps, by the third standardised moment."""
    return _plain(x.cast(pl.Float64).skew()) > 2


def counts_of(x: pl.Series) -> pl.DataFrame:
    """Return the different values in the column `value`, the most frequent first, and their numbers in `count`."""
    return x.drop_nulls().alias("value").value_counts(sort=True)
