"""Shared bottom: Caruana, Multitask Learning, 1997, https://doi.org/10.1023/A:1007379606734."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recsys.base.ranges import Deviation, Share, Width
from recsys.interface.features import FeatureSpec
from recsys.models.common.embeddings import PooledEmbeddings
from recsys.models.common.layers import MLP, flatten, require_sparse
from recsys.models.common.towers import Towers, require_labels


class SharedBottom(nn.Module):
    """One MLP for all labels, then a tower for each.

    Args:
        dim: width of the embeddings.
        bottom_mlp: hidden widths of the shared MLP.
        tower_mlp: hidden widths of each tower; a linear layer to the label's logits follows.
        batch_norm: whether to normalise the hidden layers of the shared MLP and the towers over the batch.
        dropout: share of the hidden units of the shared MLP and the towers that are dropped in training.
        init_std: standard deviation of the initial embeddings; None for a uniform distribution in +-1/sqrt(rows).
    """

    def __init__(
        self,
        features: FeatureSpec,
        *,
        dim: Width = 16,
        bottom_mlp: Sequence[Width] = (128,),
        tower_mlp: Sequence[Width] = (64,),
        batch_norm: bool = False,
        dropout: Share = 0.0,
        init_std: Deviation | None = None,
        device: torch.device | None = None,
    ) -> None:
        super().__init__()
        require_sparse(features, "SharedBottom")
        require_labels(features, "SharedBottom")
        self.embeddings = PooledEmbeddings(features, dim, init_std=init_std, device=device, flat=True)
        self.bottom = MLP(
            features.dense_width + self.embeddings.width, bottom_mlp, batch_norm=batch_norm, dropout=dropout
        )
        self.towers = Towers(features, self.bottom.out_features, tower_mlp, batch_norm=batch_norm, dropout=dropout)

    def forward(self, dense: Tensor, sparse: KeyedJaggedTensor) -> Tensor:
        """Return logits: dense (B, D), sparse with F keys of B bags -> (B, T)."""
        x = self.bottom(flatten(dense, self.embeddings(sparse)))
        return self.towers([x] * len(self.towers))
