"""The data profile that `profile_rows` computes.

A cell is a value or a range of numbers. Frames of cells have the columns label, special (missing values, or the rest),
train, validation, test (their rows; for bags, their lookups) and positives (the part of train whose label is 1).
"""

from dataclasses import dataclass, field
from math import sqrt

import numpy as np
import polars as pl

from recsys.data.features.encoders import Encoder

FLOOR = 1e-4  # smaller shares count as this one: an empty cell would make the index infinite
SOME, LARGE = 0.1, 0.25
DIMS = (16, 128)  # embedding dims for which the page shows bytes (float32)
MIN_COUNTS = (1, 2, 3, 5, 10, 15, 30, 100)
TOP = 20  # the most frequent values, which are cells of their own


def psi(p: np.ndarray, q: np.ndarray) -> float:
    """Return the population stability index of rows by cell: (cells,), (cells,) -> sum (p - q) ln(p / q) of shares.

    See Siddiqi 2006, Credit Risk Scorecards. It is Jeffreys' divergence; between positive and negative rows it is the
    information value.
    """
    p, q = (np.maximum(n / n.sum(), FLOOR) for n in (p, q))
    return float(((p - q) * np.log(p / q)).sum())


@dataclass(frozen=True)
class Drift:
    """The drift from the training split to another one."""

    psi: float
    chance: float  # the 95 % quantile of psi without drift, for the same numbers of rows

    @property
    def reading(self) -> str:
        """Interpretation of psi: "stable" below 0.1 or not above `chance`, "some" below 0.25, otherwise "large"."""
        if self.psi < SOME or self.psi <= self.chance:
            return "stable"
        return "some" if self.psi < LARGE else "large"


def drift(p: np.ndarray, q: np.ndarray) -> Drift | None:
    """Return the drift between the rows by cell of two splits: (cells,), (cells,); None if one split has no rows.

    Without drift, the index of n and m rows is about (1/n + 1/m) times a chi-square variable with cells - 1 degrees of
    freedom (Yurdakul 2018, Statistical Properties of Population Stability Index).
    """
    n, m = int(p.sum()), int(q.sum())
    if not n or not m:
        return None
    freedom = max(int(((p + q) > 0).sum()) - 1, 0)
    # the 95 % quantile of chi-square, accurate to 1 % (Wilson and Hilferty 1931)
    share = 2 / (9 * freedom) if freedom else 0.0
    quantile = freedom * (1 - share + 1.645 * sqrt(share)) ** 3
    return Drift(psi(p, q), (1 / n + 1 / m) * quantile)


def wilson(positives: float, rows: float) -> tuple[float, float]:
    """Return the 95 % interval of a share (Wilson 1927)."""
    if not rows:
        return 0.0, 1.0
    z, share = 1.96, positives / rows
    middle, half = share + z * z / (2 * rows), z * sqrt(share * (1 - share) / rows + z * z / (4 * rows * rows))
    return max((middle - half) / (1 + z * z / rows), 0.0), min((middle + half) / (1 + z * z / rows), 1.0)


@dataclass(frozen=True)
class Histogram:
    """A histogram of each split.

    edges: (bins + 1,) in axis coordinates
    counts: (3, bins) of the sampled rows
    unit: 0 for a linear axis, else x is drawn at sign(x) ln(1 + |x| / unit)
    """

    edges: np.ndarray
    counts: np.ndarray
    unit: float


@dataclass(frozen=True)
class Numbers:
    """A column of numbers, or of times in seconds since 1970.

    spans: min, quantiles, max, mean and std of each split; None if all values are missing
    histogram: None if all values are missing
    sampled: the number of training rows in the sample that quantiles, histogram and cells are computed from
    seen: the number of training rows
    """

    spans: list[dict[str, float] | None]
    histogram: Histogram | None
    sampled: int
    seen: int


@dataclass(frozen=True)
class FeatureProfile:
    """One column of parsed rows: its features and values.

    name: the column
    kind: dense, time, count, target, sparse, bag, cross or quantiles; followed by "hashed" or "id"
    reads: the raw columns
    encoding: the transforms or the encoding that the config sets, as text
    table: the embedding table
    missing: the share of rows without a value, by split
    distinct: the number of distinct values in the training split
    exact: `distinct` is exact, not an estimate
    oov: the share of lookups that are out of vocabulary, in validation and test
    cells: the rows of each cell
    drift: from training to validation, and to test
    iv: the information value
    numbers: more about numbers and times
    lengths: for bags, cells of the number of values
    parts: for times, cells of each part (hour, ...)
    """

    name: str
    kind: str
    reads: str
    encoding: str
    table: str | None
    missing: tuple[float | None, ...]
    distinct: int
    exact: bool
    oov: tuple[float | None, float | None] | None
    cells: pl.DataFrame
    drift: tuple[Drift | None, Drift | None]
    iv: float
    numbers: Numbers | None = None
    lengths: pl.DataFrame | None = None
    is_time: bool = False
    parts: dict[str, pl.DataFrame] = field(default_factory=dict)

    @property
    def worst(self) -> Drift | None:
        """The larger drift; None if validation and test have no rows."""
        drifts = [d for d in self.drift if d is not None]
        return max(drifts, key=lambda d: d.psi, default=None)


@dataclass(frozen=True)
class Table:
    """An embedding table with the config's threshold (min_count), and its size with others.

    name: the table
    features: the features that share it
    rows: its rows
    encoder: how values become rows
    min_count: the config's threshold
    distinct: the number of distinct values in the training split
    lookups: the number of lookups by training rows
    used: for hash, the number of rows that a training value falls into
    thresholds: min_count, rows, covered (the share of training lookups whose value has a row of its own)
    coverage: numbers n of the most frequent values, and the share of training lookups that they cover
    """

    name: str
    features: tuple[str, ...]
    rows: int
    encoder: Encoder
    min_count: int
    distinct: int
    lookups: int
    used: int | None = None
    thresholds: pl.DataFrame | None = None
    coverage: tuple[np.ndarray, np.ndarray] | None = None


@dataclass(frozen=True)
class DataProfile:
    """The profile of a data set: rows and positive rows by split, features and tables."""

    rows: tuple[int, ...]
    positives: tuple[int, ...]
    features: list[FeatureProfile]
    tables: list[Table]
    labelled: bool = True
