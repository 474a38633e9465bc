"""The loss over several labels of a row: one loss for each, and their weighted sum."""

from typing import Any, Literal, cast

import torch
import torch.distributed as dist
from pydantic import NonNegativeFloat
from torch import Tensor, nn

from recsys.base.errors import did_you_mean
from recsys.interface.labels import Label, is_one_binary, label_slices
from recsys.losses.groups import GroupLoss, Listwise, Pairwise
from recsys.losses.ranking import MSE, BinaryCrossEntropy, CrossEntropy, FocalLoss, Huber, RankingLoss

LOSSES = {
    "binary_cross_entropy": BinaryCrossEntropy,
    "focal": FocalLoss,
    "mse": MSE,
    "huber": Huber,
    "cross_entropy": CrossEntropy,
    "pairwise": Pairwise,
    "listwise": Listwise,
}
DEFAULTS = {"binary": BinaryCrossEntropy, "regression": MSE, "classes": CrossEntropy}


class Tasks(nn.Module):
    """Losses of several labels by name, and how they are added up.

    Args:
        losses: name of the loss of a label; by default that of its kind.
        weights: weight of a label's loss in the sum; 1 by default.
        balance: `sum` adds the weighted losses. `uncertainty` also learns a scale for each: Kendall, Gal & Cipolla,
            Multi-Task Learning Using Uncertainty to Weigh Losses, 2018, https://arxiv.org/abs/1705.07115: loss x
            exp(-s) + s / 2. `gradnorm` learns weights that keep the gradients of the losses similar in size at the
            input of the model's last layer, and larger for labels that are learned slowly: Chen et al., GradNorm:
            Gradient Normalization for Adaptive Loss Balancing in Deep Multitask Networks, 2018,
            https://arxiv.org/abs/1711.02257.
        alpha: for gradnorm: how much larger. With 0, all gradients have the same size.
    """

    def __init__(
        self,
        *,
        losses: dict[str, str] | None = None,
        weights: dict[str, NonNegativeFloat] | None = None,
        balance: Literal["sum", "uncertainty", "gradnorm"] = "sum",
        alpha: NonNegativeFloat = 1.5,
    ) -> None:
        super().__init__()
        self.alpha = alpha
        self.losses, self.weights, self.balance = losses or {}, weights or {}, balance
        for label, name in self.losses.items():
            if name not in LOSSES:
                raise ValueError(f"losses.{label}={name}: no such loss{did_you_mean(name, LOSSES)}")

    def of_label(self, label: Label) -> Any:
        """Return the loss of a label. Raises ValueError if it compares another kind of label."""
        name = self.losses.get(label.name)
        loss: Any = DEFAULTS[label.kind]() if name is None else LOSSES[name]()
        if label.kind not in loss.kinds:
            kinds = " and ".join(loss.kinds)
            raise ValueError(f"losses.{label.name}={name}: is a loss of {kinds} labels; this one is {label.kind}")
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

    def __init__(self, labels: tuple[Label, ...], loss: Any = None) -> None:
        super().__init__()
        self.labels = labels
        names = [label.name for label in labels]
        tasks = loss if isinstance(loss, Tasks) else Tasks()
        for name in (*tasks.losses, *tasks.weights):
            if name not in names:
                raise ValueError(f"there is no label {name}{did_you_mean(name, names)}")
        if loss is not None and loss is not tasks and not any(label.kind in loss.kinds for label in labels):
            kinds = ", ".join(dict.fromkeys(label.kind for label in labels))
            raise ValueError(f"is a loss of {' and '.join(loss.kinds)} labels; this data has labels of kind {kinds}")
        plain = None if loss is tasks else loss
        self.losses = nn.ModuleList(
            plain if plain is not None and label.kind in plain.kinds else tasks.of_label(label) for label in labels
        )
        self.within_groups = any(part.within_groups for part in cast(list[RankingLoss], list(self.losses)))
        self.defaults = nn.ModuleList(DEFAULTS[label.kind]() for label in labels)
        self.weights = [tasks.weights.get(label.name, 1.0) for label in labels]
        self.scales = nn.Parameter(torch.zeros(len(labels))) if tasks.balance != "sum" else None
        self.balance, self.alpha = tasks.balance, tasks.alpha
        self.register_buffer("first_losses", torch.zeros(len(labels)), persistent=self.balance == "gradnorm")
        self.first_losses: Tensor
        self._last: Tensor | None = None
        self._last_layer: list[nn.Linear] = []  # in a list, so that it is not a part of this module

    def logged(self) -> dict[str, Tensor]:
        """Return the last batch's loss of each of several labels, before weights and shares, and what balances them."""
        if self._last is None or len(self.labels) == 1:
            return {}
        names = [label.name for label in self.labels]
        found = {f"{name}/loss": x for name, x in zip(names, self._last, strict=True)}
        if self.scales is not None:
            own = self.scales.detach()
            shares = torch.exp(-own) if self.balance == "uncertainty" else len(names) * own.softmax(0)
            found |= {f"{name}/share": x for name, x in zip(names, shares, strict=True)}
        return found

    def set_last_layer(self, model: nn.Module) -> None:
        """Set the layer whose output is the logits, for balance=gradnorm. Raises ValueError if the model has none."""
        layer = getattr(model, "logits", None)
        if not isinstance(layer, nn.Linear):
            raise ValueError(f"balance=gradnorm: {type(model).__name__} has no linear layer `logits`; use uncertainty")
        self._last_layer = [layer]

    def forward(
        self, logits: Tensor, labels: Tensor, weight: Tensor | None = None, group: Tensor | None = None
    ) -> Tensor:
        """Return the total loss, ().

        Args:
            logits: (B, L).
            labels: (B, T), NaN where a row has no label.
            weight: (B,), weight of each row.
            group: (B,), for losses within groups.
        """
        values = []
        slices, losses_of = label_slices(self.labels), cast(list[RankingLoss], list(self.losses))
        for i, (label, columns, loss) in enumerate(zip(self.labels, slices, losses_of, strict=True)):
            column = labels[:, i]
            known = ~torch.isnan(column)
            share = known.to(logits.dtype) / label.known
            if weight is not None:
                share = share * weight
            column = torch.where(known, column, torch.zeros_like(column))
            target = label.targets(column)[:, None]
            if loss.within_groups:
                value = cast(GroupLoss, loss)(logits[:, columns], column[:, None], share, group)
                if pointwise := getattr(loss, "pointwise", 0.0):
                    value = pointwise * self.defaults[i](logits[:, columns], target, share) + (1 - pointwise) * value
            else:
                value = loss.forward(logits[:, columns], target, share)
            values.append(value)
        self._last = torch.stack(values).detach()
        losses = torch.stack([weight * value for weight, value in zip(self.weights, values, strict=True)])
        if self.scales is None:
            return losses.sum()
        if self.balance == "uncertainty":
            return (losses * torch.exp(-self.scales) + self.scales / 2).sum()
        shares = len(values) * self.scales.softmax(0)
        total = (losses * shares.detach()).sum()
        if self.training and torch.is_grad_enabled():
            # GradNorm: the sum of the distances of the gradients' norms from those that it wants
            weights = self._last_layer[0].weight.detach()  # (L, width)
            gradients = [torch.autograd.grad(loss, logits, retain_graph=True)[0] for loss in losses]
            norms = torch.stack([(g.detach() @ weights).norm() for g in gradients])
            now = losses.detach()
            if not self.first_losses.any():
                self.first_losses.copy_(now)
                if dist.is_initialized():  # the same on all ranks
                    dist.all_reduce(self.first_losses)
                    self.first_losses /= dist.get_world_size()
            progress = now / torch.where(self.first_losses > 0, self.first_losses, 1)
            rates = progress / progress.mean().clamp(min=torch.finfo(progress.dtype).tiny)
            weighted = shares * norms
            wanted = weighted.mean().detach() * rates.clamp(min=0) ** self.alpha
            balance = (weighted - wanted).abs().sum()
            total = total + balance - balance.detach()  # only a gradient of the shares
        return total


def label_loss(labels: tuple[Label, ...], loss: Any) -> nn.Module:
    """Return the loss over all labels: `loss` itself, or its default, for one binary label.

    Raises:
        ValueError: the loss does not fit the labels.
    """
    one_binary = is_one_binary(labels)
    if one_binary and loss is None:
        return BinaryCrossEntropy()
    if one_binary and loss is not None and not isinstance(loss, (Tasks, GroupLoss)) and "binary" in loss.kinds:
        return loss
    return LabelLosses(labels, loss)
