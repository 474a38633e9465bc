"""Losses of ranking models: logits against labels, row by row."""

from typing import Protocol

import torch
from torch import Tensor, nn


class RankingLoss(Protocol):
    """Protocol of losses over logits and labels. A loss that a config names must subclass it and nn.Module."""

    def forward(self, logits: Tensor, labels: Tensor, weight: Tensor | None = None) -> Tensor:
        """Return the mean loss, ().

        Args:
            logits: (B, T).
            labels: (B, T), from 0 to 1.
            weight: (B,), weight of each row; None if all rows have weight 1. Rows of weight 0 are ignored.
        """
        ...


def weighted_mean(losses: Tensor, weight: Tensor | None) -> Tensor:
    """Return the mean of (B, T) losses over rows of `weight` (B,) and over labels."""
    if weight is None:
        return losses.mean()
    return (losses * weight[:, None]).sum() / weight.sum().clamp(min=1) / losses.shape[1]


class BinaryCrossEntropy(nn.Module, RankingLoss):
    """Binary cross-entropy, -ln P(label), the default of ranking models.

    Args:
        label_smoothing: labels 0 and 1 become s / 2 and 1 - s / 2 (Szegedy et al. 2016,
            https://arxiv.org/abs/1512.00567).
    """

    def __init__(self, *, label_smoothing: float = 0.0) -> None:
        super().__init__()
        if not 0 <= label_smoothing < 1:
            raise ValueError(f"label_smoothing={label_smoothing}: must be at least 0 and below 1")
        self.label_smoothing = label_smoothing

    def forward(self, logits: Tensor, labels: Tensor, weight: Tensor | None = None) -> Tensor:
        if self.label_smoothing:
            labels = labels * (1 - self.label_smoothing) + self.label_smoothing / 2
        losses = nn.functional.binary_cross_entropy_with_logits(
            logits,
            labels,
            weight=None if weight is None else weight[:, None],
            reduction="mean" if weight is None else "sum",
        )
        return losses if weight is None else losses / weight.sum().clamp(min=1) / labels.shape[1]


class FocalLoss(nn.Module, RankingLoss):
    """Focal loss: Lin et al., Focal Loss for Dense Object Detection, 2017, https://arxiv.org/abs/1708.02002.

    Cross-entropy times (1 - P(label))^gamma, so that rows that are predicted well count less. With gamma > 0, the
    predictions are not calibrated probabilities.

    Args:
        gamma: exponent; 0 gives binary cross-entropy.
        alpha: weight of positives; negatives have the weight 1 - alpha. None weights both equally.
    """

    def __init__(self, *, gamma: float = 2.0, alpha: float | None = None) -> None:
        super().__init__()
        if gamma < 0:
            raise ValueError(f"gamma={gamma}: must not be negative")
        if alpha is not None and not 0 < alpha < 1:
            raise ValueError(f"alpha={alpha}: must be between 0 and 1, or null")
        self.gamma, self.alpha = gamma, alpha

    def forward(self, logits: Tensor, labels: Tensor, weight: Tensor | None = None) -> Tensor:
        losses = nn.functional.binary_cross_entropy_with_logits(logits, labels, reduction="none")
        probability = torch.sigmoid(logits)
        off = probability + labels - 2 * probability * labels  # 1 - P(label)
        losses = losses * off**self.gamma
        if self.alpha is not None:
            losses = losses * (labels * self.alpha + (1 - labels) * (1 - self.alpha))
        return weighted_mean(losses, weight)
