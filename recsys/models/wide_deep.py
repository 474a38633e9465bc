"""Wide & Deep: Cheng et al., Wide & Deep Learning for Recommender Systems, 2016, https://arxiv.org/abs/1606.07792."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recsys.base.ranges import Deviation, Share, Width
from recsys.interface.features import FeatureSpec
from recsys.models.common.embeddings import PooledEmbeddings
from recsys.models.common.layers import MLP, FirstOrder, flat_width, flatten, require_sparse


class WideDeep(nn.Module):
    """Linear model and deep network over dense features and embeddings; their logits are summed.

    The paper's hand-made cross-product features are ordinary columns here: add them to the data. With several labels,
    the deep network has a logit for each; the logit of the linear model is shared.

    Args:
        dim: width of the embeddings.
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
        deep_mlp: Sequence[Width] = (128, 64),
        batch_norm: bool = False,
        dropout: Share = 0.0,
        init_std: Deviation | None = None,
        device: torch.device | None = None,
    ) -> None:
        super().__init__()
        require_sparse(features, "WideDeep")
        self.embeddings = PooledEmbeddings(features, dim, init_std=init_std, device=device)
        self.wide = PooledEmbeddings(features, 4, prefix="wide_", device=device, init_std=0.0)
        self.first_order = FirstOrder(features)
        self.deep = MLP(flat_width(features, dim), deep_mlp, batch_norm=batch_norm, dropout=dropout)
        self.logits = nn.Linear(self.deep.out_features, features.logits)

    def forward(self, dense: Tensor, sparse: KeyedJaggedTensor) -> Tensor:
        """Return logits: dense (B, D), sparse with F keys of B bags -> (B, T)."""
        vectors = self.embeddings(sparse)  # (B, F, dim)
        deep = self.logits(self.deep(flatten(dense, vectors)))  # (B, T)
        return deep + self.first_order(dense, self.wide(sparse))
