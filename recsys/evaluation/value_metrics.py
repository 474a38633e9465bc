"""Metrics of predicted numbers and classes over all rows of all ranks."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
from torch import Tensor

from recsys.evaluation.binary import groups_at, sampled
from recsys.evaluation.collected_rows import RowCollector, Rows, on_rank_0, summed_over_ranks

SMALLEST = 1e-7  # probabilities are clipped to it before their logarithm is taken


class ValueMetrics(ABC):
    """Metrics of a label that is a number or a class.

    Args:
        exact_rows: with more rows than this, `rows` has a sample of about this many.
        classes: the classes of a ClassLabel; empty for numbers.

    Attributes:
        groups: function that returns the group of rows start ... stop - 1 of the split, so that the sample has whole
            groups; None samples single rows.
        rows: rows of the last `compute`, on rank 0.
    """

    def __init__(self, exact_rows: int = 20_000_000, classes: tuple[str, ...] = ()) -> None:
        self.exact_rows, self.classes = exact_rows, classes
        self.groups: Callable[[int, int], np.ndarray] | None = None
        self.rows: Rows | None = None
        self._collected = RowCollector()

    @staticmethod
    @abstractmethod
    def row_values(prediction: np.ndarray, label: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the two values of each row whose means are the metrics, (R,) each."""

    @classmethod
    def summed(cls, rows: Rows) -> list[np.ndarray]:
        """Return what `means` needs the weighted sums of, (R,) each: `row_values` first."""
        return [*cls.row_values(rows.probability, rows.label)]

    @classmethod
    def sums(cls, rows: Rows) -> np.ndarray:
        """Return float64 sums: of the weights, of what `summed` returns, weighted, and the number of rows."""
        return np.array([*((rows.weights * x).sum() for x in (1.0, *cls.summed(rows))), len(rows.label)])

    @staticmethod
    @abstractmethod
    def means(sums: np.ndarray) -> dict[str, float]:
        """Return the metrics of all rows."""

    @abstractmethod
    def columns(self, rows: Rows) -> dict[str, Any]:
        """Return the columns of a file of predictions."""

    @classmethod
    def of(cls, rows: Rows) -> dict[str, float]:
        """Return the metrics of these rows."""
        return cls.means(cls.sums(rows))

    def update(self, prediction: Tensor, label: Tensor, weight: Tensor | None = None, first_row: int = 0) -> None:
        """Collect the rows of a batch, as BinaryMetrics does. prediction: (B,), or of classes (B, C)"""
        self._collected.add(prediction.detach().float(), label, weight, first_row)

    def compute(self) -> dict[str, float]:
        """Return the metrics of all rows, on every rank, and reset. Collective.

        Raises:
            NotFinite: a prediction is NaN or infinite; on all ranks.
        """
        mine = self._collected.take(np.float32, len(self.classes))
        sums = summed_over_ranks(self.sums(mine))
        if sums[-1] > self.exact_rows:
            keys = mine.place
            if self.groups is not None:
                keys = groups_at(self.groups, keys)
            mine = mine.take(sampled(keys, self.exact_rows / sums[-1]))
        self.rows, _ = on_rank_0(mine, None)
        return self.means(sums)


class NumberMetrics(ValueMetrics):
    """Root of the mean squared error (rmse) and mean absolute error (mae); unless a label is negative or all are 0,
    also the sum of the predictions divided by that of the labels (calibration).
    """

    @staticmethod
    def row_values(prediction: np.ndarray, label: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return squared and absolute errors, (R,) each; rmse is the root of the mean squared error."""
        off = prediction.astype(np.float64) - label
        return off**2, np.abs(off)

    @classmethod
    def summed(cls, rows: Rows) -> list[np.ndarray]:
        return [*super().summed(rows), rows.probability, rows.label, rows.label < 0]

    @staticmethod
    def means(sums: np.ndarray) -> dict[str, float]:
        total, squared, absolute, predicted, observed, negative, rows = sums.tolist()
        squared, absolute = (x / total if total else math.nan for x in (squared, absolute))
        metrics = {"rmse": math.sqrt(squared), "mae": absolute}
        if observed > 0 and not negative:
            metrics["calibration"] = predicted / observed
        return metrics | {"rows": int(rows)}

    def columns(self, rows: Rows) -> dict[str, Any]:
        return {"prediction": rows.probability, "label": rows.label}


class ClassMetrics(ValueMetrics):
    """Mean of -ln P(label) (logloss), and share of rows whose most probable class is the label (accuracy)."""

    @staticmethod
    def row_values(prediction: np.ndarray, label: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return -ln P(label), and whether the most probable class is the label, (R,) each."""
        index = label.astype(np.int64)
        own = np.take_along_axis(prediction, index[:, None], axis=1)[:, 0].astype(np.float64)
        return -np.log(np.maximum(own, SMALLEST)), prediction.argmax(axis=1) == index

    @staticmethod
    def means(sums: np.ndarray) -> dict[str, float]:
        total, loss, right, rows = sums.tolist()
        loss, right = (x / total if total else math.nan for x in (loss, right))
        return {"logloss": loss, "accuracy": right, "rows": int(rows)}

    def columns(self, rows: Rows) -> dict[str, Any]:
        probabilities = {f"probability_{c}": rows.probability[:, n] for n, c in enumerate(self.classes)}
        return probabilities | {"label": [self.classes[int(y)] for y in rows.label]}
