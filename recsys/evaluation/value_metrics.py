"""Metrics of predicted numbers and classes over all rows of all ranks."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from recsys.evaluation.binary import groups_at, sampled
from recsys.evaluation.collected_rows import RowCollector, Rows, on_rank_0, summed_over_ranks
from recsys.evaluation.metrics import CLASSES, NUMBERS, RowMetric


class ValueMetrics(ABC):
    """Metrics of a label that is a number or a class.

    Args:
        exact_rows: with more rows than this, `rows` has a sample of about this many.
        classes: the classes of a ClassLabel; empty for numbers.

    Attributes:
        of_rows: the metrics that are means over rows.
        groups: function that returns the group of rows start ... stop - 1 of the split, so that the sample has whole
            groups; None samples single rows.
        rows: rows of the last `compute`, on rank 0.
    """

    of_rows: ClassVar[tuple[RowMetric, ...]]

    def __init__(self, exact_rows: int = 20_000_000, classes: tuple[str, ...] = ()) -> None:
        self.exact_rows, self.classes = exact_rows, classes
        self.groups: Callable[[int, int], np.ndarray] | None = None
        self.rows: Rows | None = None
        self._collected = RowCollector()

    @classmethod
    def summed(cls, rows: Rows) -> list[np.ndarray]:
        """Return what `means` needs the weighted sums of, (R,) each: the values of the metrics of rows first."""
        return [m.of_rows(rows.probability, rows.label) for m in cls.of_rows]

    @classmethod
    def sums(cls, rows: Rows) -> np.ndarray:
        """Return float64 sums: of the weights, of what `summed` returns, weighted, and the number of rows."""
        return np.array([*((rows.weights * x).sum() for x in (1.0, *cls.summed(rows))), len(rows.label)])

    @classmethod
    def means(cls, sums: np.ndarray) -> dict[str, float]:
        """Return the metrics of all rows, and their number."""
        total, values = sums[0], sums[1:]
        means = (float(x / total) if total else math.nan for x in values)
        return {m.name: m.of_mean(mean) for m, mean in zip(cls.of_rows, means, strict=False)} | {"rows": int(sums[-1])}

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
    """The metrics of numbers; unless a label is negative or all are 0, also calibration, the sum of the predictions
    divided by that of the labels.
    """

    of_rows = NUMBERS

    @classmethod
    def summed(cls, rows: Rows) -> list[np.ndarray]:
        return [*super().summed(rows), rows.probability, rows.label, rows.label < 0]

    @classmethod
    def means(cls, sums: np.ndarray) -> dict[str, float]:
        metrics, [predicted, observed, negative] = super().means(sums), sums[-4:-1].tolist()
        rows = metrics.pop("rows")
        calibration = {"calibration": predicted / observed} if observed > 0 and not negative else {}
        return metrics | calibration | {"rows": rows}

    def columns(self, rows: Rows) -> dict[str, Any]:
        return {"prediction": rows.probability, "label": rows.label}


class ClassMetrics(ValueMetrics):
    """The metrics of classes."""

    of_rows = CLASSES

    def columns(self, rows: Rows) -> dict[str, Any]:
        probabilities = {f"probability_{c}": rows.probability[:, n] for n, c in enumerate(self.classes)}
        return probabilities | {"label": [self.classes[int(y)] for y in rows.label]}
