"""Tables of which one process answers most lookups.

Rows are numbered by their counts in the training rows, and cut into blocks: the first block has the most frequent ones.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

MOST = 2.0  # times the mean of a table's processes
SHOWN = 3  # tables of a line


def skewed(tables: Iterable[tuple[str, str, Sequence[Mapping[str, Any]]]], folder: Path) -> str | None:
    """Return a line about the tables of which one process answers more than MOST times the mean; None without any.

    Args:
        tables: name, vocabulary and shards of each, as in plan.json.
        folder: of a run or of prepared data, which has the counts.
    """
    found = []
    for name, vocabulary, shards in tables:
        blocks = {s["offsets"][0]: s["rows"] for s in shards}  # those of several columns have the same rows
        file = folder / "vocabularies" / f"{vocabulary}.parquet"
        if len(blocks) > MOST and file.exists():  # hashed values are not counted
            counts = pl.read_parquet(file, columns=["count"], glob=False)["count"].to_numpy()
            share = largest_share(blocks, counts)
            if share * len(blocks) > MOST:
                found.append((share, name, len(blocks)))
    if not found:
        return None
    (share, name, ranks), *others = sorted(found, reverse=True)
    more = ", ".join(f"{other} ({theirs:.0%})" for theirs, other, _ in others[: SHOWN - 1])
    more += f" and {len(others) + 1 - SHOWN} more" if len(others) >= SHOWN else ""
    return (
        f"table {name}: one of {ranks} processes answers {share:.0%} of its lookups, because its frequent rows are "
        f"neighbours, and rows are cut into blocks{f'; likewise {more}' if more else ''}. sharding=columnwise or "
        f"tablewise, or sharding.per_table.{name}.types=[column_wise] for one table, does not cut them"
    )


def largest_share(blocks: Mapping[int, int], counts: np.ndarray) -> float:
    """Return the largest share of a table's lookups that read one of its blocks of rows.

    Args:
        blocks: first row -> number of rows.
        counts: (n,), of the rows from the first after row 0, which has the unknown values.

    >>> largest_share({0: 2, 2: 2}, np.array([6, 3, 1]))
    0.6
    """
    before = np.concatenate([[0, 0], np.cumsum(counts, dtype=np.float64)])  # lookups of rows before each one
    edges = [(min(first, len(before) - 1), min(first + rows, len(before) - 1)) for first, rows in blocks.items()]
    return max(float(before[end] - before[start]) for start, end in edges) / max(float(before[-1]), 1.0)
