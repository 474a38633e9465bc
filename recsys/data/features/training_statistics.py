"""Statistics of the training split, collected block by block in bounded memory, which transforms are fitted to."""

from typing import Any, Protocol

import numpy as np
import polars as pl

from recsys.data.features.blocks import LABEL, ROW, WEIGHT
from recsys.data.features.value_index import mix

SAMPLE_ROWS = 1 << 20  # a sample takes 16 bytes a row, and a quarter more while it is collected


class Statistic(Protocol):
    """A statistic that is collected block by block."""

    def add(self, values: pl.Series, frame: pl.DataFrame) -> None:
        """Add the values (text as codes) of the training rows `frame`."""


class Mergeable(Statistic, Protocol):
    """A statistic that is merged over chunks, in their order."""

    def merge(self, other: Any) -> None: ...


class Moments:
    """Minimum, maximum, mean and standard deviation of the non-missing values (Chan et al. 1979); 0 without values."""

    def __init__(self) -> None:
        self.n, self.min, self.max, self.mean, self.var = 0, np.inf, -np.inf, 0.0, 0.0

    def add(self, values: pl.Series, frame: pl.DataFrame) -> None:
        new = Moments()
        new.n = values.len() - values.null_count()
        if new.n:
            values = values.rechunk()  # polars' variance of several pieces depends on where they are cut
            found: list[Any] = [values.mean(), values.var(ddof=0), values.min(), values.max()]
            new.mean, new.var, new.min, new.max = map(float, found)
        self.merge(new)

    def merge(self, other: "Moments") -> None:
        if not other.n:
            return
        n, share = self.n + other.n, other.n / (self.n + other.n)
        delta = other.mean - self.mean
        self.var = self.var * (1 - share) + other.var * share + delta**2 * share * (1 - share)
        self.mean, self.n = self.mean + delta * share, n
        self.min, self.max = min(self.min, other.min), max(self.max, other.max)

    def params(self) -> dict[str, float]:
        if not self.n:
            return dict.fromkeys(("min", "max", "mean", "std"), 0.0)
        std = self.var**0.5 if self.max > self.min else 0.0  # for equal values, the variance is a rounding error
        return {"min": self.min, "max": self.max, "mean": self.mean, "std": std}


class ValueSample:
    """Quantiles of the non-missing values: exact up to SAMPLE_ROWS rows, otherwise estimated from SAMPLE_ROWS rows.

    The sample is the rows whose row numbers have the smallest hashes, so it is the same in every run. The rank of
    a quantile q is between q - 0.1 % and q + 0.1 % with 95 % probability, whatever the distribution (at q = 0.5, where
    the error is largest: two standard deviations of sqrt(q (1 - q) / SAMPLE_ROWS)).
    """

    def __init__(self) -> None:
        self._size = 0
        self._values: list[np.ndarray] = []
        self._hashes: list[np.ndarray] = []
        self._limit = np.uint64(2**64 - 1)  # hashes above it are not among the smallest

    def add(self, values: pl.Series, frame: pl.DataFrame) -> None:
        given = values.is_not_null()
        hashes = mix(frame[ROW].filter(given).to_numpy().astype(np.uint64))
        self._keep(values.filter(given).to_numpy().astype(np.float64), hashes)

    def merge(self, other: "ValueSample") -> None:
        for values, hashes in zip(other._values, other._hashes, strict=True):
            self._keep(values, hashes)

    def _keep(self, values: np.ndarray, hashes: np.ndarray) -> None:
        kept = hashes <= self._limit
        self._values.append(values[kept])
        self._hashes.append(hashes[kept])
        self._size += len(self._values[-1])
        if self._size > SAMPLE_ROWS * 5 // 4:
            self._cut()

    def quantiles(self, shares: list[float]) -> list[float]:
        """Return the quantiles at `shares`, interpolated linearly; 0 without values."""
        values = self.values()
        if not len(values):
            return [0.0] * len(shares)
        return [float(v) for v in np.quantile(values, shares)]

    def values(self) -> np.ndarray:
        """Return the values of the sample, in ascending order."""
        if self._size > SAMPLE_ROWS:
            self._cut()
        return np.sort(np.concatenate(self._values or [np.zeros(0)]))

    def _cut(self) -> None:
        values, hashes = np.concatenate(self._values), np.concatenate(self._hashes)
        kept = np.argpartition(hashes, SAMPLE_ROWS - 1)[:SAMPLE_ROWS]
        self._values, self._hashes = [values[kept]], [hashes[kept]]
        self._size, self._limit = SAMPLE_ROWS, hashes[kept].max()


class Counts:
    """Counts the rows of each value of a chunk. Not merged as objects: the `table` of each chunk is summed."""

    keys: tuple[str, ...] = ("value",)  # table rows that agree on these are summed

    def __init__(self) -> None:
        self._sums: dict[str, np.ndarray] = {}

    def add(self, values: pl.Series, frame: pl.DataFrame) -> None:
        self._sum("count", values.to_numpy(), None)

    def _sum(self, name: str, index: np.ndarray, weights: np.ndarray | None) -> None:
        old = self._sums.get(name, np.zeros(0))
        new = np.bincount(index, weights, minlength=len(old))
        new[: len(old)] += old.astype(new.dtype)
        self._sums[name] = new

    def table(self, values: pl.Series) -> pl.DataFrame:
        """Return the columns value, count. values: the text of each code."""
        return self._rows(values, 1).drop("fold")

    def _rows(self, values: pl.Series, folds: int) -> pl.DataFrame:
        count = self._sums.get("count", np.zeros(0, np.int64))
        at = np.flatnonzero(count)
        return pl.DataFrame(
            [values.gather(at // folds).alias("value"), pl.Series("fold", at % folds, dtype=pl.Int64)]
            + [pl.Series(name, sums[at]) for name, sums in ({"count": count} | self._sums).items()]
        )


class Labels(Counts):
    """Count rows that have the (first) label, and sum weights and labels, by value and by the training row's fold."""

    keys = ("value", "fold")

    def __init__(self, folds: int) -> None:
        super().__init__()
        self._folds = folds

    def add(self, values: pl.Series, frame: pl.DataFrame) -> None:
        index = values.to_numpy().astype(np.int64) * self._folds + fold_of(frame[ROW].to_numpy(), self._folds)
        label = frame[LABEL].to_numpy().astype(np.float64)
        known = ~np.isnan(label)  # one of several labels may be missing
        weight = frame[WEIGHT].to_numpy().astype(np.float64) if WEIGHT in frame.columns else np.ones(len(label))
        self._sum("count", index[known], None)
        self._sum("weight", index[known], weight[known])
        self._sum("sum", index[known], (weight * label)[known])

    def table(self, values: pl.Series) -> pl.DataFrame:
        """Return the columns value, fold, count, weight, sum."""
        return self._rows(values, self._folds)


def fold_of(rows: np.ndarray, folds: int) -> np.ndarray:
    """Return the fold of each row, from 0, by a hash of its row number: (rows,) -> (rows,)."""
    return (mix(rows.astype(np.uint64)) % np.uint64(folds)).astype(np.int64)
