"""The loss over several labels of a row: one loss for each, and their weighted sum."""

import torch
from torch import Tensor, nn

from recsys.errors import did_you_mean
from recsys.features import Label
from recsys.losses.ranking import MSE, BinaryCrossEntropy, CrossEntropy, FocalLoss, Huber
from recsys.predictions import label_slices, targets

LOSSES = {
    "binary_cross_entropy": BinaryCrossEntropy,
    "focal": FocalLoss,
    "mse": MSE,
    "huber": Huber,
    "cross_entropy": CrossEntropy,
}
DEFAULTS = {"binary": BinaryCrossEntropy, "regression": MSE, "classes": CrossEntropy}
BALANCES = ("sum", "uncertainty")


class Tasks(nn.Module):
    """Losses of several labels by name, and how they are added up.

    Args:
        losses: name of the loss of a label; by default that of its kind.
        weights: weight of a label's loss in the sum; 1 by default.
        balance: `sum` adds the weighted losses. `uncertainty` also learns a scale for each: Kendall, Gal & Cipolla,
            Multi-Task Learning Using Uncertainty to Weigh Losses, 2018, https://arxiv.org/abs/1705.07115: loss x
            exp(-s) + s / 2.
    """

    def __init__(
        self,
        *,
        losses: dict[str, str] | None = None,
        weights: dict[str, float] | None = None,
        balance: str = "sum",
    ) -> None:
        super().__init__()
        self.losses, self.weights, self.balance = losses or {}, weights or {}, balance
        for label, name in self.losses.items():
            if name not in LOSSES:
                raise ValueError(f"losses.{label}={name}: no such loss{did_you_mean(name, LOSSES)}")
        for label, weight in self.weights.items():
            if not 0 <= weight < float("inf"):
                raise ValueError(f"weights.{label}={weight}: must be a number of at least 0")
        if balance not in BALANCES:
            raise ValueError(f"balance={balance}: unknown{did_you_mean(balance, BALANCES)}")

    def of_label(self, label: Label) -> nn.Module:
        """Return the loss of a label. Raises ValueError if it compares another kind of label."""
        name = self.losses.get(label.name)
        loss: nn.Module = DEFAULTS[label.kind]() if name is None else LOSSES[name]()
        if loss.kind != label.kind:
            raise ValueError(f"losses.{label.name}={name}: is a loss of {loss.kind} labels; this one is {label.kind}")
        return loss


class LabelLosses(nn.Module):
    """The weighted sum of the labels' losses.

    Rows that do not have a label (NaN) take no part in its loss, which is the mean over the rows that have it: the sum
    is divided by the expected number of such rows, the label's share in the training split, so that it does not depend
    on how rows are divided into batches and processes.

    Args:
        labels: the labels.
        loss: a RankingLoss for all labels of its kind, or Tasks; None for the default of each kind.

    Raises:
        ValueError: a loss does not fit the labels.
    """

    def __init__(self, labels: tuple[Label, ...], loss: nn.Module | None = None) -> None:
        super().__init__()
        self.labels = labels
        names = [label.name for label in labels]
        tasks = loss if isinstance(loss, Tasks) else Tasks()
        for name in (*tasks.losses, *tasks.weights):
            if name not in names:
                raise ValueError(f"there is no label {name}{did_you_mean(name, names)}")
        if loss is not None and loss is not tasks and loss.kind not in {label.kind for label in labels}:
            kinds = ", ".join(dict.fromkeys(label.kind for label in labels))
            raise ValueError(f"is a loss of {loss.kind} labels; those of this data are of kind {kinds}")
        plain = None if loss is tasks else loss
        self.losses = nn.ModuleList(
            plain if plain is not None and plain.kind == label.kind else tasks.of_label(label) for label in labels
        )
        self.weights = [tasks.weights.get(label.name, 1.0) for label in labels]
        self.scales = nn.Parameter(torch.zeros(len(labels))) if tasks.balance == "uncertainty" else None

    def forward(self, logits: Tensor, labels: Tensor, weight: Tensor | None = None) -> Tensor:
        """Return the total loss, (): logits (B, L), labels (B, T), NaN where a row has no label, weight (B,)."""
        total = logits.new_zeros(())
        slices = label_slices(self.labels)
        for i, (label, columns, loss) in enumerate(zip(self.labels, slices, self.losses, strict=True)):
            own = labels[:, i]
            known = ~torch.isnan(own)
            share = known.to(logits.dtype) / label.known
            if weight is not None:
                share = share * weight
            target = targets(torch.where(known, own, torch.zeros_like(own)), label)
            value = self.weights[i] * loss(logits[:, columns], target[:, None], share)
            if self.scales is not None:
                value = value * torch.exp(-self.scales[i]) + self.scales[i] / 2
            total = total + value
        return total


def label_loss(labels: tuple[Label, ...], loss: nn.Module | None) -> nn.Module:
    """Return the loss over all labels: `loss` itself, or its default, for one binary label.

    Raises:
        ValueError: the loss does not fit the labels.
    """
    one_binary = len(labels) == 1 and labels[0].kind == "binary"
    if one_binary and loss is None:
        return BinaryCrossEntropy()
    if one_binary and loss is not None and not isinstance(loss, Tasks) and loss.kind == "binary":
        return loss
    return LabelLosses(labels, loss)
