"""Statistics that a Profiler collects: tallies by split, a sample of rows, distinct values, cells."""

import numpy as np
import polars as pl

from recsys.data.features import LABEL
from recsys.data.features.encoders import Encoder
from recsys.data.features.value_index import mix
from recsys.data.prepare.split import SPLITS
from recsys.data.profile.data_profile import MIN_COUNTS, Table

TALLY = (*SPLITS, "positives")  # rows of each split; training rows whose label is 1
HASH = "__hash__"  # hash of the row number
KEPT = 1 << 14  # hashes kept to estimate distinct values: 128 KiB a feature
TOP = 20  # the most frequent values, which are cells of their own
POINTS = 60  # points of the coverage curve


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


def cells(counts: pl.DataFrame, absent: str) -> pl.DataFrame:
    """Return a cell for each of the most frequent training values and one for all others.

    Args:
        counts: value and TALLY.
        absent: the text of a missing value.
    """
    order = counts.filter(pl.col("train") > 0).sort(["train", "value"], descending=[True, False])
    top = order.head(TOP)
    named = pl.when(pl.col("value") == absent).then(pl.lit("")).otherwise(pl.col("value")).alias("label")
    shown = top.select(named, (pl.col("value") == absent).alias("special"), *TALLY)
    rest = counts.select(TALLY).sum() - top.select(TALLY).sum()
    if rest.select(SPLITS).sum_horizontal().item():
        n = counts.height - top.height
        label = pl.DataFrame({"label": [f"all {n:,} others" if n > 1 else "one other"], "special": [True]})
        shown = pl.concat([shown, pl.concat([label, rest], how="horizontal")])
    return shown


def unknown_share(counts: pl.DataFrame, known: pl.DataFrame) -> tuple[float | None, float | None]:
    """Return the share of lookups in validation and in test whose value is not in `known`."""
    total, known_total = counts.select(SPLITS).sum(), known.select(SPLITS).sum()
    validation, test = (1 - known_total[s].item() / n if (n := total[s].item()) else None for s in SPLITS[1:])
    return validation, test


def table(
    name: str, features: tuple[str, ...], rows: int, encoder: Encoder, counts: pl.DataFrame, used: int | None
) -> Table:
    """Return the sizes of an embedding table and its lookups in training.

    Args:
        features: names of the features that share it.
        counts: value and TALLY, a row for each value.
        used: for hash, the number of rows that a training value falls into; otherwise None.
    """
    train = counts.filter(pl.col("train") > 0)["train"].to_numpy()
    min_count = 1 if encoder.vocabulary is None else max(encoder.vocabulary.min_count, 1)
    coverage = None  # some numbers n, and the share of training lookups that the n most frequent values have
    if len(train) >= 3:
        covered = np.cumsum(np.sort(train)[::-1]) / train.sum()
        at = np.unique(np.geomspace(1, len(train), POINTS).round().astype(int))
        coverage = (at, covered[at - 1])
    # a table has one row more than it has frequent values, for the rare ones
    least = np.array(sorted({*MIN_COUNTS, min_count}))
    kept = [train[train >= n] for n in least]
    total = max(int(train.sum()), 1)
    covers = [int(k.sum()) / total for k in kept]
    thresholds = pl.DataFrame({"min_count": least, "rows": [len(k) + 1 for k in kept], "covered": covers})
    return Table(name, features, rows, encoder, min_count, len(train), int(train.sum()), used, thresholds, coverage)
