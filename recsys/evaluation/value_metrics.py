"""Metrics of predicted numbers and classes over all rows of all ranks."""

import math
from collections.abc import Callable

import numpy as np
from torch import Tensor

from recsys.evaluation.binary import groups_at, sampled
from recsys.evaluation.collected_rows import RowCollector, Rows, on_rank_0, summed_over_ranks
from recsys.features import Label

SMALLEST = 1e-7  # probabilities are clipped to it before their logarithm is taken


def value_metrics(rows: Rows, kind: str) -> dict[str, float]:
    """Return the metrics of these rows.

    regression: root of the mean squared error (rmse), mean absolute error (mae), and the sum of the predictions divided
        by that of the labels (calibration), unless a label is negative or all are 0
    classes: mean of -ln P(label) (logloss), share of rows whose most probable class is the label (accuracy)
    """
    return _means(_sums(rows, kind), kind)


def row_values(prediction: np.ndarray, label: np.ndarray, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the two values of each row whose means are the metrics, (R,) each.

    regression: squared and absolute errors; rmse is the root of the mean squared error
    classes: -ln P(label), and whether the most probable class is the label
    """
    if kind == "regression":
        off = prediction.astype(np.float64) - label
        return off**2, np.abs(off)
    index = label.astype(np.int64)
    own = np.take_along_axis(prediction, index[:, None], axis=1)[:, 0].astype(np.float64)
    return -np.log(np.maximum(own, SMALLEST)), prediction.argmax(axis=1) == index


def _sums(rows: Rows, kind: str) -> np.ndarray:
    """Return the sums of weights, of both metrics, of predictions, of labels, of negative labels and of rows: (7,)
    float64; the sums of predictions and of labels are 0 for classes.
    """
    weight = np.ones(len(rows.label)) if rows.weight is None else rows.weight.astype(np.float64)
    parts = [*row_values(rows.probability, rows.label, kind)]
    numbers = kind == "regression"
    parts += [rows.probability if numbers else np.zeros(len(weight)), rows.label if numbers else np.zeros(len(weight))]
    return np.array([weight.sum(), *((weight * p).sum() for p in parts), (parts[-1] < 0).sum(), len(weight)])


def _means(sums: np.ndarray, kind: str) -> dict[str, float]:
    total, first, second, predicted, observed, negative, rows = sums.tolist()
    first, second = (x / total if total else math.nan for x in (first, second))
    if kind == "classes":
        return {"logloss": first, "accuracy": second, "rows": int(rows)}
    metrics = {"rmse": math.sqrt(first), "mae": second}
    if observed > 0 and not negative:
        metrics["calibration"] = predicted / observed
    return metrics | {"rows": int(rows)}


class ValueMetrics:
    """Metrics of a label that is a number or a class.

    Args:
        label: the label.
        exact_rows: with more rows than this, `rows` has a sample of about this many.

    Attributes:
        groups: function that returns the group of rows start ... stop - 1 of the split, so that the sample has whole
            groups; None samples single rows.
        rows: rows of the last `compute`, on rank 0.
    """

    def __init__(self, label: Label, exact_rows: int = 20_000_000) -> None:
        self.label, self.exact_rows = label, exact_rows
        self.groups: Callable[[int, int], np.ndarray] | None = None
        self.rows: Rows | None = None
        self._collected = RowCollector()

    def update(self, prediction: Tensor, label: Tensor, weight: Tensor | None = None, first_row: int = 0) -> None:
        """Collect the rows of a batch, as BinaryMetrics does. prediction: (B,), or of classes (B, C)"""
        self._collected.add(prediction.detach().float(), label, weight, first_row)

    def compute(self) -> dict[str, float]:
        """Return the metrics of all rows, on every rank, and reset. Collective.

        Raises:
            NotFinite: a prediction is NaN or infinite; on all ranks.
        """
        mine = self._collected.take(np.float32, len(self.label.classes))
        sums = summed_over_ranks(_sums(mine, self.label.kind))
        if sums[-1] > self.exact_rows:
            keys = mine.place
            if self.groups is not None:
                keys = groups_at(self.groups, keys)
            mine = mine.take(sampled(keys, self.exact_rows / sums[-1]))
        self.rows, _ = on_rank_0(mine, None)
        return _means(sums, self.label.kind)
