"""Values: their cells, what is out of vocabulary, and what each threshold of frequency would keep."""

import numpy as np
import polars as pl

from recsys.data.prepare.split import SPLITS
from recsys.data.profile.data_profile import MIN_COUNTS, Table
from recsys.data.profile.tallies import TALLY

TOP = 20  # values that are cells of their own
POINTS = 60  # of a curve


def cells(counts: pl.DataFrame, absent: str) -> pl.DataFrame:
    """The values most frequent in training, then all others together. absent: what stands for a missing value."""
    order = counts.filter(pl.col("train") > 0).sort(["train", "value"], descending=[True, False])
    top = order.head(TOP)
    named = pl.when(pl.col("value") == absent).then(pl.lit("")).otherwise(pl.col("value")).alias("label")
    shown = top.select(named, (pl.col("value") == absent).alias("special"), *TALLY)
    rest = counts.select(TALLY).sum() - top.select(TALLY).sum()
    if rest.select(SPLITS).sum_horizontal().item():
        n = counts.height - top.height
        told = pl.DataFrame({"label": [f"all {n:,} others" if n > 1 else "one other"], "special": [True]})
        shown = pl.concat([shown, pl.concat([told, rest], how="horizontal")])
    return shown


def known(counts: pl.DataFrame, vocabulary: pl.DataFrame) -> pl.DataFrame:
    return counts.join(vocabulary.select("value"), on="value", how="semi")


def unknown_share(counts: pl.DataFrame, inside: pl.DataFrame) -> tuple[float | None, float | None]:
    """The share of lookups in validation and in test whose value is not among those `inside`."""
    whole, found = counts.select(SPLITS).sum(), inside.select(SPLITS).sum()
    return tuple(1 - found[s].item() / n if (n := whole[s].item()) else None for s in SPLITS[1:])  # type: ignore[return-value]


def thresholds(train: np.ndarray, own: int) -> pl.DataFrame:
    """Of rows by value in the training split: what each min_count keeps. A table has a row more, for what is rare."""
    least = np.array(sorted({*MIN_COUNTS, max(own, 1)}))
    kept = [train[train >= n] for n in least]
    total = max(int(train.sum()), 1)
    return pl.DataFrame(
        {"min_count": least, "rows": [len(k) + 1 for k in kept], "covered": [int(k.sum()) / total for k in kept]}
    )


def coverage(train: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """What share of training's lookups the n most frequent values have, at some n."""
    if len(train) < 3:
        return None
    found = np.cumsum(np.sort(train)[::-1]) / train.sum()
    at = np.unique(np.geomspace(1, len(train), POINTS).round().astype(int))
    return at, found[at - 1]


def table(
    name: str, features: tuple[str, ...], rows: int, encode: str, least: int, counts: pl.DataFrame, used: int | None
) -> Table:
    train = counts.filter(pl.col("train") > 0)["train"].to_numpy()
    own = least if encode == "vocabulary" else 1
    return Table(
        name, features, rows, encode, own, len(train), int(train.sum()), used, thresholds(train, own), coverage(train)
    )
