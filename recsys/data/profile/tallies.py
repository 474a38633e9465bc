"""Statistics that a Profiler collects: tallies by split, a sample of rows, distinct values."""

import numpy as np
import polars as pl

from recsys.data.features import LABEL
from recsys.data.features.hashing import mix
from recsys.data.prepare.split import SPLITS

TALLY = (*SPLITS, "positives")  # rows of each split; training rows whose label is 1
HASH = "__hash__"  # hash of the row number
KEPT = 1 << 14  # hashes kept to estimate distinct values: 128 KiB a feature


def tally(labels: pl.Series, which: np.ndarray) -> pl.DataFrame:
    """Return the columns TALLY, which each row adds to the counts of its value: 0 or 1. which: (rows,) splits."""
    train = which == 0
    columns = {name: which == i for i, name in enumerate(SPLITS)}
    columns["positives"] = train & (labels.to_numpy() > 0.5)
    return pl.DataFrame({name: mask.astype(np.int64) for name, mask in columns.items()})


class ByValue:
    """Counts the rows of each value by split, and its positive training rows. Memory grows with distinct values."""

    def __init__(self) -> None:
        self._counts: list[pl.DataFrame] = []
        self._whole = 0

    def add(self, values: pl.Series, frame: pl.DataFrame) -> None:
        """Add rows. frame: their `tally`. A missing value is the empty string; every value of a bag counts."""
        rows = frame.select(values.alias("value"), *TALLY)
        if values.dtype == pl.List:
            rows = rows.explode("value").drop_nulls("value")
        elif values.dtype == pl.String:
            rows = rows.with_columns(pl.col("value").fill_null(""))
        self._counts.append(rows.group_by("value").sum())
        # summed only when their size has doubled, so that the total work is linear
        if sum(p.height for p in self._counts[1:]) > max(self._whole, 1 << 16):
            self.result()

    def result(self) -> pl.DataFrame:
        """Return the columns value and TALLY."""
        if len(self._counts) > 1:
            self._counts = [pl.concat(self._counts).group_by("value").sum()]
        self._whole = self._counts[0].height
        return self._counts[0]


class RowSample:
    """A sample of `limit` rows: those whose row numbers have the smallest hashes, so every run samples the same."""

    def __init__(self, limit: int) -> None:
        self.limit, self.seen, self._size = limit, 0, 0
        self._frames: list[pl.DataFrame] = []
        self._highest = np.uint64(2**64 - 1)

    def add(self, frame: pl.DataFrame) -> None:
        places = mix(np.arange(self.seen, self.seen + frame.height, dtype=np.uint64))
        self.seen += frame.height
        kept = frame.with_columns(pl.Series(HASH, places)).filter(pl.col(HASH) <= pl.lit(int(self._highest), pl.UInt64))
        self._frames.append(kept)
        self._size += kept.height
        if self._size > self.limit * 5 // 4:
            self._cut()

    def result(self) -> pl.DataFrame:
        """Return the sampled rows."""
        if self._size > self.limit:
            self._cut()
        return pl.concat(self._frames).drop(HASH)

    def _cut(self) -> None:
        kept = pl.concat(self._frames).bottom_k(self.limit, by=HASH)
        self._frames, self._size = [kept], kept.height
        self._highest = kept[HASH].to_numpy().max()


class Distinct:
    """Counts distinct numbers: exactly up to KEPT of them, else by an estimate from the KEPT smallest hashes.

    The estimate is (KEPT - 1) / (the largest kept hash, as a share of all hashes), with a standard error of
    1 / sqrt(KEPT - 2) = 0.8 % (Bar-Yossef et al. 2002, Counting distinct elements in a data stream).
    """

    def __init__(self) -> None:
        self._hashes = np.zeros(0, np.uint64)

    def add(self, values: pl.Series) -> None:
        numbers = values.drop_nulls().to_numpy().astype(np.float64) + 0.0  # -0 is 0
        hashes = mix(numbers.view(np.uint64))
        if not self.exact:
            hashes = hashes[hashes < self._hashes[-1]]
        if len(hashes):
            self._hashes = np.union1d(self._hashes, hashes)[: KEPT + 1]

    @property
    def exact(self) -> bool:
        return len(self._hashes) <= KEPT

    @property
    def count(self) -> int:
        if self.exact:
            return len(self._hashes)
        return round((KEPT - 1) / (float(self._hashes[KEPT - 1]) / 2.0**64))


def each_number(frame: pl.DataFrame, name: str) -> pl.DataFrame:
    """Return the columns `name` and LABEL, with a row for each number of a list; an empty list has none."""
    rows = frame.select(name, LABEL)
    if rows.schema[name] != pl.List:
        return rows
    return rows.filter(pl.col(name).list.len() > 0).explode(name)
