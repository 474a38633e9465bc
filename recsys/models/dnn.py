"""A deep network over embeddings and numbers, without any explicit interaction: the plainest deep model."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recsys.base.ranges import Deviation, Share, Width
from recsys.interface.features import FeatureSpec
from recsys.models.common.embeddings import PooledEmbeddings
from recsys.models.common.layers import MLP, flatten, require_sparse


class DNN(nn.Module):
    """MLP over dense features and embeddings.

    Args:
        dim: width of the embeddings.
        deep_mlp: hidden widths; a linear layer to the T logits follows.
        batch_norm: whether to normalise the hidden layers of the MLP over the batch.
        dropout: share of the hidden units of the MLP that are dropped in training.
        init_std: standard deviation of the initial embeddings; None for a uniform distribution in +-1/sqrt(rows).
    """

    def __init__(
        self,
        features: FeatureSpec,
        *,
        dim: Width = 16,
        deep_mlp: Sequence[Width] = (128, 64),
        batch_norm: bool = False,
        dropout: Share = 0.0,
        init_std: Deviation | None = None,
        device: torch.device | None = None,
    ) -> None:
        super().__init__()
        require_sparse(features, "DNN")
        self.embeddings = PooledEmbeddings(features, dim, init_std=init_std, device=device, flat=True)
        self.deep = MLP(features.dense_width + self.embeddings.width, deep_mlp, batch_norm=batch_norm, dropout=dropout)
        self.logits = nn.Linear(self.deep.out_features, features.logits)

    def forward(self, dense: Tensor, sparse: KeyedJaggedTensor) -> Tensor:
        """Return logits: dense (B, D), sparse with F keys of B bags -> (B, T)."""
        return self.logits(self.deep(flatten(dense, self.embeddings(sparse))))
