"""Logistic regression over ids and numbers: the floor of every comparison."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recsys.base.errors import did_you_mean
from recsys.interface.features import FeatureSpec
from recsys.models.common.embeddings import PooledEmbeddings
from recsys.models.common.layers import FirstOrder, require_sparse


class LogisticRegression(nn.Module):
    """One weight for each id and each dense feature, and a bias, for each of the T logits.

    Args:
        only: the sparse features to read, and no others; None for all features. With the item alone, the model predicts
            how popular an item is.
    """

    def __init__(
        self, features: FeatureSpec, *, only: Sequence[str] | None = None, device: torch.device | None = None
    ) -> None:
        super().__init__()
        require_sparse(features, "LogisticRegression")
        if only is not None:
            names = [f.name for f in features.sparse]
            if wrong := [n for n in only if n not in names]:
                raise ValueError(f"only: no sparse feature is named {wrong[0]}{did_you_mean(wrong[0], names)}")
            if not only:
                raise ValueError("only=[]: names no feature; leave it out to read all")
            features = replace(
                features, dense=(), sparse=tuple(f for f in features.sparse if f.name in only), item=None
            )
        self.wide = PooledEmbeddings(features, 4 * features.logits, prefix="wide_", device=device, init_std=0.0)
        self.first_order = FirstOrder(features, features.logits)
        self.bias = nn.Parameter(torch.zeros(features.logits))

    def forward(self, dense: Tensor, sparse: KeyedJaggedTensor) -> Tensor:
        """Return logits: dense (B, D), sparse with F keys of B bags -> (B, T)."""
        return self.first_order(dense, self.wide(sparse)) + self.bias
