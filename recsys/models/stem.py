"""STEM: Su et al., STEM: Unleashing the Power of Embeddings for Multi-task Recommendation, 2024,
https://arxiv.org/abs/2308.13537.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recsys.base.ranges import Depth, Deviation, Share, Width
from recsys.interface.features import FeatureSpec
from recsys.models.common.embeddings import PooledEmbeddings
from recsys.models.common.layers import flat_width, flatten, require_sparse
from recsys.models.common.towers import Experts, Gate, Towers, require_labels


class STEM(nn.Module):
    """Embeddings and experts of each label's own, and shared ones; each label weights all experts by a gate.

    A label's loss trains its own embeddings and experts and the shared ones. The experts of the other labels enter its
    tower without a gradient (the paper's all-forward task-specific-backward gating). The memory of the tables is that
    of T + 1 models with one label.

    Args:
        dim: width of each embedding, shared or of a label's own.
        task_experts, shared_experts: experts of each label, and shared ones.
        expert_mlp: hidden widths of each expert.
        gate_mlp: hidden widths of each gate, whose input is the sum of the label's own and the shared embeddings.
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
        task_experts: Depth = 1,
        shared_experts: Depth = 1,
        expert_mlp: Sequence[Width] = (128,),
        gate_mlp: Sequence[Width] = (64,),
        tower_mlp: Sequence[Width] = (64,),
        batch_norm: bool = False,
        dropout: Share = 0.0,
        init_std: Deviation | None = None,
        device: torch.device | None = None,
    ) -> None:
        super().__init__()
        require_sparse(features, "STEM")
        require_labels(features, "STEM")
        if not expert_mlp:
            raise ValueError("expert_mlp=[]: needs at least one width; experts without layers are all alike")
        tasks, width = len(features.labels), flat_width(features, dim)
        self.embeddings = PooledEmbeddings(features, dim, init_std=init_std, device=device)
        self.task_embeddings = nn.ModuleList(
            PooledEmbeddings(features, dim, prefix=f"task{t}_", init_std=init_std, device=device) for t in range(tasks)
        )
        self.experts = Experts(shared_experts, width, expert_mlp, batch_norm=batch_norm, dropout=dropout)
        self.task_experts = nn.ModuleList(
            Experts(task_experts, width, expert_mlp, batch_norm=batch_norm, dropout=dropout) for _ in range(tasks)
        )
        total = tasks * task_experts + shared_experts
        self.gates = nn.ModuleList(Gate(width, total, gate_mlp) for _ in range(tasks))
        self.towers = Towers(features, expert_mlp[-1], tower_mlp, batch_norm=batch_norm, dropout=dropout)

    def forward(self, dense: Tensor, sparse: KeyedJaggedTensor) -> Tensor:
        """Return logits: dense (B, D), sparse with F keys of B bags -> (B, T)."""
        shared = self.embeddings(sparse)  # (B, F, dim)
        own = [embeddings(sparse) for embeddings in self.task_embeddings]
        shared_experts = self.experts(flatten(dense, shared))  # (B, experts, out)
        experts = [e(flatten(dense, vectors)) for e, vectors in zip(self.task_experts, own, strict=True)]
        states = []
        for task, gate in enumerate(self.gates):
            seen = [x if other == task else x.detach() for other, x in enumerate(experts)]
            states.append(gate(flatten(dense, own[task] + shared), torch.cat([*seen, shared_experts], dim=1)))
        return self.towers(states)
