"""Rows of a binary label grouped by score: curves and what metrics are computed from, whatever the number of rows."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

SHIFT = 9  # number of low bits of a float32 that its bin ignores: 2^14 bins for each octave
BINS = (0x3F800000 >> SHIFT) + 1
POINTS = 200  # number of points of a curve
SMALLEST = 1e-7  # probabilities are clipped to it before their logarithm is taken


@dataclass(frozen=True)
class Scores:
    """Rows grouped by score, ascending: enough for AUC, PR-AUC and ECE, whatever the number of rows.

    rows, positives: (G,) counts for each score; sums of weights if rows have weights
    probability, logloss: (G,) sums of probabilities and of -ln P(label)
    """

    rows: np.ndarray
    positives: np.ndarray
    probability: np.ndarray
    logloss: np.ndarray

    @classmethod
    def from_rows(cls, probability: np.ndarray, label: np.ndarray, weight: np.ndarray | None = None) -> "Scores":
        """Group (rows,) float32 probabilities and labels of 0 and 1 by equal probabilities, without loss."""
        order = np.argsort(probability)  # the order of equal scores does not matter
        score = probability[order]
        first = np.flatnonzero(np.append(True, score[1:] != score[:-1])) if len(score) else np.zeros(0, np.int64)
        columns = (np.ones(len(score), np.int64), label[order].astype(np.int64), *_sums(score, label[order]))
        if weight is not None:
            columns = tuple(c * weight[order].astype(np.float64) for c in columns)  # type: ignore[assignment]
        return cls(*(np.add.reduceat(c, first) if len(first) else c for c in columns))

    @classmethod
    def binned(cls, probability: np.ndarray, label: np.ndarray, weight: np.ndarray | None = None) -> "Scores":
        """Group into BINS bins of neighbouring float32 values.

        Empty bins are included, so that the bins of all ranks can be summed.
        """
        bins = probability.astype(np.float32).view(np.int32) >> SHIFT
        p, loss = _sums(probability, label)
        if weight is None:
            count = lambda weights=None: np.bincount(bins, weights, BINS)  # noqa: E731
            return cls(count().astype(np.int64), count(label).astype(np.int64), count(p), count(loss))
        return cls(*(np.bincount(bins, c * weight.astype(np.float64), BINS) for c in (1.0, label, p, loss)))

    def __add__(self, other: "Scores") -> "Scores":
        """Return the sum of binned scores."""
        return Scores(*(a + b for a, b in zip(vars(self).values(), vars(other).values(), strict=True)))

    @property
    def negatives(self) -> np.ndarray:
        return self.rows - self.positives

    def auc(self) -> tuple[float, float]:
        """Return the area under the ROC curve, and its largest possible error if the scores are binned.

        Ties count half (Mann & Whitney 1947). Both values are NaN if there is only one class.
        """
        positives, negatives = float(self.positives.sum()), float(self.negatives.sum())
        if not positives or not negatives:
            return math.nan, math.nan
        below = np.cumsum(self.negatives) - self.negatives
        pairs = positives * negatives
        tied = float((self.positives * self.negatives.astype(np.float64)).sum())
        return float((self.positives * below.astype(np.float64)).sum() + tied / 2) / pairs, tied / 2 / pairs

    def pr_auc(self) -> float:
        """Return average precision as scikit-learn does: precision at each score, weighted by the recall it adds.

        NaN without positives.
        """
        rows, positives = np.cumsum(self.rows[::-1]), np.cumsum(self.positives[::-1])
        if not len(rows) or not positives[-1]:
            return math.nan
        precision = positives / np.where(rows > 0, rows, 1)
        return float((precision * self.positives[::-1]).sum() / positives[-1])

    def pr_auc_error(self) -> float:
        """Return the largest possible error of pr_auc if the scores are binned.

        The extremes have the positives of each bin first or last.
        """
        value, total = self.pr_auc(), int(self.positives.sum())
        if not total:
            return 0.0
        some = self.positives[::-1] > 0
        positives, negatives = self.positives[::-1][some].astype(np.float64), self.negatives[::-1][some]
        tp = np.cumsum(positives) - positives
        fp = (np.cumsum(self.negatives[::-1]) - self.negatives[::-1])[some].astype(np.float64)

        def sequential(fp: np.ndarray) -> float:
            """Sum (tp + i) / (tp + fp + i), or 1 - fp / (tp + fp + i), over i = 1 ... positives, by digamma."""
            from torch import digamma, from_numpy

            psi = digamma(from_numpy(np.stack([tp + fp + positives + 1, tp + fp + 1]))).numpy()
            return float((positives - fp * (psi[0] - psi[1])).sum() / total)

        # at best a bin's positives share its highest score, at worst all of its negatives come first
        best = float((positives * (tp + positives) / (tp + fp + positives)).sum() / total)
        return max(best - value, value - sequential(fp + negatives), 0.0)

    def calibration(self, bins: int) -> list[tuple[float, float, float]]:
        """Return (mean probability, share of positives, number of rows) for each of `bins` bins.

        The bins have about the same number of rows. Equal scores are in the same bin.
        """
        total = float(self.rows.sum())
        middle = np.cumsum(self.rows) - self.rows / 2
        place = np.minimum((middle * bins / (total or 1)).astype(np.int64), bins - 1)
        rows, p, y = (np.bincount(place, c, bins) for c in (self.rows, self.probability, self.positives))
        whole = self.rows.dtype.kind == "i"
        parts = zip(p, y, rows, strict=True)
        return [(float(a / n), float(b / n), int(n) if whole else float(n)) for a, b, n in parts if n]

    def mean_logloss(self) -> float:
        """Return the mean of -ln P(label), with probabilities clipped to [SMALLEST, 1 - SMALLEST]."""
        rows = float(self.rows.sum())
        return float(self.logloss.sum()) / rows if rows else math.nan

    def entropy(self) -> float:
        """Return the log loss of always predicting the mean label, by which NE (He et al. 2014) divides."""
        rows, positives = float(self.rows.sum()), float(self.positives.sum())
        if not 0 < positives < rows:
            return math.nan
        rate = positives / rows
        return -(rate * math.log(rate) + (1 - rate) * math.log1p(-rate))

    def predicted_over_observed(self) -> float:
        """Return the sum of probabilities divided by that of the positives; 1 is calibrated."""
        positives = float(self.positives.sum())
        return float(self.probability.sum()) / positives if positives else math.nan

    def ece(self, bins: int) -> float:
        """Return the expected calibration error (Naeini et al. 2015): the mean distance of probability and share of
        positives over `bins` bins with about the same number of rows.
        """
        rows = float(self.rows.sum())
        off = sum(n * abs(p - y) for p, y, n in self.calibration(bins))
        return off / rows if rows else math.nan

    def curves(self, bins: int) -> dict[str, list[Any]]:
        """Return points of the ROC and precision-recall curves, and the result of `calibration`.

        The points are (false positive rate, true positive rate) and (recall, precision).
        """
        fp, tp = (np.append(0, np.cumsum(c[::-1])) for c in (self.negatives, self.positives))
        if not len(self.rows) or not fp[-1] or not tp[-1]:
            return {"roc": [], "pr": [], "calibration": self.calibration(bins)}
        along = lambda x: np.unique(np.searchsorted(x, np.linspace(0, x[-1], POINTS // 2)))  # noqa: E731
        at = np.union1d(along(fp), along(tp))
        both = tp[at] + fp[at]
        precision = tp[at] / np.where(both > 0, both, 1)
        roc = np.stack([fp[at] / fp[-1], tp[at] / tp[-1]], 1)
        pr = np.stack([tp[at] / tp[-1], precision], 1)[tp[at] > 0]
        return {"roc": roc.tolist(), "pr": pr.tolist(), "calibration": self.calibration(bins)}


def _sums(probability: np.ndarray, label: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return float64 probabilities and -ln P(label)."""
    p = np.clip(probability.astype(np.float64), SMALLEST, 1 - SMALLEST)
    return p, -np.log(np.where(label > 0, p, 1 - p))
