"""What the positions of rows do to their labels: rates by position, the learned bias, and what it explains."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from recsys.evaluation.binary import BinaryMetrics
from recsys.evaluation.collected_rows import summed_over_ranks
from recsys.interface.batch import Batch
from recsys.interface.labels import BinaryLabel, Label, label_slices, predict
from recsys.losses.position import BESIDE, POSITIONS

SHOWN = 50  # positions


class PositionEffects:
    """Measures one split: the predictions of the first binary label at the rows' positions, and its rates by position.

    label: the place of that label; None without one
    """

    def __init__(self, labels: tuple[Label, ...]) -> None:
        self._labels = labels
        self.label = next((i for i, label in enumerate(labels) if isinstance(label, BinaryLabel)), None)
        self._metrics = BinaryMetrics()
        self._learned, self._first = "bias", 0
        self._sums = torch.zeros(3, POSITIONS, dtype=torch.float64)

    def update(self, task: Any, logits: Tensor, batch: Batch) -> None:
        """Add the logits (B, L) that a task has for a batch. Collective."""
        tower = getattr(task, "position", None)
        if self.label is None or tower is None or batch.position is None:
            return
        column = label_slices(self._labels)[self.label].start
        labels, weight = batch.labels[:, self.label], batch.weight
        shift = tower.shift(batch.position, batch.sparse)
        clicks = predict(tower.shifted(logits, shift), self._labels)[:, column]
        self._metrics.update(clicks, labels, weight, batch.first_row)
        self._first, learned = tower.bias.first, shift[:, column]
        if tower.bias.bias == "examination":
            self._learned, learned = "examination", 2 * torch.sigmoid(learned)
        known = ~labels.isnan() if weight is None else ~labels.isnan() & (weight > 0)
        at = tower.places(batch.position[known]).cpu()
        weights = torch.ones(len(at)) if weight is None else weight[known].cpu()
        for i, x in enumerate((weights, weights * labels[known].cpu(), weights * learned[known].detach().cpu())):
            self._sums[i].index_add_(0, at, x.double())

    def compute(self) -> dict[str, Any] | None:
        """Return the entry of the split in metrics.json, on every rank, and reset; None without rows. Collective.

        explains: the share of the labels' entropy that each position's own rate takes away
        at_positions: metrics of the predictions at the rows' positions
        positions: of each position its rows, the rate of the label, and its mean
            bias, which is added to the logit, or its mean examination, relative to that of the first position
        """
        rows, positives, learned = summed_over_ranks(self._sums.numpy().copy())
        self._sums.zero_()
        if self.label is None or not rows.any():
            return None
        found = self._metrics.compute()
        at = np.flatnonzero(rows)
        rates, rate = positives[at] / rows[at], positives.sum() / rows.sum()
        explained = 1 - float((rows[at] * _entropy(rates)).sum() / (rows.sum() * _entropy(np.array(rate))))
        each = zip(at - BESIDE + self._first, rows[at], rates, learned[at] / rows[at], strict=True)
        return {
            "label": self._labels[self.label].name,
            "explains": explained,
            "at_positions": {n: found[n] for n in ("auc", "logloss", "ne", "calibration")},
            "positions": [
                {"position": int(p), "rows": float(n), "rate": float(r), self._learned: float(d)} for p, n, r, d in each
            ][:SHOWN],
        }


def _entropy(p: np.ndarray) -> np.ndarray:
    p = np.clip(p, 1e-12, 1 - 1e-12)
    return -(p * np.log(p) + (1 - p) * np.log1p(-p))
