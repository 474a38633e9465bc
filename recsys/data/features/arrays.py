"""Turn transformed columns into numpy arrays. Servers without torch use this module, so it must not import torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl

from recsys.interface.features import FeatureSpec


@dataclass(frozen=True)
class Arrays:
    """The features of B rows.

    dense: (B, D) float32, columns in the order of the FeatureSpec
    ids: (B, S) int32, C-contiguous, the ids of the S single-valued sparse features in the order of the FeatureSpec
    values: (N,) int32 for each multi-valued sparse feature, the ids of all rows
    lengths: (B,) int32 for each multi-valued sparse feature, the number of ids of each row
    """

    dense: np.ndarray
    ids: np.ndarray
    values: dict[str, np.ndarray]
    lengths: dict[str, np.ndarray]

    @classmethod
    def from_frame(
        cls, frame: pl.DataFrame, features: FeatureSpec, vectors: Mapping[str, np.ndarray] | None = None
    ) -> Arrays:
        """Convert all rows of a frame.

        Args:
            frame: data frame that `Fitted.apply` returned.
            vectors: the vectors of dense features, `Fitted.matrices`.
        """
        arrays = cls.empty(frame.height, features)
        slices = dense_slices(features)
        for d in features.dense:
            x = frame[d.name].to_numpy()
            vector = (vectors or {})[d.name][x] if d.vectors else x.reshape(frame.height, d.width)
            arrays.dense[:, slices[d.name]] = vector
        for i, name in enumerate(single_valued(features)):
            arrays.ids[:, i] = frame[name].to_numpy()
        for f in features.sparse:
            if f.multi_valued:
                ids = frame[f.name].explode(empty_as_null=False, keep_nulls=False)
                # a copy, because polars' own memory must not be written to
                arrays.values[f.name] = ids.to_numpy().astype(np.int32)
                arrays.lengths[f.name] = frame[f.name].list.len().to_numpy().astype(np.int32)
        return arrays

    @classmethod
    def empty(cls, rows: int, features: FeatureSpec) -> Arrays:
        """Return arrays of `rows` rows whose dense values and ids are not set, without multi-valued features."""
        ids = np.empty((rows, len(single_valued(features))), np.int32)
        return cls(np.empty((rows, features.dense_width), np.float32), ids, {}, {})

    @classmethod
    def concatenated(cls, parts: Sequence[Arrays]) -> Arrays:
        """Return the rows of all parts, which have the same features, one part after another."""
        values, lengths = (
            {n: np.concatenate([getattr(p, what)[n] for p in parts]) for n in parts[0].values}
            for what in ("values", "lengths")
        )
        return cls(np.concatenate([p.dense for p in parts]), np.concatenate([p.ids for p in parts]), values, lengths)

    @cached_property
    def _starts(self) -> dict[str, np.ndarray]:
        """The place of each row's first id in the values, for each multi-valued feature."""
        return {n: np.cumsum(x, dtype=np.int64) - x for n, x in self.lengths.items()}

    def take(self, rows: np.ndarray) -> Arrays:
        """Return some rows, (n,) numbers; a row may be taken several times."""
        values, lengths = {}, {}
        for name, starts in self._starts.items():
            lengths[name] = self.lengths[name][rows]
            values[name] = self.values[name][places_of_ranges(starts[rows], lengths[name])]
        return Arrays(self.dense[rows], self.ids[rows], values, lengths)

    def shuffled(self, features: FeatureSpec, names: Sequence[str], draws: np.random.Generator) -> tuple[Arrays, float]:
        """Return the rows with the features `names` of other rows, and the share of rows that could get them."""
        lists = [self.lengths[n] for n in names if n in self.lengths]
        order, places = draws.permutation(self.rows), np.arange(self.rows)
        share = 1.0
        if lists:  # among the rows whose lists are as long
            _, kind, count = np.unique(np.stack(lists, 1), axis=0, return_inverse=True, return_counts=True)
            kind = kind.reshape(-1)
            order = order[np.argsort(kind[order], kind="stable")]
            places, share = np.argsort(kind, kind="stable"), float((count[kind] > 1).mean())
        source = np.empty(self.rows, np.int64)
        source[places] = order
        other, slices, singles = self.take(source), dense_slices(features), single_valued(features)
        dense, ids = self.dense.copy(), self.ids.copy()
        for name in names:
            if name in slices:
                dense[:, slices[name]] = other.dense[:, slices[name]]
            elif name in singles:
                ids[:, singles.index(name)] = other.ids[:, singles.index(name)]
        values = {n: (other if n in names else self).values[n] for n in self.values}
        return Arrays(dense, ids, values, self.lengths), share

    @property
    def rows(self) -> int:
        return self.dense.shape[0]


def places_of_ranges(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return the numbers from each start on, one range after another: (n,), (n,) -> (P,).

    >>> places_of_ranges(np.array([10, 50]), np.array([3, 2]))
    array([10, 11, 12, 50, 51])
    """
    ends = np.cumsum(lengths, dtype=np.int64)
    places: np.ndarray = np.repeat(starts - ends + lengths, lengths) + np.arange(int(lengths.sum()))
    return places


def single_valued(features: FeatureSpec) -> list[str]:
    """Return the names of the single-valued sparse features, the columns of `Arrays.ids`."""
    return [f.name for f in features.sparse if not f.multi_valued]


def dense_slices(features: FeatureSpec) -> dict[str, slice]:
    """Return the columns of each dense feature in the dense array (B, D)."""
    slices, at = {}, 0
    for f in features.dense:
        slices[f.name], at = slice(at, at + f.width), at + f.width
    return slices
