"""What transforms learn from: statistics gathered over the training split, block by block, in bounded memory."""

from typing import Any, Protocol

import numpy as np
import polars as pl

from recsys.data.hashing import mix

SAMPLE_ROWS = 1 << 20  # a statistic of quantiles holds 16 bytes for each, and a quarter more while it is gathered


class Statistic(Protocol):
    def add(self, values: pl.Series, frame: pl.DataFrame) -> None:
        """values: of the rows of `frame`, a part of the training split."""


class Moments:
    """min, max, mean and standard deviation of what is not missing (Chan et al. 1979); 0 where nothing is there."""

    def __init__(self) -> None:
        self.n, self.min, self.max, self.mean, self.var = 0, np.inf, -np.inf, 0.0, 0.0

    def add(self, values: pl.Series, frame: pl.DataFrame) -> None:
        new = values.len() - values.null_count()
        if not new:
            return
        n, share = self.n + new, new / (self.n + new)
        delta = _float(values.mean()) - self.mean
        self.var = self.var * (1 - share) + _float(values.var(ddof=0)) * share + delta**2 * share * (1 - share)
        self.mean, self.n = self.mean + delta * share, n
        self.min, self.max = min(self.min, _float(values.min())), max(self.max, _float(values.max()))

    def params(self) -> dict[str, float]:
        if not self.n:
            return dict.fromkeys(("min", "max", "mean", "std"), 0.0)
        std = self.var**0.5 if self.max > self.min else 0.0  # no rounding error passes for a deviation
        return {"min": self.min, "max": self.max, "mean": self.mean, "std": std}


class Sample:
    """Quantiles of what is not missing: exact up to SAMPLE_ROWS rows, else those of as many rows.

    The rows kept are those whose place among all rows has the smallest hash: the same in every run. A quantile q then
    has a rank between q - 0.1 % and q + 0.1 % with 95 % probability, whatever the distribution (at q = 0.5, where the
    error is largest: two standard deviations of sqrt(q (1 - q) / SAMPLE_ROWS)).
    """

    def __init__(self) -> None:
        self._seen = self._held = 0
        self._values: list[np.ndarray] = []
        self._hashes: list[np.ndarray] = []
        self._limit = np.uint64(2**64 - 1)  # hashes above it are not among the smallest

    def add(self, values: pl.Series, frame: pl.DataFrame) -> None:
        there = values.drop_nulls().to_numpy().astype(np.float64)
        hashes = mix(np.arange(self._seen, self._seen + len(there), dtype=np.uint64))
        self._seen += len(there)
        kept = hashes <= self._limit
        self._values.append(there[kept])
        self._hashes.append(hashes[kept])
        self._held += len(self._values[-1])
        if self._held > SAMPLE_ROWS * 5 // 4:
            self._cut()

    def quantiles(self, shares: list[float]) -> list[float]:
        """Of each share, between the two values next to it as usual; 0 where nothing is there."""
        if self._held > SAMPLE_ROWS:
            self._cut()
        values = np.sort(np.concatenate(self._values or [np.zeros(0)]))
        if not len(values):
            return [0.0] * len(shares)
        return [float(v) for v in np.quantile(values, shares)]

    def _cut(self) -> None:
        values, hashes = np.concatenate(self._values), np.concatenate(self._hashes)
        kept = np.argpartition(hashes, SAMPLE_ROWS - 1)[:SAMPLE_ROWS]
        self._values, self._hashes = [values[kept]], [hashes[kept]]
        self._held, self._limit = SAMPLE_ROWS, hashes[kept].max()


class Counts:
    """Rows of each value (and of each of `keys`), and sums over them; memory is that of the distinct values."""

    def __init__(self) -> None:
        self._pieces: list[pl.DataFrame] = []
        self._whole = 0

    def add(self, values: pl.Series, frame: pl.DataFrame) -> None:
        self.merge(values.fill_null("").alias("value").to_frame().group_by("value").len("count"))

    def merge(self, piece: pl.DataFrame) -> None:
        """Add counts. They are summed where they have doubled, so that the work is that of the values, not squared."""
        self._pieces.append(piece)
        if sum(p.height for p in self._pieces[1:]) > max(self._whole, 1 << 16):
            self.result()

    def result(self) -> pl.DataFrame:
        if len(self._pieces) > 1:
            whole = pl.concat(self._pieces)
            keys = [c for c in whole.columns if c in ("value", "fold")]
            self._pieces = [whole.group_by(keys).sum()]
        self._whole = self._pieces[0].height
        return self._pieces[0]


def _float(value: Any) -> float:
    return float(value)
