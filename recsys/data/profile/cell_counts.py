"""Compute cells of values, shares out of vocabulary, and table sizes by threshold of frequency."""

import numpy as np
import polars as pl

from recsys.data.features.encoders import Encoder, Vocabulary
from recsys.data.prepare.split import SPLITS
from recsys.data.profile.data_profile import MIN_COUNTS, Table
from recsys.data.profile.tallies import TALLY

TOP = 20  # the most frequent values, which are cells of their own
POINTS = 60  # points of the coverage curve


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
        name: name of the table.
        features: names of the features that share it.
        rows: number of its rows.
        encoder: how values become rows.
        counts: value and TALLY, a row for each value.
        used: for hash, the number of rows that a training value falls into; otherwise None.
    """
    train = counts.filter(pl.col("train") > 0)["train"].to_numpy()
    min_count = max(encoder.min_count, 1) if isinstance(encoder, Vocabulary) else 1
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
