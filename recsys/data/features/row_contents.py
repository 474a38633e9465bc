"""Know rows again that an earlier training had, wherever they stand: by hashes of what they hold."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping

import numpy as np
import polars as pl

from recsys.data.features.resolved_data import ResolvedData
from recsys.data.features.steps import Target
from recsys.data.features.value_index import mix
from recsys.data.features.value_types import Vector

KEPT = 1 << 15  # hashes
STEP = np.uint64(0x9E3779B97F4A7C15)


def targets(data: ResolvedData) -> list[str]:
    """Return the dense features that encode values by their mean labels."""
    return [n for n, c in data.dense_columns.items() if c.steps and isinstance(c.steps[0], Target)]


def content_columns(data: ResolvedData) -> list[str]:
    """Return the columns of parsed rows that are hashed; none if no feature encodes values by their labels.

    They are the single values of a row's own that features read. Labels, weights, side tables and earlier rows may
    change while the row is the same.
    """
    if not targets(data):
        return []
    joined = {name for join in data.source.joins for name in join.columns if name != join.key}
    for name, sql in data.derive.items():
        joined |= {name} if any(other in sql for other in joined) else set()
    single = {n: s for n, (s, t, _) in data.parsed_columns.items() if not (s.is_list or isinstance(t, Vector))}
    return sorted(n for n, s in single.items() if n not in data.look_backs and not joined & {*s.columns})


class Contents:
    """The smallest hashes of rows, which are a sample of them: the same rows are in the samples of two trainings.

    Broder, On the Resemblance and Containment of Documents, 1997.
    """

    def __init__(self, hashes: np.ndarray | None = None) -> None:
        self.hashes = np.zeros(0, np.uint64) if hashes is None else hashes

    def add(self, frame: pl.DataFrame, columns: Iterable[str], codes: Mapping[str, np.ndarray]) -> None:
        """Add rows. codes: the number of each code, by column of text"""
        hashes = np.zeros(frame.height, np.uint64)
        for name in columns:
            bits = codes[name][frame[name].to_numpy()] if name in codes else _bits(frame[name])
            hashes = mix(hashes * STEP + bits)
        self.merge(Contents(hashes))

    def merge(self, other: Contents) -> None:
        self.hashes = np.unique(np.concatenate([self.hashes, other.hashes]))[:KEPT]

    def share_in(self, other: Contents) -> float:
        """Return the share of these rows that hold what a row of `other` holds, about."""
        limits = [c.hashes[-1] for c in (self, other) if len(c.hashes) == KEPT]
        mine = self.hashes[self.hashes <= min(limits)] if limits else self.hashes
        return float(np.isin(mine, other.hashes).mean()) if len(mine) else 0.0


def numbers_of(texts: pl.Series) -> np.ndarray:
    """Return a number for each text, (n,) uint64."""
    return np.fromiter((zlib.crc32((t or "").encode()) for t in texts), np.uint64, len(texts))


def _bits(values: pl.Series) -> np.ndarray:
    """Return a number for each value, (rows,) uint64, the same for all that models read as equal."""
    if values.dtype.is_float():
        numbers = values.cast(pl.Float32).fill_null(np.nan).to_numpy() + np.float32(0)  # -0.0, too
        return numbers.view(np.uint32).astype(np.uint64)
    return values.to_physical().cast(pl.Int64).fill_null(-1).to_numpy().view(np.uint64)
