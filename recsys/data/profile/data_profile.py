"""What a look has found. Frames of cells have label, special, train, validation, test (rows, or lookups of bags) and
positives (of train).
"""

from dataclasses import dataclass, field

import numpy as np
import polars as pl

from recsys.data.profile.drift import Drift

DIMS = (16, 128)  # widths at which bytes are told; 4 bytes (float32) a number
MIN_COUNTS = (1, 2, 3, 5, 10, 15, 30, 100)


@dataclass(frozen=True)
class Histogram:
    """unit: 0 for a linear axis, else x is drawn at sign(x) ln(1 + |x| / unit)."""

    edges: np.ndarray  # (bins + 1,) as drawn
    counts: np.ndarray  # (3, bins), of sampled rows
    unit: float


@dataclass(frozen=True)
class Numbers:
    """A column of numbers, or of times in seconds since 1970."""

    spans: list[dict[str, float] | None]  # by split: min, quantiles by share, max, mean, std; None where all miss
    histogram: Histogram | None
    sampled: int  # training rows that quantiles, histogram and cells are of
    seen: int  # training rows


@dataclass(frozen=True)
class Feature:
    """One column of typed rows: the features that read it, and what it holds."""

    name: str
    kind: str  # dense, time, count, target, sparse, bag, cross, quantiles; "hashed" behind it
    reads: str  # raw columns
    told: str  # what the config does with it
    table: str | None
    missing: tuple[float | None, ...]  # share of rows by split
    distinct: int  # in the training split
    exact: bool  # the number of distinct values
    oov: tuple[float | None, float | None] | None  # share of lookups in validation and test
    cells: pl.DataFrame
    drift: tuple[Drift | None, Drift | None]
    iv: float  # information value
    numbers: Numbers | None = None
    lengths: pl.DataFrame | None = None  # of bags: cells
    parts: dict[str, pl.DataFrame] = field(default_factory=dict)  # of times: cells

    @property
    def worst(self) -> Drift | None:
        there = [d for d in self.drift if d is not None]
        return max(there, key=lambda d: d.psi, default=None)


@dataclass(frozen=True)
class Table:
    """An embedding table as the config makes it, and what other thresholds would make of it."""

    name: str
    features: tuple[str, ...]
    rows: int
    encode: str
    min_count: int
    distinct: int  # values in the training split
    lookups: int  # of training rows
    used: int | None = None  # of hash: rows that some value of training has
    thresholds: pl.DataFrame | None = (
        None  # min_count, rows, covered: share of training's lookups with a row of their own
    )
    coverage: tuple[np.ndarray, np.ndarray] | None = None  # so many of the most frequent values, and what they cover


@dataclass(frozen=True)
class Found:
    rows: tuple[int, ...]  # by split
    positives: tuple[int, ...]
    features: list[Feature]
    tables: list[Table]
    labelled: bool = True
