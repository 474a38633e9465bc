"""Values of earlier rows of a group: lags, differences, last values and ages."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import polars as pl

from recsys.base.errors import UserError
from recsys.data.features.arrays import places_of_ranges
from recsys.schema.data_schema import DenseConfig, SparseConfig

LOOK_BACK_KEYS = ("lag", "difference", "last")


@dataclass(frozen=True)
class LookBack(ABC):
    """What a feature takes of earlier rows of its group.

    key: its key in YAML
    rows: the number of earlier rows that it needs
    """

    key: ClassVar[str]
    is_list: ClassVar[bool] = False  # a row has a value of each of these rows
    reads_own: ClassVar[bool] = False  # it reads the row itself, too
    is_difference: ClassVar[bool] = False  # it is a difference of numbers, or of times in seconds
    rows: int

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
        if "lag" in keys:
            return Lag(keys["lag"])
        if "difference" in keys:
            return RowDifference(keys["difference"])
        if "last" in keys:
            return Age(keys["last"]) if age else Last(keys["last"])
        return None

    @abstractmethod
    def column(self, x: pl.Series, starts: np.ndarray) -> pl.Series:
        """Return the feature's column.

        Args:
            x: (n,) the values of rows, one group after another, in order.
            starts: (n,) the first row of each row's group.
        """


class Lag(LookBack):
    """The value of the n-th row before; missing if the group has no such row."""

    key = "lag"

    def column(self, x: pl.Series, starts: np.ndarray) -> pl.Series:
        exists = pl.Series(np.arange(len(starts)) - self.rows >= starts)
        missing = pl.Series([None], dtype=x.dtype).new_from_index(0, x.len())
        return x.shift(self.rows).zip_with(exists, missing).alias(x.name)


class RowDifference(Lag):
    """The number or time of the row minus that of the n-th row before."""

    key = "difference"
    reads_own = is_difference = True

    def column(self, x: pl.Series, starts: np.ndarray) -> pl.Series:
        return x - super().column(x, starts)


class Last(LookBack):
    """The values of the last n rows before, oldest first."""

    key = "last"
    is_list = True

    def column(self, x: pl.Series, starts: np.ndarray) -> pl.Series:
        rows = np.arange(len(starts))
        return slices(x, np.maximum(starts, rows - self.rows), rows)


class Age(LookBack):
    """The number or time of the row minus those of the last n rows before, null where either is missing."""

    key = "last"
    is_list = reads_own = is_difference = True

    def column(self, x: pl.Series, starts: np.ndarray) -> pl.Series:
        rows = np.arange(len(starts))
        first = np.maximum(starts, rows - self.rows)
        earlier = x.gather(places_of_ranges(first, rows - first))
        return lists(x.gather(np.repeat(rows, rows - first)) - earlier, rows - first)


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
