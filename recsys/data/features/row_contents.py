"""Hash what a row holds, by which it is known again wherever it stands: in other files, or beside other rows."""

from __future__ import annotations

import zlib
from collections.abc import Iterable

import numpy as np
import polars as pl

from recsys.data.features.blocks import GROUP, KEY, ORDER, TIME
from recsys.data.features.dense_columns import Target
from recsys.data.features.resolved_data import ResolvedData
from recsys.data.features.value_index import mix
from recsys.data.features.value_types import Vector

STEP = np.uint64(0x9E3779B97F4A7C15)


def content_columns(data: ResolvedData) -> list[str]:
    """Return the columns of parsed rows that are hashed; none if no transform has folds.

    They are single values of a row's own. Labels, weights, side tables and earlier rows may change while the row is the
    same.
    """
    if not any(isinstance(step, Target) for c in data.dense_columns.values() for step in c.steps):
        return []
    joined = {name for join in data.source.joins for name in join.columns if name != join.key}
    for name, sql in data.derive.items():
        joined |= {name} if any(other in sql for other in joined) else set()
    single = {n: s for n, (s, t, _) in data.parsed_columns.items() if not (s.is_list or isinstance(t, Vector))}
    own = [n for n, source in single.items() if n not in data.look_backs and not joined & {*source.columns}]
    return sorted({TIME, KEY, GROUP, ORDER, *own})


def row_contents(frame: pl.DataFrame, columns: Iterable[str]) -> pl.Series:
    """Return the hash of each row's values, (rows,) Int64. Equal rows of a frame are numbered, so that theirs differ.

    columns: columns of text, numbers or times; those that the frame lacks are left out
    """
    hashes = np.zeros(frame.height, np.uint64)
    for name in columns:
        if name in frame.columns:
            hashes = mix(hashes * STEP + _bits(frame[name]))
    number = pl.Series("h", hashes).to_frame().select(pl.int_range(pl.len(), dtype=pl.UInt64).over("h")).to_series()
    return pl.Series(mix(hashes + number.to_numpy()).view(np.int64))


def _bits(values: pl.Series) -> np.ndarray:
    """Return a number for each value, (rows,) uint64, which is the same in every version and on every machine."""
    if values.dtype == pl.String:
        texts = values.unique()
        crcs = np.fromiter((0 if t is None else 1 + zlib.crc32(t.encode()) for t in texts), np.uint64, len(texts))
        return values.replace_strict(texts, pl.Series(crcs), return_dtype=pl.UInt64).to_numpy()
    if values.dtype.is_float():
        return (values.cast(pl.Float64).fill_null(np.nan).to_numpy() + 0.0).view(np.uint64)  # of -0.0, too
    return values.to_physical().cast(pl.Int64).fill_null(-1).to_numpy().view(np.uint64)
