"""What can be retrieved, and what is known of each candidate."""

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor


@dataclass
class Candidates:
    """N candidates; 0 stands for any unknown one and is none itself. Ids of the item table come first.

    popularity: (N,) float32, how often each was chosen in training
    dense: (N, D), and by sparse feature of FeatureSpec.items the ids of all candidates, one after another, with
    offsets (N + 1,): what is known of them beside their id
    """

    popularity: Tensor
    dense: Tensor | None = None
    values: dict[str, Tensor] = field(default_factory=dict)
    offsets: dict[str, Tensor] = field(default_factory=dict)

    def __len__(self) -> int:
        return self.popularity.shape[0]

    def about(self, ids: Tensor) -> tuple[Tensor, KeyedJaggedTensor]:
        """Of candidates (M,): dense (M, D), sparse of M bags a key."""
        assert self.dense is not None
        parts, sizes = [self.dense.new_zeros(0, dtype=torch.int32)], [self.dense.new_zeros(0, dtype=torch.int32)]
        for name, values in self.values.items():
            offsets = self.offsets[name]
            starts, lengths = offsets[ids], offsets[ids + 1] - offsets[ids]
            ends = lengths.cumsum(0)
            at = torch.arange(int(lengths.sum()), device=ids.device)
            parts.append(values[at + torch.repeat_interleave(starts - ends + lengths, lengths)])
            sizes.append(lengths.int())
        return self.dense[ids], KeyedJaggedTensor(list(self.values), torch.cat(parts), lengths=torch.cat(sizes))

    def to(self, device: torch.device) -> "Candidates":
        return Candidates(
            self.popularity.to(device),
            None if self.dense is None else self.dense.to(device),
            {k: v.to(device) for k, v in self.values.items()},
            {k: v.to(device) for k, v in self.offsets.items()},
        )
