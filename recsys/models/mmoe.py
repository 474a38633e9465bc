"""MMoE: Ma et al., Modeling Task Relationships in Multi-task Learning with Multi-gate Mixture-of-Experts, 2018,
https://doi.org/10.1145/3219819.3220007.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recsys.base.ranges import Depth, Deviation, Share, Width
from recsys.interface.features import FeatureSpec
from recsys.models.common.embeddings import PooledEmbeddings
from recsys.models.common.layers import flatten, require_sparse
from recsys.models.common.towers import Experts, Gate, Towers, require_labels


class MMoE(nn.Module):
    """Experts that all labels share; each label weights them by a gate of its own, and has a tower.

    Args:
        dim: width of the embeddings.
        experts: number of experts.
        expert_mlp: hidden widths of each expert.
        tower_mlp: hidden widths of each tower; a linear layer to the label's logits follows.
        batch_norm: whether to normalise the hidden layers of the experts and towers over the batch.
        dropout: share of the hidden units of the experts and towers that are dropped in training.
        init_std: standard deviation of the initial embeddings; None for a uniform distribution in +-1/sqrt(rows).
    """

    def __init__(
        self,
        features: FeatureSpec,
        *,
        dim: Width = 16,
        experts: Depth = 4,
        expert_mlp: Sequence[Width] = (128,),
        tower_mlp: Sequence[Width] = (64,),
        batch_norm: bool = False,
        dropout: Share = 0.0,
        init_std: Deviation | None = None,
        device: torch.device | None = None,
    ) -> None:
        super().__init__()
        require_sparse(features, "MMoE")
        require_labels(features, "MMoE")
        if not expert_mlp:
            raise ValueError("expert_mlp=[]: needs at least one width; experts without layers are all alike")
        self.embeddings = PooledEmbeddings(features, dim, init_std=init_std, device=device, flat=True)
        width = features.dense_width + self.embeddings.width
        self.experts = Experts(experts, width, expert_mlp, batch_norm=batch_norm, dropout=dropout)
        self.gates = nn.ModuleList(Gate(width, experts) for _ in features.labels)
        self.towers = Towers(features, expert_mlp[-1], tower_mlp, batch_norm=batch_norm, dropout=dropout)

    def forward(self, dense: Tensor, sparse: KeyedJaggedTensor) -> Tensor:
        """Return logits: dense (B, D), sparse with F keys of B bags -> (B, T)."""
        x = flatten(dense, self.embeddings(sparse))
        experts = self.experts(x)
        return self.towers([gate(x, experts) for gate in self.gates])
