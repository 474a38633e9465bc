"""DCN V2: Wang et al., Improved Deep & Cross Network, 2021, https://arxiv.org/abs/2008.13535."""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torchrec.modules.crossnet import CrossNet, LowRankCrossNet
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recsys.features import FeatureSpec
from recsys.models.common.embeddings import PooledEmbeddings
from recsys.models.common.layers import MLP, flat_width, flatten, require_sparse


class DCNv2(nn.Module):
    """A cross network x_{l+1} = x_0 * (W_l x_l + b_l) + x_l and a deep network over (dense, embeddings).

    rank: W_l = U_l V_l^T with matrices of `rank` columns; none for a full W_l. The paper finds N / 4 of the
        width N = D + F * dim enough.
    structure: "stacked" runs the deep network on the cross network's output, "parallel" both on x_0.
    deep_mlp: hidden widths of the deep network.

    dense (B, D), sparse of F keys -> logits (B, T)
    """

    def __init__(
        self,
        features: FeatureSpec,
        *,
        dim: int = 16,
        cross_layers: int = 3,
        rank: int | None = None,
        structure: Literal["stacked", "parallel"] = "stacked",
        deep_mlp: Sequence[int] = (128, 64),
        batch_norm: bool = False,
        dropout: float = 0.0,
        init_std: float | None = None,
        device: torch.device | None = None,
    ) -> None:
        super().__init__()
        require_sparse(features, "DCNv2")
        if structure not in ("stacked", "parallel"):
            raise ValueError(f"structure {structure!r} is neither 'stacked' nor 'parallel'")
        if rank is not None and rank < 1:
            raise ValueError(f"rank {rank} is not positive; leave it out (null) for full-rank crosses")
        self.structure = structure
        self.embeddings = PooledEmbeddings(features, dim, init_std=init_std, device=device)
        width = flat_width(features, dim)
        self.cross: nn.Module = (
            CrossNet(width, cross_layers) if rank is None else LowRankCrossNet(width, cross_layers, rank)
        )
        self.deep = MLP(width, deep_mlp, batch_norm=batch_norm, dropout=dropout)
        crossed = width if structure == "parallel" else 0
        self.logits = nn.Linear(crossed + self.deep.out_features, len(features.labels))

    def forward(self, dense: Tensor, sparse: KeyedJaggedTensor) -> Tensor:
        x0 = flatten(dense, self.embeddings(sparse))  # (B, D + F * dim)
        crossed = self.cross(x0)
        if self.structure == "stacked":
            return self.logits(self.deep(crossed))
        return self.logits(torch.cat([crossed, self.deep(x0)], dim=1))
