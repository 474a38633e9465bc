"""Cross networks of TorchRec, and what reads them, in float32 where autocast multiplies in float16.

Each cross multiplies by the input once more. Three of them over MLPerf's features pass 10 million within 20 steps of
MLPerf's layers and batches of 256, and so do the layers that read them; the largest float16 is 65,504. No scale of the
loss helps, since the forward pass overflows.
"""

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn
from torchrec.modules import crossnet

from recsys.models.common.layers import Linear


class WideRange(nn.Module, ABC):
    """A module whose `compute` runs in float32 under autocast to float16; other types have the range of float32."""

    @abstractmethod
    def compute(self, x: Tensor) -> Tensor:
        """Transform vectors: (B, N) -> (B, M)."""

    def forward(self, x: Tensor) -> Tensor:
        """Transform vectors: (B, N) -> (B, M)."""
        device = x.device.type
        if not torch.is_autocast_enabled(device) or torch.get_autocast_dtype(device) != torch.float16:
            return self.compute(x)
        with torch.autocast(device, enabled=False):
            return self.compute(x.float())


class CrossNet(WideRange, crossnet.CrossNet):
    """Full-rank crosses, see TorchRec."""

    compute = crossnet.CrossNet.forward


class LowRankCrossNet(WideRange, crossnet.LowRankCrossNet):
    """Low-rank crosses, see TorchRec."""

    compute = crossnet.LowRankCrossNet.forward


class LowRankMixtureCrossNet(WideRange, crossnet.LowRankMixtureCrossNet):
    """Mixtures of low-rank crosses, see TorchRec."""

    compute = crossnet.LowRankMixtureCrossNet.forward


class WideLinear(WideRange, Linear):
    """A linear layer over crosses."""

    compute = Linear.forward
