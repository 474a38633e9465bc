"""How unevenly the rows of tables are used: from the counts that vocabularies hold."""

from pathlib import Path

import polars as pl


def load_factors(folder: Path, hit_rate: float) -> dict[str, float]:
    """By table, the share of its rows that get `hit_rate` of the training split's lookups, the most frequent first.

    folder: of prepared data, or a run's. Row 0, which rare values share, counts as one that is always cached.
    """
    found = {}
    for file in sorted((folder / "vocabularies").glob("*.parquet")):
        counts = pl.read_parquet(file, columns=["count"])["count"].cast(pl.Float64).sort(descending=True)
        hot = int((counts.cum_sum() < hit_rate * float(counts.sum())).sum()) + 1
        found[file.stem] = (1 + min(hot, len(counts))) / (1 + len(counts))
    return found
