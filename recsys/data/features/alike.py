"""Which raw columns move together, so that one nearly says what the other says."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations

import numpy as np

from recsys.data.features.arrays import Arrays, dense_slices, single_valued
from recsys.interface.features import FeatureSpec

ALIKE, LEAST = 0.95, 0.05  # correlation of ranks from which columns move together; share of ids that must repeat
COMPARED = 20_000  # rows whose columns are compared with each other


def columns_alike(
    arrays: Arrays, features: FeatureSpec, groups: Mapping[tuple[str, ...], tuple[str, ...]]
) -> list[list[str]]:
    """Return the sets of columns that move together, each sorted. groups: the features made of each group of columns"""
    few = np.linspace(0, arrays.rows - 1, min(arrays.rows, COMPARED)).astype(int)
    slices, singles = dense_slices(features), single_valued(features)
    values: dict[tuple[str, ...], list[np.ndarray]] = {}
    for columns, names in groups.items():
        own = [arrays.dense[few, slices[n].start] for n in names if n in slices]
        own += [arrays.ids[few, singles.index(n)] for n in names if n in singles]
        values[columns] = [x for x in own if len(np.unique(x)) > 1]
    parts: list[set[str]] = []
    for (one, a), (two, b) in combinations(values.items(), 2):
        if not {*groups[one]} & {*groups[two]} and any(_alike(x, y) for x in a for y in b):
            joined = {*one, *two}.union(*(p for p in parts if p & {*one, *two}))
            parts = [p for p in parts if not p & joined] + [joined]
    return [sorted(part) for part in parts]


def _alike(x: np.ndarray, y: np.ndarray) -> bool:
    """Return whether each of two columns (n,) nearly follows from the other: as numbers, or value by value."""
    if x.dtype.kind == y.dtype.kind == "f":
        ranks = np.stack([np.unique(v, return_inverse=True)[1] for v in (x, y)]).astype(np.float64)
        a, b = (r - r.mean() for r in ranks)
        return abs(float(a @ b)) > ALIKE * float(np.sqrt((a @ a) * (b @ b)))
    codes = [np.unique(v, return_inverse=True)[1] for v in (x, y)]
    if max(c.max() for c in codes) > LEAST * len(x):
        return False  # rare values go together by chance
    table: np.ndarray = np.zeros((codes[0].max() + 1, codes[1].max() + 1))
    np.add.at(table, tuple(codes), 1 / len(x))
    follows = min(table.max(0).sum(), table.max(1).sum())
    return bool(follows > ALIKE and max(table.sum(0).max(), table.sum(1).max()) < ALIKE)
