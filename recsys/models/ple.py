"""PLE: Tang et al., Progressive Layered Extraction (PLE): A Novel Multi-Task Learning (MTL) Model for Personalized
Recommendations, 2020, https://doi.org/10.1145/3383313.3412236.
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


class Extraction(nn.Module):
    """Experts of each task and shared ones (CGC). A task's gate sees its own and the shared experts.

    T + 1 inputs (B, width), the shared one last -> as many outputs (B, out); in the last layer, T. The shared gate sees
    all experts.
    """

    def __init__(
        self, tasks: int, width: int, own: int, shared: int, hidden: Sequence[int], last: bool, **options: float
    ) -> None:
        super().__init__()
        numbers = [own] * tasks + [shared]
        self.experts = nn.ModuleList(
            Experts(n, width, hidden, batch_norm=bool(options["batch_norm"]), dropout=options["dropout"])
            for n in numbers
        )
        self.gates = nn.ModuleList(Gate(width, own + shared) for _ in range(tasks))
        self.shared_gate = None if last else Gate(width, sum(numbers))

    def forward(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Return the outputs (B, out) of the gates, the shared one last, from T + 1 inputs (B, width)."""
        experts = [e(x) for e, x in zip(self.experts, inputs, strict=True)]
        outputs = [
            gate(x, torch.cat([own, experts[-1]], dim=1))
            for gate, x, own in zip(self.gates, inputs[:-1], experts[:-1], strict=True)
        ]
        if self.shared_gate is not None:
            outputs.append(self.shared_gate(inputs[-1], torch.cat(experts, dim=1)))
        return outputs


class PLE(nn.Module):
    """Layers that separate what tasks share from what is their own, then a tower for each label.

    Args:
        dim: width of the embeddings.
        layers: number of extraction layers; 1 is the paper's CGC.
        task_experts, shared_experts: experts of each label, and shared ones, in each layer.
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
        layers: Depth = 2,
        task_experts: Depth = 2,
        shared_experts: Depth = 2,
        expert_mlp: Sequence[Width] = (128,),
        tower_mlp: Sequence[Width] = (64,),
        batch_norm: bool = False,
        dropout: Share = 0.0,
        init_std: Deviation | None = None,
        device: torch.device | None = None,
    ) -> None:
        super().__init__()
        require_sparse(features, "PLE")
        require_labels(features, "PLE")
        if not expert_mlp:
            raise ValueError("expert_mlp=[]: needs at least one width; experts without layers are all alike")
        self.embeddings = PooledEmbeddings(features, dim, init_std=init_std, device=device, flat=True)
        tasks, width = len(features.labels), features.dense_width + self.embeddings.width
        widths = [width] + [expert_mlp[-1]] * (layers - 1)
        more = {"batch_norm": batch_norm, "dropout": dropout}
        self.layers = nn.ModuleList(
            Extraction(tasks, width, task_experts, shared_experts, expert_mlp, i == layers - 1, **more)
            for i, width in enumerate(widths)
        )
        self.towers = Towers(features, expert_mlp[-1], tower_mlp, batch_norm=batch_norm, dropout=dropout)

    def forward(self, dense: Tensor, sparse: KeyedJaggedTensor) -> Tensor:
        """Return logits: dense (B, D), sparse with F keys of B bags -> (B, T)."""
        x = [flatten(dense, self.embeddings(sparse))] * (len(self.towers) + 1)
        for layer in self.layers:
            x = layer(x)
        return self.towers(x)
