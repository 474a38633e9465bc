"""Transformed columns as tensors. torchrec is imported only where its types are asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
import torch
from torch import Tensor

from recsys.features import FeatureSpec

if TYPE_CHECKING:
    from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

    from recsys.batch import Batch


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
    def of(cls, frame: pl.DataFrame, features: FeatureSpec) -> Tensors:
        """All rows of a frame that `Fitted.apply` made."""
        rows = frame.height
        dense = np.empty((rows, len(features.dense)), np.float32)
        for i, d in enumerate(features.dense):
            dense[:, i] = frame[d.name].to_numpy()
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


def _owned(column: pl.Series, dtype: type[np.generic]) -> Tensor:
    """In memory that is not polars' own, which may not be written to."""
    return torch.from_numpy(column.to_numpy().astype(dtype))
