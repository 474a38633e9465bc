"""Logistic regression over ids and numbers: the floor of every comparison."""

import torch
from torch import Tensor, nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recsys.features import FeatureSpec
from recsys.models.common.embeddings import PooledEmbeddings
from recsys.models.common.layers import FirstOrder, require_sparse


class LogisticRegression(nn.Module):
    """One weight for each id and each dense feature, and a bias, for each of the T logits."""

    def __init__(self, features: FeatureSpec, *, device: torch.device | None = None) -> None:
        super().__init__()
        require_sparse(features, "LogisticRegression")
        self.wide = PooledEmbeddings(features, 4 * features.logits, prefix="wide_", device=device, init_std=0.0)
        self.first_order = FirstOrder(features, features.logits)
        self.bias = nn.Parameter(torch.zeros(features.logits))

    def forward(self, dense: Tensor, sparse: KeyedJaggedTensor) -> Tensor:
        """Return logits: dense (B, D), sparse with F keys of B bags -> (B, T)."""
        return self.first_order(dense, self.wide(sparse)) + self.bias
