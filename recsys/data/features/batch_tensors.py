"""Make one Batch of rows in memory, and arrays of a Batch; the loader makes its own in loader/chunk_layout.

torchrec is imported only by the functions that return its types.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
import torch
from torch import Tensor

from recsys.data.features import Fitted
from recsys.data.features.arrays import Arrays, single_valued
from recsys.data.features.blocks import label_column
from recsys.interface.features import FeatureSpec

if TYPE_CHECKING:
    from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

    from recsys.interface.batch import Batch
    from recsys.interface.candidates import Candidates


@dataclass(frozen=True)
class RowTensors:
    """The features of B rows in memory, which `batch` makes one Batch.

    dense: (B, D) float32, columns in the order of the FeatureSpec
    values: (N,) int32 for each sparse feature, the ids of all rows; N = B if it is single-valued
    lengths: (B,) int32 for each sparse feature, the number of ids of each row
    """

    dense: Tensor
    values: dict[str, Tensor]
    lengths: dict[str, Tensor]

    @classmethod
    def from_frame(
        cls, frame: pl.DataFrame, features: FeatureSpec, vectors: Mapping[str, np.ndarray] | None = None
    ) -> RowTensors:
        """Convert all rows of a frame.

        Args:
            frame: data frame that `Fitted.apply` returned.
            vectors: the vectors of dense features, `Fitted.matrices`.
        """
        return cls.from_arrays(Arrays.from_frame(frame, features, vectors), features)

    @classmethod
    def from_arrays(cls, arrays: Arrays, features: FeatureSpec) -> RowTensors:
        """Return tensors of the same values. They share the memory of dense and multi-valued features."""
        singles = dict(zip(single_valued(features), np.ascontiguousarray(arrays.ids.T), strict=True))
        one = torch.ones(arrays.rows, dtype=torch.int32)
        values, lengths = {}, {}
        for f in features.sparse:
            values[f.name] = torch.from_numpy((arrays.values if f.multi_valued else singles)[f.name])
            lengths[f.name] = torch.from_numpy(arrays.lengths[f.name]) if f.multi_valued else one
        return cls(torch.from_numpy(arrays.dense), values, lengths)

    @property
    def rows(self) -> int:
        return self.dense.shape[0]

    def keyed_jagged(self) -> KeyedJaggedTensor:
        """Return the sparse features, F keys in the order of the FeatureSpec with B bags each."""
        from torchrec.sparse.jagged_tensor import KeyedJaggedTensor  # serving does not need torchrec

        empty = torch.zeros(0, dtype=torch.int32)  # there may be no sparse feature
        values, lengths = (torch.cat([empty, *x.values()]) for x in (self.values, self.lengths))
        return KeyedJaggedTensor(list(self.values), values, lengths=lengths)

    def batch(self, labels: np.ndarray | None = None) -> Batch:
        """Return the rows as a Batch. labels: (B, T), zeros of one label by default."""
        from recsys.interface.batch import Batch  # imports torchrec

        columns = np.zeros((self.rows, 1), np.float32) if labels is None else labels.astype(np.float32)
        return Batch(self.dense, self.keyed_jagged(), torch.from_numpy(columns.reshape(self.rows, -1)))


def arrays_of(batch: Batch, features: FeatureSpec) -> Arrays:
    """Return the features of a Batch as arrays, which share its memory where they can."""
    columns, singles = batch.sparse.to_dict(), single_valued(features)
    ids = np.zeros((batch.rows, 0), np.int32)
    if singles:
        ids = np.stack([columns[n].values().int().numpy() for n in singles], axis=1)
    lists = [f.name for f in features.sparse if f.multi_valued]
    values = {n: columns[n].values().int().numpy() for n in lists}
    return Arrays(batch.dense.numpy(), ids, values, {n: columns[n].lengths().int().numpy() for n in lists})


def candidates_of(fitted: Fitted) -> Candidates:
    """Return the items that retrieval models rank, with their popularity and features."""
    from recsys.interface.candidates import Candidates  # online serving does not need it

    counts = fitted.item_vocabulary["count"].to_numpy()
    popularity = np.zeros(1 + len(fitted.candidates), np.float32)
    popularity[1 : 1 + len(counts)] = counts
    if fitted.items is None:
        return Candidates(torch.from_numpy(popularity))
    own = fitted.items.fitted
    items = RowTensors.from_frame(fitted.items.rows, own.features, own.matrices)
    offsets = {n: torch.cat([torch.zeros(1, dtype=torch.int64), x.long().cumsum(0)]) for n, x in items.lengths.items()}
    return Candidates(torch.from_numpy(popularity), items.dense, items.values, offsets)


def batch_of(frame: pl.DataFrame, features: FeatureSpec, vectors: Mapping[str, np.ndarray] | None = None) -> Batch:
    """Return all rows of a frame that `Fitted.apply` returned as one Batch; labels are 0 if it has none."""
    columns = [label_column(i, label.name) for i, label in enumerate(features.labels)]
    labels = np.zeros((frame.height, len(columns)), np.float32)
    if columns and columns[0] in frame.columns:
        labels = frame.select(columns).to_numpy()
    return RowTensors.from_frame(frame, features, vectors).batch(labels)
