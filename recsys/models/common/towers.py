"""Layers of models of several tasks: experts, gates, and a tower for each label."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from recsys.interface.features import FeatureSpec
from recsys.models.common.layers import MLP


class Tower(nn.Module):
    """MLP and a linear layer to the logits of one label: (B, width) -> (B, logits).

    Args:
        width: number of inputs.
        hidden: hidden widths; a linear layer to the logits follows.
        logits: number of logits of the label.
        batch_norm: whether to normalise each hidden layer over the batch.
        dropout: share of hidden units that are dropped in training.
    """

    def __init__(self, width: int, hidden: Sequence[int], logits: int, batch_norm: bool, dropout: float) -> None:
        super().__init__()
        self.mlp = MLP(width, hidden, batch_norm=batch_norm, dropout=dropout)
        self.logits = nn.Linear(self.mlp.out_features, logits)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of one label: (B, width) -> (B, logits)."""
        return self.logits(self.mlp(x))


class Towers(nn.ModuleList):
    """A tower for each label. Each gets an input of its own: T times (B, width) -> (B, logits of all labels).

    Args:
        features: the labels, each of which gets a tower.
        width: number of inputs of each tower.
        hidden: hidden widths of each tower; a linear layer to the label's logits follows.
        batch_norm: whether to normalise each hidden layer over the batch.
        dropout: share of hidden units that are dropped in training.
    """

    def __init__(
        self, features: FeatureSpec, width: int, hidden: Sequence[int], *, batch_norm: bool, dropout: float
    ) -> None:
        super().__init__(Tower(width, hidden, label.width, batch_norm, dropout) for label in features.labels)

    def forward(self, inputs: Sequence[Tensor]) -> Tensor:
        """Return the logits of all labels: an input (B, width) for each label -> (B, logits of all labels)."""
        return torch.cat([tower(x) for tower, x in zip(self, inputs, strict=True)], dim=1)


class Experts(nn.ModuleList):
    """MLPs side by side: (B, width) -> (B, experts, out).

    Args:
        number: number of MLPs.
        width: number of inputs.
        hidden: hidden widths of each MLP; the last is `out`.
        batch_norm: whether to normalise each hidden layer over the batch.
        dropout: share of hidden units that are dropped in training.

    >>> experts = Experts(3, 8, [16, 4], batch_norm=False, dropout=0.0)
    >>> experts(torch.zeros(5, 8)).shape
    torch.Size([5, 3, 4])
    """

    def __init__(self, number: int, width: int, hidden: Sequence[int], *, batch_norm: bool, dropout: float) -> None:
        super().__init__(MLP(width, hidden, batch_norm=batch_norm, dropout=dropout) for _ in range(number))

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs of all experts: (B, width) -> (B, experts, out)."""
        return torch.stack([expert(x) for expert in self], dim=1)


class Gate(nn.Module):
    """Mean of experts, weighted by softmax(W MLP(x)): (B, width), (B, experts, out) -> (B, out).

    hidden: hidden widths of the MLP; softmax(W x) without any

    >>> Gate(8, experts=3)(torch.zeros(5, 8), torch.zeros(5, 3, 4)).shape
    torch.Size([5, 4])
    """

    def __init__(self, width: int, experts: int, hidden: Sequence[int] = ()) -> None:
        super().__init__()
        self.mlp = MLP(width, hidden)
        self.weights = nn.Linear(self.mlp.out_features, experts, bias=False)

    def forward(self, x: Tensor, experts: Tensor) -> Tensor:
        """Return the weighted mean of the experts: x (B, width), experts (B, experts, out) -> (B, out)."""
        return (torch.softmax(self.weights(self.mlp(x)), dim=1)[:, None] @ experts).squeeze(1)


def require_labels(features: FeatureSpec, model: str) -> None:
    """Raise ValueError if there are fewer than two labels."""
    if len(features.labels) < 2:
        raise ValueError(
            f"{model} learns several labels and the data has one; add one to data.labels, or use model=dnn"
        )
