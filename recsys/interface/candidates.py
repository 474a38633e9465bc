"""The items that can be retrieved, and their features."""

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor


@dataclass
class Candidates:
    """The candidates, ids 1 ... N - 1. Id 0 stands for any unknown item.

    Items with a row in the item table have the lowest ids; items that only data.items.file contains follow.

    popularity: (N,) float32, number of times each candidate was chosen in the training data
    dense: (N, D) dense features, or None
    values, offsets: for each sparse feature of FeatureSpec.items, the concatenated ids of all candidates, and the
        offset of each candidate's ids, (N + 1,)
    """

    popularity: Tensor
    dense: Tensor | None = None
    values: dict[str, Tensor] = field(default_factory=dict)
    offsets: dict[str, Tensor] = field(default_factory=dict)

    def __len__(self) -> int:
        return self.popularity.shape[0]

    def about(self, ids: Tensor) -> tuple[Tensor, KeyedJaggedTensor]:
        """Return the features of candidates (M,): dense (M, D) and sparse, M bags for each key."""
        assert self.dense is not None
        parts, empty = [], self.dense.new_zeros(0, dtype=torch.int32)
        if not self.values:
            return self.dense[ids], KeyedJaggedTensor([], empty, lengths=empty)
        starts = torch.stack([self.offsets[name][ids] for name in self.values])
        lengths = torch.stack([self.offsets[name][ids + 1] for name in self.values]) - starts
        totals = lengths.sum(1).tolist()
        for values, start, length, total in zip(self.values.values(), starts, lengths, totals, strict=True):
            firsts = start - length.cumsum(0) + length
            at = torch.arange(total, device=ids.device)
            parts.append(values[at + torch.repeat_interleave(firsts, length, output_size=total)])
        sparse = KeyedJaggedTensor(
            list(self.values),
            torch.cat(parts),
            lengths=lengths.int().flatten(),
            stride=len(ids),
            length_per_key=totals,
        )
        return self.dense[ids], sparse

    def to(self, device: torch.device) -> "Candidates":
        return Candidates(
            self.popularity.to(device),
            None if self.dense is None else self.dense.to(device),
            {k: v.to(device) for k, v in self.values.items()},
            {k: v.to(device) for k, v in self.offsets.items()},
        )
