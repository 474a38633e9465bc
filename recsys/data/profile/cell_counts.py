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


def in_vocabulary(counts: pl.DataFrame, vocabulary: pl.DataFrame) -> pl.DataFrame:
    """Return the counts of the values in the vocabulary."""
    return counts.join(vocabulary.select("value"), on="value", how="semi")


def unknown_share(counts: pl.DataFrame, known: pl.DataFrame) -> tuple[float | None, float | None]:
    """Return the share of lookups in validation and in test whose value is not in `known`."""
    total, known_total = counts.select(SPLITS).sum(), known.select(SPLITS).sum()
    validation, test = (1 - known_total[s].item() / n if (n := total[s].item()) else None for s in SPLITS[1:])
    return validation, test


def _thresholds(train: np.ndarray, own: int) -> pl.DataFrame:
    """Return the size and coverage of a table with each min_count; it has one row more, for rare values.

    Args:
        train: (values,) the training lookups of each value.
        own: the config's min_count.
    """
    least = np.array(sorted({*MIN_COUNTS, max(own, 1)}))
    kept = [train[train >= n] for n in least]
    total = max(int(train.sum()), 1)
    return pl.DataFrame(
        {"min_count": least, "rows": [len(k) + 1 for k in kept], "covered": [int(k.sum()) / total for k in kept]}
    )


def _coverage(train: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Return some numbers n and the share of training lookups that the n most frequent values have."""
    if len(train) < 3:
        return None
    covered = np.cumsum(np.sort(train)[::-1]) / train.sum()
    at = np.unique(np.geomspace(1, len(train), POINTS).round().astype(int))
    return at, covered[at - 1]


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
    return Table(
        name,
        features,
        rows,
        encoder,
        min_count,
        len(train),
        int(train.sum()),
        used,
        _thresholds(train, min_count),
        _coverage(train),
    )
