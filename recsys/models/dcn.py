"""DCN: Wang et al., Deep & Cross Network for Ad Click Predictions, 2017, https://arxiv.org/abs/1708.05123."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recsys.base.ranges import Depth, Deviation, Share, Width
from recsys.interface.features import FeatureSpec
from recsys.models.common.crosses import WideLinear, WideRange
from recsys.models.common.embeddings import PooledEmbeddings
from recsys.models.common.layers import MLP, flatten, require_sparse


class VectorCross(WideRange):
    """Cross network with vector weights: x_{l+1} = x_0 (w_l . x_l) + b_l + x_l.

    torchrec's VectorCrossNet computes the same with matrix products over (B, N, 1) and takes 3 times as long: 69 ms
    against 21 ms for forward and backward on 2 CPU cores with B 8192, N 429 and 3 layers.
    """

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.weights = nn.ModuleList(nn.Linear(width, 1, bias=False) for _ in range(layers))
        self.biases = nn.ParameterList(nn.Parameter(torch.zeros(width)) for _ in range(layers))
        for parameter in self.weights.parameters():
            nn.init.xavier_normal_(parameter)

    def compute(self, x0: Tensor) -> Tensor:
        """Cross the input with itself: (B, N) -> (B, N)."""
        x = x0
        for weight, bias in zip(self.weights, self.biases, strict=True):
            x = torch.addcmul(x + bias, x0, weight(x))
        return x


class DCN(nn.Module):
    """Cross network and deep network in parallel over dense features and embeddings, followed by a linear layer.

    Args:
        dim: width of the embeddings.
        cross_layers: number of layers of the cross network.
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
        deep_mlp: Sequence[Width] = (128, 64),
        batch_norm: bool = False,
        dropout: Share = 0.0,
        init_std: Deviation | None = None,
        device: torch.device | None = None,
    ) -> None:
        super().__init__()
        require_sparse(features, "DCN")
        self.embeddings = PooledEmbeddings(features, dim, init_std=init_std, device=device, flat=True)
        width = features.dense_width + self.embeddings.width
        self.cross = VectorCross(width, cross_layers)
        self.deep = MLP(width, deep_mlp, batch_norm=batch_norm, dropout=dropout)
        self.logits = WideLinear(width + self.deep.out_features, features.logits)

    def forward(self, dense: Tensor, sparse: KeyedJaggedTensor) -> Tensor:
        """Return logits: dense (B, D), sparse with F keys of B bags -> (B, T)."""
        x0 = flatten(dense, self.embeddings(sparse))  # (B, D + F * dim)
        return self.logits(torch.cat([self.cross(x0), self.deep(x0)], dim=1))
