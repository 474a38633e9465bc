"""FwFM: Pan et al., Field-weighted Factorization Machines for Click-Through Rate Prediction in Display Advertising,
2018, https://arxiv.org/abs/1806.03514.
"""

import torch
from torch import Tensor, nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recsys.base.ranges import Deviation, Width
from recsys.interface.features import FeatureSpec
from recsys.models.common.embeddings import PooledEmbeddings
from recsys.models.common.layers import FirstOrder, all_fields, numeric_fields, require_sparse
from recsys.models.dlrm import DotInteraction


class FwFM(nn.Module):
    """Linear part, and the dot products of all pairs of fields, each times a weight of its pair, with a bias.

    A dense feature is a field whose vector is multiplied by its value. With several labels, each has weights of its
    own.

    Args:
        dim: width of the embeddings.
        init_std: standard deviation of the initial embeddings; None for a uniform distribution in +-1/sqrt(rows).
    """

    def __init__(
        self,
        features: FeatureSpec,
        *,
        dim: Width = 16,
        init_std: Deviation | None = 0.01,
        device: torch.device | None = None,
    ) -> None:
        super().__init__()
        require_sparse(features, "FwFM")
        self.embeddings = PooledEmbeddings(features, dim, init_std=init_std, device=device)
        self.numeric = numeric_fields(features, dim)
        self.wide = PooledEmbeddings(features, 4 * features.logits, prefix="wide_", device=device, init_std=0.0)
        self.first_order = FirstOrder(features, features.logits)
        self.dot = DotInteraction(len(features.sparse) + len(features.dense))
        self.pairs = nn.Linear(self.dot.out_features, features.logits)  # the weights r_ij

    def forward(self, dense: Tensor, sparse: KeyedJaggedTensor) -> Tensor:
        """Return logits: dense (B, D), sparse with F keys of B bags -> (B, T)."""
        fields = all_fields(self.embeddings(sparse), self.numeric, dense)
        return self.first_order(dense, self.wide(sparse)) + self.pairs(self.dot(fields))
