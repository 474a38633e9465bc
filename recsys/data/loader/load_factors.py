"""Estimate how unevenly table rows are used, from the counts in vocabularies."""

from pathlib import Path

import polars as pl


def load_factors(folder: Path, hit_rate: float) -> dict[str, float]:
    """Return, for each table, the share of rows (most frequent first) that get `hit_rate` of the training lookups.

    Row 0, which rare values share, counts as always cached.

    Args:
        folder: the folder of prepared data or of a run.
        hit_rate: a share of the lookups, from 0 to 1.
    """
    factors = {}
    for file in sorted((folder / "vocabularies").glob("*.parquet")):
        counts = pl.read_parquet(file, columns=["count"], glob=False)["count"].cast(pl.Float64).sort(descending=True)
        hot = int((counts.cum_sum() < hit_rate * float(counts.sum())).sum()) + 1
        factors[file.stem] = (1 + min(hot, len(counts))) / (1 + len(counts))
    return factors
