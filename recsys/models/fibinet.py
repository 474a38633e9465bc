"""FiBiNET: Huang et al., FiBiNET: Combining Feature Importance and Bilinear Feature Interaction for Click-Through Rate
Prediction, 2019, https://arxiv.org/abs/1905.09433.
"""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recsys.base.ranges import Depth, Deviation, Share, Width
from recsys.interface.features import FeatureSpec
from recsys.models.common.embeddings import PooledEmbeddings
from recsys.models.common.layers import MLP, FirstOrder, require_sparse

Bilinear = Literal["all", "each", "interaction"]


class SENET(nn.Module):
    """Weights of the fields from their means: (B, F, dim) -> (B, F, dim), each vector times its field's weight."""

    def __init__(self, fields: int, reduction: int) -> None:
        super().__init__()
        narrow = max(1, fields // reduction)
        self.squeeze, self.excite = nn.Linear(fields, narrow, bias=False), nn.Linear(narrow, fields, bias=False)

    def forward(self, vectors: Tensor) -> Tensor:
        """Multiply each vector by the weight of its field: (B, F, dim) -> (B, F, dim)."""
        weights = torch.relu(self.excite(torch.relu(self.squeeze(vectors.mean(dim=2)))))
        return vectors * weights[:, :, None]


class BilinearPairs(nn.Module):
    """v_i W * v_j for all pairs i < j: (B, F, dim) -> (B, P, dim). W is one for all, for each i, or for each pair."""

    first: Tensor
    second: Tensor

    def __init__(self, fields: int, dim: int, kind: Bilinear) -> None:
        super().__init__()
        first, second = torch.triu_indices(fields, fields, offset=1)  # i < j
        self.register_buffer("first", first, persistent=False)
        self.register_buffer("second", second, persistent=False)
        self.kind = kind
        number = {"all": 1, "each": fields - 1, "interaction": len(first)}[kind]
        self.weight = nn.Parameter(torch.empty(number, dim, dim))
        nn.init.xavier_normal_(self.weight)

    def forward(self, vectors: Tensor) -> Tensor:
        """Return the products of all P pairs of vectors: (B, F, dim) -> (B, P, dim)."""
        if self.kind == "interaction":
            left = torch.einsum("bpd,pde->bpe", vectors[:, self.first], self.weight)
        elif self.kind == "each":
            left = torch.einsum("bfd,fde->bfe", vectors[:, :-1], self.weight)[:, self.first]
        else:
            left = (vectors @ self.weight[0])[:, self.first]
        return left * vectors[:, self.second]


class FiBiNET(nn.Module):
    """Bilinear interactions of the embeddings and of the embeddings weighted by SENET, then a deep network.

    Dense features enter the linear part and the deep network.

    Args:
        dim: width of the embeddings.
        bilinear: "all", "each" or "interaction": one matrix for all pairs, for each first field, or for each pair.
        reduction: SENET's hidden layer has F / reduction units.
        deep_mlp: hidden widths; a linear layer to the T logits follows.
        batch_norm: whether to normalise the hidden layers of the deep network over the batch.
        dropout: share of the hidden units of the deep network that are dropped in training.
        init_std: standard deviation of the initial embeddings; None for a uniform distribution in +-1/sqrt(rows).
    """

    def __init__(
        self,
        features: FeatureSpec,
        *,
        dim: Width = 16,
        bilinear: Bilinear = "all",
        reduction: Depth = 3,
        deep_mlp: Sequence[Width] = (128, 64),
        batch_norm: bool = False,
        dropout: Share = 0.0,
        init_std: Deviation | None = None,
        device: torch.device | None = None,
    ) -> None:
        super().__init__()
        require_sparse(features, "FiBiNET")
        fields = len(features.sparse)
        if fields < 2:
            raise ValueError("FiBiNET needs two sparse features or more; add one to data.sparse, or use model=dnn")
        self.embeddings = PooledEmbeddings(features, dim, init_std=init_std, device=device)
        self.wide = PooledEmbeddings(features, 4 * features.logits, prefix="wide_", device=device, init_std=0.0)
        self.first_order = FirstOrder(features, features.logits)
        self.senet = SENET(fields, reduction)
        self.pairs, self.weighted_pairs = (BilinearPairs(fields, dim, bilinear) for _ in range(2))
        width = fields * (fields - 1) * dim + features.dense_width
        self.deep = MLP(width, deep_mlp, batch_norm=batch_norm, dropout=dropout)
        self.logits = nn.Linear(self.deep.out_features, features.logits)

    def forward(self, dense: Tensor, sparse: KeyedJaggedTensor) -> Tensor:
        """Return logits: dense (B, D), sparse with F keys of B bags -> (B, T)."""
        vectors = self.embeddings(sparse)  # (B, F, dim)
        crossed = [self.pairs(vectors), self.weighted_pairs(self.senet(vectors))]
        x = torch.cat([dense, *(c.flatten(1) for c in crossed)], dim=1)
        return self.first_order(dense, self.wide(sparse)) + self.logits(self.deep(x))
