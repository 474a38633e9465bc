"""Transformed columns as tensors. torchrec is imported only where its types are asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
import torch
from torch import Tensor

from recsys.data.transforms import Fitted, item_feature, sparse_columns
from recsys.features import FeatureSpec

if TYPE_CHECKING:
    from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

    from recsys.batch import Batch
    from recsys.candidates import Candidates


@dataclass(frozen=True)
class Tensors:
    """B rows.

    dense: (B, D) float32, columns in the FeatureSpec's order
    values: by sparse feature, the ids of all rows one after another, (N,) int32; N is B where it is single-valued
    lengths: by sparse feature, how many of them are each row's, (B,) int32
    """

    dense: Tensor
    values: dict[str, Tensor]
    lengths: dict[str, Tensor]

    @classmethod
    def of(cls, frame: pl.DataFrame, features: FeatureSpec, vectors: Mapping[str, np.ndarray] | None = None) -> Tensors:
        """All rows of a frame that `Fitted.apply` made; vectors: `Fitted.matrices`."""
        rows = frame.height
        dense = np.empty((rows, features.dense_width), np.float32)
        places = dense_places(features)
        for d in features.dense:
            given = frame[d.name].to_numpy()
            dense[:, places[d.name]] = (vectors or {})[d.name][given] if d.vectors else given[:, None]
        one = torch.ones(rows, dtype=torch.int32)
        values, lengths = {}, {}
        for f in features.sparse:
            column, lengths[f.name] = frame[f.name], one
            if f.multi_valued:
                lengths[f.name] = _owned(column.list.len(), np.int32)
                column = column.explode(empty_as_null=False, keep_nulls=False)
            values[f.name] = _owned(column, np.int32)
        return cls(torch.from_numpy(dense), values, lengths)

    @property
    def rows(self) -> int:
        return self.dense.shape[0]

    def keyed_jagged(self) -> KeyedJaggedTensor:
        """F keys in the FeatureSpec's order, B bags each."""
        from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

        empty = torch.zeros(0, dtype=torch.int32)  # there may be no sparse feature
        values, lengths = (torch.cat([empty, *x.values()]) for x in (self.values, self.lengths))
        return KeyedJaggedTensor(list(self.values), values, lengths=lengths)

    def batch(self, labels: np.ndarray | None = None) -> Batch:
        """What a model's `forward` takes; labels (B,) are 0 unless they are given."""
        from recsys.batch import Batch

        given = np.zeros(self.rows, np.float32) if labels is None else labels.astype(np.float32)
        return Batch(self.dense, self.keyed_jagged(), torch.from_numpy(given[:, None]))


def candidates_of(fitted: Fitted) -> Candidates:
    """What was fitted of items, for models that retrieve them."""
    from recsys.candidates import Candidates

    name = item_feature(fitted.data)
    assert name is not None
    counts = fitted.vocabularies[sparse_columns(fitted.data)[name].table or name]["count"].to_numpy()
    popularity = np.zeros(1 + len(fitted.candidates), np.float32)
    popularity[1 : 1 + len(counts)] = counts
    if fitted.items is None:
        return Candidates(torch.from_numpy(popularity))
    own = fitted.items.fitted
    about = Tensors.of(fitted.items.rows, own.features, own.matrices)
    offsets = {n: torch.cat([torch.zeros(1, dtype=torch.int64), x.long().cumsum(0)]) for n, x in about.lengths.items()}
    return Candidates(torch.from_numpy(popularity), about.dense, about.values, offsets)


def dense_places(features: FeatureSpec) -> dict[str, slice]:
    """By dense feature, its columns of D."""
    places, at = {}, 0
    for f in features.dense:
        places[f.name], at = slice(at, at + f.width), at + f.width
    return places


def _owned(column: pl.Series, dtype: type[np.generic]) -> Tensor:
    """In memory that is not polars' own, which may not be written to."""
    return torch.from_numpy(column.to_numpy().astype(dtype))
