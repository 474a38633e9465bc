"""What a training step consumes."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor
from torchrec.streamable import Pipelineable


@dataclass
class Batch(Pipelineable):
    """B rows.

    dense: (B, D) float32
    sparse: F keys in the FeatureSpec's order, B bags each
    labels: (B, T) float32
    weight: (B,) float32, or none where every row counts 1; rows of weight 0 only fill a batch up
    """

    dense: Tensor
    sparse: KeyedJaggedTensor
    labels: Tensor
    weight: Tensor | None = None

    @property
    def rows(self) -> int:
        return self.labels.shape[0]

    def to(self, device: torch.device, non_blocking: bool = False) -> "Batch":
        return Batch(
            dense=self.dense.to(device, non_blocking=non_blocking),
            sparse=self.sparse.to(device, non_blocking=non_blocking),
            labels=self.labels.to(device, non_blocking=non_blocking),
            weight=None if self.weight is None else self.weight.to(device, non_blocking=non_blocking),
        )

    def record_stream(self, stream: torch.Stream) -> None:
        for tensor in (self.dense, self.labels, self.weight):
            if tensor is not None:
                tensor.record_stream(stream)
        self.sparse.record_stream(stream)

    def pin_memory(self) -> "Batch":
        return Batch(
            dense=self.dense.pin_memory(),
            sparse=self.sparse.pin_memory(),
            labels=self.labels.pin_memory(),
            weight=None if self.weight is None else self.weight.pin_memory(),
        )
