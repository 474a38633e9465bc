"""GDCN: Wang et al., Towards Deeper, Lighter and Interpretable Cross Network for CTR Prediction, 2023,
https://arxiv.org/abs/2311.04635.
"""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recsys.base.ranges import Depth, Deviation, Share, Width
from recsys.interface.features import FeatureSpec
from recsys.models.common.crosses import WideLinear, WideRange
from recsys.models.common.embeddings import PooledEmbeddings
from recsys.models.common.layers import MLP, Linear, flatten, require_sparse


class GatedCross(WideRange):
    """c_{l+1} = c_0 * (W_c c_l + b) * sigmoid(W_g c_l) + c_l: (B, width) -> (B, width)."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.crosses = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.gates = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(layers))

    def compute(self, c0: Tensor) -> Tensor:
        """Cross the input with itself: (B, width) -> (B, width)."""
        c = c0
        for cross, gate in zip(self.crosses, self.gates, strict=True):
            c = c0 * cross(c) * torch.sigmoid(gate(c)) + c
        return c


class GDCN(nn.Module):
    """Cross network whose gates let few interactions through, and a deep network.

    Args:
        dim: width of the embeddings.
        cross_layers: number of layers of the cross network.
        structure: "parallel" (GDCN-P) runs both on c_0, "stacked" (GDCN-S) the deep network on the crosses.
        deep_mlp: hidden widths of the deep network.
        batch_norm: whether to normalise the hidden layers of the deep network over the batch.
        dropout: share of the hidden units of the deep network that are dropped in training.
        init_std: standard deviation of the initial embeddings; None for a uniform distribution in +-1/sqrt(rows).
    """

    def __init__(
        self,
        features: FeatureSpec,
        *,
        dim: Width = 16,
        cross_layers: Depth = 3,
        structure: Literal["parallel", "stacked"] = "parallel",
        deep_mlp: Sequence[Width] = (128, 64),
        batch_norm: bool = False,
        dropout: Share = 0.0,
        init_std: Deviation | None = None,
        device: torch.device | None = None,
    ) -> None:
        super().__init__()
        require_sparse(features, "GDCN")
        self.parallel = structure == "parallel"
        self.embeddings = PooledEmbeddings(features, dim, init_std=init_std, device=device, flat=True)
        width = features.dense_width + self.embeddings.width
        self.cross = GatedCross(width, cross_layers)
        linear, crossed = (Linear, width) if self.parallel else (WideLinear, 0)
        self.deep = MLP(width, deep_mlp, batch_norm=batch_norm, dropout=dropout, linear=linear)
        self.logits = WideLinear(crossed + self.deep.out_features, features.logits)

    def forward(self, dense: Tensor, sparse: KeyedJaggedTensor) -> Tensor:
        """Return logits: dense (B, D), sparse with F keys of B bags -> (B, T)."""
        c0 = flatten(dense, self.embeddings(sparse))  # (B, D + F * dim)
        crossed = self.cross(c0)
        if not self.parallel:
            return self.logits(self.deep(crossed))
        return self.logits(torch.cat([crossed, self.deep(c0)], dim=1))
