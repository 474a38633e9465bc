"""Losses of ranking models: logits against labels, row by row."""

from typing import ClassVar, Protocol

import torch
from pydantic import NonNegativeFloat, PositiveFloat
from torch import Tensor, nn

from recsys.base.ranges import Fraction, Share


class RankingLoss(Protocol):
    """Protocol of losses over logits and labels. A loss that a config names must subclass it and nn.Module.

    kinds: kinds of the labels that it compares with logits: binary, regression or classes
    within_groups: whether it compares the rows of a group; `forward` then takes group (B,) as its last argument
    """

    kinds: ClassVar[tuple[str, ...]] = ("binary",)
    within_groups: ClassVar[bool] = False

    def forward(self, logits: Tensor, labels: Tensor, weight: Tensor | None = None) -> Tensor:
        """Return the mean over rows and labels of weight x loss, ().

        Args:
            logits: (B, T); classes: (B, C).
            labels: (B, T), binary: from 0 to 1; regression: in the units of the logits; classes: (B, 1), an index.
            weight: (B,), weight of each row; None if all rows have weight 1. Weights have the mean 1 over training
                rows. The sum is divided by the number of rows, whatever the weights of a batch, so that each row has
                the same share in the gradient in every batch and on any number of processes.
        """
        ...


def _weighted_mean(losses: Tensor, weight: Tensor | None) -> Tensor:
    """Return the mean over rows and labels of (B, T) losses times the rows' weights (B,)."""
    return losses.mean() if weight is None else (losses * weight[:, None]).mean()


class BinaryCrossEntropy(nn.Module, RankingLoss):
    """Binary cross-entropy, -ln P(label), the default of ranking models.

    Args:
        label_smoothing: labels 0 and 1 become s / 2 and 1 - s / 2 (Szegedy et al. 2016,
            https://arxiv.org/abs/1512.00567).
        positive_weight: weight of positives; negatives have the weight 1. Above 1, the predictions are too high for
            calibrated probabilities.

    >>> loss = BinaryCrossEntropy()
    >>> loss(torch.tensor([[0.0], [2.0]]), torch.tensor([[1.0], [1.0]]))
    tensor(0.4100)
    """

    def __init__(self, *, label_smoothing: Share = 0.0, positive_weight: PositiveFloat = 1.0) -> None:
        super().__init__()
        self.label_smoothing, self.positive_weight = label_smoothing, positive_weight

    def forward(self, logits: Tensor, labels: Tensor, weight: Tensor | None = None) -> Tensor:
        """Return the mean loss, (): logits (B, T), labels (B, T) from 0 to 1, weight (B,)."""
        if self.label_smoothing:
            labels = labels * (1 - self.label_smoothing) + self.label_smoothing / 2
        if weight is None and self.positive_weight == 1:
            return nn.functional.binary_cross_entropy_with_logits(logits, labels)
        scale = None if self.positive_weight == 1 else logits.new_tensor(self.positive_weight)
        losses = nn.functional.binary_cross_entropy_with_logits(logits, labels, pos_weight=scale, reduction="none")
        return _weighted_mean(losses, weight)


class FocalLoss(nn.Module, RankingLoss):
    """Focal loss: Lin et al., Focal Loss for Dense Object Detection, 2017, https://arxiv.org/abs/1708.02002.

    Cross-entropy times (1 - P(label))^gamma, so that rows that are predicted well count less. With gamma > 0, the
    predictions are not calibrated probabilities.

    Args:
        gamma: exponent; 0 gives binary cross-entropy.
        alpha: weight of positives; negatives have the weight 1 - alpha. None weights both equally.

    >>> FocalLoss(gamma=2.0)(torch.tensor([[0.0], [2.0]]), torch.tensor([[1.0], [1.0]]))
    tensor(0.0875)
    """

    def __init__(self, *, gamma: NonNegativeFloat = 2.0, alpha: Fraction | None = None) -> None:
        super().__init__()
        self.gamma, self.alpha = gamma, alpha

    def forward(self, logits: Tensor, labels: Tensor, weight: Tensor | None = None) -> Tensor:
        """Return the mean loss, (): logits (B, T), labels (B, T) from 0 to 1, weight (B,)."""
        losses = nn.functional.binary_cross_entropy_with_logits(logits, labels, reduction="none")
        probability = torch.sigmoid(logits)
        off = probability + labels - 2 * probability * labels  # 1 - P(label)
        losses = losses * off**self.gamma
        if self.alpha is not None:
            losses = losses * (labels * self.alpha + (1 - labels) * (1 - self.alpha))
        return _weighted_mean(losses, weight)


class MSE(nn.Module, RankingLoss):
    """Squared error, the default of regression labels.

    >>> MSE()(torch.tensor([[1.0], [3.0]]), torch.tensor([[1.0], [1.0]]), weight=torch.tensor([1.0, 0.5]))
    tensor(1.)
    """

    kinds = ("regression",)

    def forward(self, logits: Tensor, labels: Tensor, weight: Tensor | None = None) -> Tensor:
        """Return the mean loss, (): logits (B, T), labels (B, T) in the units of the logits, weight (B,)."""
        return _weighted_mean((logits - labels) ** 2, weight)


class Huber(nn.Module, RankingLoss):
    """Huber loss (Huber 1964): squared error / 2 up to `delta`, linear beyond, so that outliers count less.

    Args:
        delta: in standard deviations of the label.

    >>> Huber(delta=1.0)(torch.tensor([[0.5], [9.0]]), torch.tensor([[0.0], [0.0]]))
    tensor(4.3125)
    """

    kinds = ("regression",)

    def __init__(self, *, delta: PositiveFloat = 1.0) -> None:
        super().__init__()
        self.delta = delta

    def forward(self, logits: Tensor, labels: Tensor, weight: Tensor | None = None) -> Tensor:
        """Return the mean loss, (): logits (B, T), labels (B, T) in the units of the logits, weight (B,)."""
        return _weighted_mean(nn.functional.huber_loss(logits, labels, reduction="none", delta=self.delta), weight)


class CrossEntropy(nn.Module, RankingLoss):
    """Cross-entropy over classes, -ln P(label), the default of labels of kind classes.

    Args:
        label_smoothing: share of the target that is spread over all classes.

    >>> CrossEntropy()(torch.tensor([[2.0, 0.0, 0.0]]), torch.tensor([[0.0]]))
    tensor(0.2395)
    """

    kinds = ("classes",)

    def __init__(self, *, label_smoothing: Share = 0.0) -> None:
        super().__init__()
        self.label_smoothing = label_smoothing

    def forward(self, logits: Tensor, labels: Tensor, weight: Tensor | None = None) -> Tensor:
        """Return the mean loss, (): logits (B, C), labels (B, 1) with the index of each class, weight (B,)."""
        losses = nn.functional.cross_entropy(
            logits, labels[:, 0].long(), reduction="none", label_smoothing=self.label_smoothing
        )
        return _weighted_mean(losses[:, None], weight)
