"""Metrics of binary predictions, exact, over all rows of all ranks."""

import math
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor


def binary_metrics(probability: np.ndarray, label: np.ndarray) -> dict[str, float]:
    """AUC, logloss, NE and calibration of (rows,) probabilities for (rows,) labels of 0 and 1.

    auc: P(score of a positive > score of a negative), ties counted half; NaN with one class only
    logloss: mean of -ln P(label), probabilities kept within [1e-7, 1 - 1e-7]
    ne: normalised entropy (He et al. 2014), logloss over that of always predicting the mean label
    calibration: sum of probabilities / number of positives (1 is calibrated)
    """
    p = np.clip(probability.astype(np.float64), 1e-7, 1 - 1e-7)
    y = label.astype(np.float64)
    positives, rows = float(y.sum()), len(y)
    logloss = float(-(y * np.log(p) + (1 - y) * np.log1p(-p)).mean()) if rows else math.nan
    rate = positives / rows if rows else math.nan
    entropy = -(rate * math.log(rate) + (1 - rate) * math.log(1 - rate)) if 0 < positives < rows else math.nan
    return {
        "auc": auc(probability, label),
        "logloss": logloss,
        "ne": logloss / entropy,
        "calibration": float(p.sum()) / positives if positives else math.nan,
        "rows": rows,
    }


def auc(score: np.ndarray, label: np.ndarray) -> float:
    """Area under the ROC curve by ranks (Mann & Whitney 1947), ties counted half."""
    order = np.argsort(score, kind="stable")
    score, label = score[order], label[order]
    starts = np.flatnonzero(np.concatenate([[True], score[1:] != score[:-1]])) if len(score) else np.array([], int)
    stops = np.append(starts[1:], len(score))
    mean_rank = np.repeat((starts + stops + 1) / 2, stops - starts)
    positives = float(label.sum())
    negatives = len(label) - positives
    if not positives or not negatives:
        return math.nan
    return float((mean_rank[label > 0].sum() - positives * (positives + 1) / 2) / (positives * negatives))


class BinaryMetrics:
    """Collects a rank's logits and labels and computes over those of all ranks: nothing is averaged."""

    def __init__(self) -> None:
        self._kept: list[tuple[Tensor, Tensor]] = []

    def update(self, logits: Tensor, labels: Tensor, weight: Tensor | None) -> None:
        """logits and labels (B, 1); rows of weight 0 only filled a batch up and are left out."""
        p, y = torch.sigmoid(logits.detach().float()[:, 0]), labels[:, 0]
        if weight is not None:
            p, y = p[weight > 0], y[weight > 0]
        self._kept.append((p.cpu(), y.cpu().clone()))

    def compute(self) -> dict[str, float]:
        """Collective: every rank gets the metrics of all rows, in the order of ranks; then starts anew."""
        mine = [
            torch.cat(column).numpy() if column else np.zeros(0, np.float32)
            for column in (list(zip(*self._kept, strict=True)) or ((), ()))
        ]
        self._kept = []
        if dist.is_initialized() and dist.get_world_size() > 1:
            parts: list[Any] = [None] * dist.get_world_size()
            dist.all_gather_object(parts, mine)
            mine = [np.concatenate([part[i] for part in parts]) for i in (0, 1)]
        return binary_metrics(mine[0], mine[1])
