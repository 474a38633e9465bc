"""DCNv3: Li et al., DCNv3: Towards Next Generation Deep Cross Network for Click-Through Rate Prediction, 2024,
https://arxiv.org/abs/2407.13349.
"""

import torch
from torch import Tensor, nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recsys.base.ranges import Depth, Deviation, Share, Width
from recsys.interface.features import FeatureSpec
from recsys.models.common.crosses import WideLinear, WideRange
from recsys.models.common.embeddings import PooledEmbeddings
from recsys.models.common.layers import Dropout, flatten, require_sparse


class MaskedCross(WideRange):
    """Layers x <- y * [c, mask(c)] + x with c = W x + b of half the width and mask(c) = c * relu(LN(c)).

    y is the input of the network, so that the order of interactions grows by one a layer (linear), or x itself, so that
    it doubles (exponential): (B, width) -> (B, width).
    """

    def __init__(self, width: int, layers: int, dropout: float, *, exponential: bool) -> None:
        super().__init__()
        half = width - width // 2
        self.width, self.exponential = width, exponential
        self.halves = nn.ModuleList(nn.Linear(width, half, bias=False) for _ in range(layers))
        self.biases = nn.ParameterList(torch.zeros(width) for _ in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(half) for _ in range(layers))
        self.dropout = Dropout(dropout)

    def compute(self, x0: Tensor) -> Tensor:
        """Cross the input with itself: (B, width) -> (B, width)."""
        x = x0
        for linear, bias, norm in zip(self.halves, self.biases, self.norms, strict=True):
            half = linear(x)
            crossed = torch.cat([half, half * torch.relu(norm(half))], dim=1)[:, : self.width]
            x = self.dropout((x if self.exponential else x0) * (crossed + bias) + x)
        return x


class DCNv3(nn.Module):
    """A linear and an exponential cross network without a deep network; the logit is the mean of theirs.

    The paper's Tri-BCE loss also trains each network's own prediction; this model has one loss, that of the mean.

    Args:
        dim: width of the embeddings.
        linear_layers: layers of the linear cross network.
        exponential_layers: layers of the exponential cross network, whose last layer has interactions of order
            2 ** exponential_layers.
        dropout: share of the outputs of each cross layer that are dropped in training.
        init_std: standard deviation of the initial embeddings; None for a uniform distribution in +-1/sqrt(rows).
    """

    def __init__(
        self,
        features: FeatureSpec,
        *,
        dim: Width = 16,
        linear_layers: Depth = 3,
        exponential_layers: Depth = 3,
        dropout: Share = 0.0,
        init_std: Deviation | None = None,
        device: torch.device | None = None,
    ) -> None:
        super().__init__()
        require_sparse(features, "DCNv3")
        self.embeddings = PooledEmbeddings(features, dim, init_std=init_std, device=device, flat=True)
        width = features.dense_width + self.embeddings.width
        self.linear = MaskedCross(width, linear_layers, dropout, exponential=False)
        self.exponential = MaskedCross(width, exponential_layers, dropout, exponential=True)
        self.linear_logits, self.exponential_logits = (WideLinear(width, features.logits) for _ in range(2))

    def forward(self, dense: Tensor, sparse: KeyedJaggedTensor) -> Tensor:
        """Return logits: dense (B, D), sparse with F keys of B bags -> (B, T)."""
        x = flatten(dense, self.embeddings(sparse))  # (B, D + F * dim)
        return 0.5 * (self.linear_logits(self.linear(x)) + self.exponential_logits(self.exponential(x)))
