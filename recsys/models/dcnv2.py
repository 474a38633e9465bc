"""DCN V2: Wang et al., DCN V2: Improved Deep & Cross Network and Practical Lessons for Web-scale Learning to Rank
Systems, 2021, https://arxiv.org/abs/2008.13535.
"""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recsys.base.ranges import Depth, Deviation, Share, Width
from recsys.interface.features import FeatureSpec
from recsys.models.common.crosses import CrossNet, LowRankCrossNet, LowRankMixtureCrossNet, WideLinear
from recsys.models.common.embeddings import PooledEmbeddings
from recsys.models.common.layers import MLP, Linear, flatten, require_sparse


class DCNv2(nn.Module):
    """Cross network, x_{l+1} = x_0 * (W_l x_l + b_l) + x_l, and deep network over dense features and embeddings.

    Args:
        dim: width of the embeddings.
        cross_layers: number of layers of the cross network.
        rank: W_l = U_l V_l^T with matrices of `rank` columns; None for a full W_l. The paper reports that a quarter of
            the width N = D + F * dim is enough.
        experts: above 1, a mixture of this many low-rank crosses x_0 * (U tanh(C tanh(V^T x_l)) + b), weighted by a
            softmax of linear gates of x_l, in the place of each cross (equation 4).
        structure: "stacked" runs the deep network on the cross network's output, "parallel" runs both on x_0.
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
        rank: Width | None = None,
        experts: Depth = 1,
        structure: Literal["stacked", "parallel"] = "stacked",
        deep_mlp: Sequence[Width] = (128, 64),
        batch_norm: bool = False,
        dropout: Share = 0.0,
        init_std: Deviation | None = None,
        device: torch.device | None = None,
    ) -> None:
        super().__init__()
        require_sparse(features, "DCNv2")
        if experts > 1 and rank is None:
            raise ValueError(f"experts={experts}: experts are low-rank crosses; set rank")
        self.structure = structure
        self.embeddings = PooledEmbeddings(features, dim, init_std=init_std, device=device, flat=True)
        width = features.dense_width + self.embeddings.width
        self.cross: nn.Module
        if rank is None:
            self.cross = CrossNet(width, cross_layers)
        elif experts == 1:
            self.cross = LowRankCrossNet(width, cross_layers, rank)
        else:
            self.cross = LowRankMixtureCrossNet(width, cross_layers, experts, rank, activation=torch.tanh)
        linear, crossed = (Linear, width) if structure == "parallel" else (WideLinear, 0)
        self.deep = MLP(width, deep_mlp, batch_norm=batch_norm, dropout=dropout, linear=linear)
        self.logits = WideLinear(crossed + self.deep.out_features, features.logits)

    def forward(self, dense: Tensor, sparse: KeyedJaggedTensor) -> Tensor:
        """Return logits: dense (B, D), sparse with F keys of B bags -> (B, T)."""
        x0 = flatten(dense, self.embeddings(sparse))  # (B, D + F * dim)
        crossed = self.cross(x0)
        if self.structure == "stacked":
            return self.logits(self.deep(crossed))
        return self.logits(torch.cat([crossed, self.deep(x0)], dim=1))
