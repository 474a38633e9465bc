"""Confidence intervals of metrics by resampling test rows, and closed forms to check them with."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import atan, erfc, isfinite, sqrt
from statistics import NormalDist
from typing import Protocol

import numpy as np

from recsys.evaluation.metrics import BINARY, RowMetric, ScoresMetric
from recsys.evaluation.scores import SMALLEST

BINS = 20  # of metrics of bins
ROWS = 100_000  # if there are more rows, a random sample of this size is resampled
LEVEL = 0.95
Z = 1.959964  # bounds of LEVEL for a normal variable


class Measured(Protocol):
    """Test rows of a run, whose metrics can be computed with any weights."""

    @property
    def names(self) -> tuple[str, ...]: ...

    @property
    def rows(self) -> int:
        """The number of rows."""

    def __len__(self) -> int:
        """Return the number of units that are drawn: rows, queries or groups of rows."""

    def weighted(self, count: np.ndarray) -> np.ndarray:
        """Return metrics (metrics,) of rows with weights, in which unit i is repeated count[i] times."""

    def take(self, units: np.ndarray) -> "Measured": ...


class Predictions:
    """Probabilities (R,), labels (R,) of 0 and 1, and weights (R,), None if all are 1. They are sorted once, so that a
    resample costs one cumulative sum.
    """

    names: tuple[str, ...] = tuple(m.name for m in BINARY if m.interval)

    def __init__(self, probability: np.ndarray, label: np.ndarray, weight: np.ndarray | None = None) -> None:
        self.probability, self.label = probability.astype(np.float64), label.astype(np.float64)
        self.weight = None if weight is None else weight.astype(np.float64)
        self._order = np.argsort(-self.probability, kind="stable")
        score, positive = self.probability[self._order], self.label[self._order] > 0
        last = np.flatnonzero(np.append(score[1:] != score[:-1], True))  # last row of each score
        self._positive = np.flatnonzero(positive)
        group = np.searchsorted(last, self._positive)  # index of each positive's score
        used, self._first = np.unique(group, return_index=True)  # scores of positives, and the first positive of each
        self._last, self._before = last[used], np.append(-1, last)[used]
        p = np.clip(self.probability, SMALLEST, 1 - SMALLEST)
        self._sums = np.stack([self.probability, -np.where(self.label > 0, np.log(p), np.log1p(-p))])
        if self.weight is not None:
            self._sums *= self.weight
            self._sorted_weight = self.weight[self._order]

    def __len__(self) -> int:
        return len(self.label)

    @property
    def rows(self) -> int:
        return len(self)

    def take(self, rows: np.ndarray) -> "Predictions":
        return Predictions(self.probability[rows], self.label[rows], None if self.weight is None else self.weight[rows])

    def weighted(self, count: np.ndarray) -> np.ndarray:
        """Return metrics as recsys.evaluation.binary defines them; NaN if there is only one class.

        They are AUC by pairs, ties counting half (Mann & Whitney 1947), average precision, logloss, normalised entropy,
        and predicted over observed positives.
        """
        sorted_ = count[self._order].astype(np.float64)
        if self.weight is not None:
            sorted_ *= self._sorted_weight
        rows = np.append(0.0, np.cumsum(sorted_))
        total = rows[-1]
        more = np.add.reduceat(sorted_[self._positive], self._first) if len(self._first) else np.zeros(0)
        tp, here = np.cumsum(more), rows[self._last + 1]
        positives = float(tp[-1]) if len(tp) else 0.0
        if not 0 < positives < total * (1 - 1e-12):  # sums of the same weights in another order differ that much
            return np.full(len(self.names), np.nan)
        above = (here - tp) + (rows[self._before + 1] - (tp - more))  # 2 x negatives above, ties count half
        auc = 1 - float((more * above).sum()) / 2 / (positives * (total - positives))
        precision = np.divide(tp, here, out=np.zeros_like(tp), where=here > 0)
        probability, loss = np.einsum("i,ki->k", count, self._sums)  # not BLAS: its threads synchronise slowly
        loss, rate = loss / total, positives / total
        entropy = -(rate * np.log(rate) + (1 - rate) * np.log1p(-rate))
        values = {"auc": auc, "pr_auc": (more * precision).sum() / positives, "logloss": loss, "ne": loss / entropy}
        values |= {"calibration": probability / positives}
        return np.array([values[m.name] if m.name in values else self._slowly(m, count) for m in BINARY if m.interval])

    def _slowly(self, metric: ScoresMetric, count: np.ndarray) -> float:
        """Return a metric that has no quicker form here, as it is measured. count: of `weighted`"""
        from recsys.evaluation.scores import Scores

        weight = count if self.weight is None else count * self.weight
        return metric.of_scores(Scores.from_rows(self.probability, self.label, weight), BINS)


@dataclass(frozen=True)
class Means:
    """Metrics that are means over rows or queries, or roots of means.

    values: (R, metrics), what each metric is a mean of
    weight: (R,); None if all are 1
    roots: names of the metrics that are the root of the mean
    """

    names: tuple[str, ...]
    values: np.ndarray
    weight: np.ndarray | None = None
    roots: tuple[str, ...] = ()

    @classmethod
    def of_rows(
        cls, metrics: Sequence[RowMetric], prediction: np.ndarray, label: np.ndarray, weight: np.ndarray | None
    ) -> "Means":
        """Return the metrics of rows."""
        values = np.stack([m.of_rows(prediction, label) for m in metrics], 1)
        return cls(tuple(m.name for m in metrics), values, weight, tuple(m.name for m in metrics if m.root))

    def __len__(self) -> int:
        return len(self.values)

    @property
    def rows(self) -> int:
        return len(self)

    def take(self, rows: np.ndarray) -> "Means":
        weight = None if self.weight is None else self.weight[rows]
        return Means(self.names, self.values[rows], weight, self.roots)

    def weighted(self, count: np.ndarray) -> np.ndarray:
        weight = count if self.weight is None else count * self.weight
        means = np.einsum("i,ik->k", weight, self.values) / weight.sum()
        return np.where([name in self.roots for name in self.names], np.sqrt(means), means)


class Groups:
    """Rows whose groups are drawn whole, because rows of a group are not independent; with metrics of groups.

    Args:
        single: the rows.
        owner: (R,) index of each row's group, from 0 to G - 1.
        names: names of metrics that are means over groups.
        values: (G, metrics).
        weight: (G, metrics), with which a group counts.
    """

    def __init__(
        self, single: Measured, owner: np.ndarray, names: tuple[str, ...], values: np.ndarray, weight: np.ndarray
    ) -> None:
        self.single, self.owner, self._own, self.values, self.weight = single, owner, names, values, weight
        self.names = (*single.names, *names)

    def __len__(self) -> int:
        return len(self.values)

    @property
    def rows(self) -> int:
        return len(self.owner)

    def take(self, units: np.ndarray) -> "Groups":
        place = np.full(len(self), -1)
        place[units] = np.arange(len(units))
        rows = np.flatnonzero(place[self.owner] >= 0)
        single, owner = self.single.take(rows), place[self.owner[rows]]
        return Groups(single, owner, self._own, self.values[units], self.weight[units])

    def weighted(self, count: np.ndarray) -> np.ndarray:
        total = np.einsum("i,ik->k", count, self.weight)
        sums = np.einsum("i,ik,ik->k", count, self.weight, self.values)
        means = np.divide(sums, total, out=np.full(len(total), np.nan), where=total > 0)
        return np.append(self.single.weighted(count[self.owner]), means)


def deviations(runs: Sequence[Measured], resamples: int, seed: int) -> np.ndarray:
    """Return the metrics of each resample minus the metrics of all rows: (resamples, runs, metrics).

    All runs get the same resamples, so that differences are paired (Efron & Tibshirani, An Introduction to the
    Bootstrap, 1993). Rows are drawn with equal probabilities and keep their weights, since weights are data too. If
    there are n > ROWS rows, a random sample of m = ROWS rows is resampled. Deviations are proportional to one over the
    root of the number of rows, so they are scaled by sqrt(m / n) (Bickel, Götze & van Zwet 1997).
    """
    draws, n = np.random.default_rng(seed), len(runs[0])
    scale = 1.0
    if n > ROWS:
        sample = np.sort(draws.choice(n, ROWS, replace=False))
        runs, scale = [run.take(sample) for run in runs], sqrt(ROWS / n)
    m = len(runs[0])
    points = np.stack([run.weighted(np.ones(m)) for run in runs])
    metrics = np.empty((resamples, *points.shape))
    for i in range(resamples):
        weight = np.bincount(draws.integers(0, m, m), minlength=m).astype(np.float64)
        for k, run in enumerate(runs):
            metrics[i, k] = run.weighted(weight)
    return (metrics - points) * scale


def normal_bound(level: float) -> float:
    """Return the z that |Z| exceeds in 1 - level of cases."""
    return NormalDist().inv_cdf((1 + level) / 2)


def interval(value: float, deviation: np.ndarray) -> tuple[float, float]:
    """Return the 95 % interval of a value from the percentiles of its resamples' deviations."""
    deviation = deviation[np.isfinite(deviation)]
    if not len(deviation):
        return float("nan"), float("nan")
    low, high = np.quantile(deviation, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return value + float(low), value + float(high)


@dataclass(frozen=True)
class Difference:
    """A difference with its 95 % interval, and the probability of one at least as large by chance."""

    value: float
    low: float
    high: float
    p: float


def difference(value: float, parts: Sequence[tuple[float, float]]) -> Difference:
    """Return a difference with its interval and p-value, by Student's t with Welch's and Satterthwaite's degrees of
    freedom; by the normal distribution if they are infinite.

    Args:
        parts: (variance, degrees of freedom) of resamples and of seeds; the variances add up to the value's variance.
    """
    variance = sum(v for v, _ in parts)
    if not variance > 0:
        return Difference(value, value, value, 1.0 if value == 0 else 0.0)
    spread = sum(v * v / freedom for v, freedom in parts)
    freedom = variance * variance / spread if spread else float("inf")
    half = student_bound(freedom) * sqrt(variance)
    return Difference(value, value - half, value + half, student_p(value / sqrt(variance), freedom))


def student_p(t: float, freedom: float) -> float:
    """Return P(|T| >= |t|) of Student's t.

    Its density is that of cos^(freedom - 1) of the angle atan(t / sqrt(freedom)).
    """
    if not isfinite(freedom) or freedom > 1000:
        return erfc(abs(t) / sqrt(2))
    angle = np.linspace(0, np.pi / 2, 20_001)
    area = np.cos(angle) ** (freedom - 1)
    cumulative = np.append(0.0, np.cumsum((area[1:] + area[:-1]) / 2))
    return float(1 - np.interp(atan(abs(t) / sqrt(freedom)), angle, cumulative) / cumulative[-1])


def half_width(deviation: float, number: int) -> float:
    """Return half the width of the 95 % interval of a mean, by Student's t. deviation: of the `number` values"""
    return student_bound(number - 1.0) * deviation / sqrt(number)


def student_bound(freedom: float) -> float:
    """Return the t that |T| exceeds in 5 % of cases."""
    if not isfinite(freedom) or freedom > 1000:
        return Z
    low, high = 0.0, 1000.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if student_p(middle, freedom) > 1 - LEVEL else (low, middle)
    return high


def holm(p: Sequence[float]) -> list[float]:
    """Adjust p-values of several comparisons so that the chance of any false positive is 5 % (Holm 1979).

    >>> [round(p, 3) for p in holm([0.01, 0.04, 0.03])]
    [0.03, 0.06, 0.06]
    """
    adjusted, worst = [0.0] * len(p), 0.0
    for rank, i in enumerate(sorted(range(len(p)), key=lambda i: p[i])):
        worst = max(worst, min(p[i] * (len(p) - rank), 1.0))
        adjusted[i] = worst
    return adjusted


def delong(probability: np.ndarray, label: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return AUCs (N,) of predictions (N, R) for the same rows, and their covariance (N, N).

    DeLong, DeLong & Clarke-Pearson 1988, computed by ranks (Sun & Xu 2014).
    """
    positive = label > 0
    m, n = int(positive.sum()), int((~positive).sum())
    above, below = [], []  # share of negatives below each positive, and of positives above each negative
    for p in probability:
        ranks = _midranks(p)
        above.append((ranks[positive] - _midranks(p[positive])) / n)
        below.append(1 - (ranks[~positive] - _midranks(p[~positive])) / m)
    v, w = np.stack(above), np.stack(below)
    return v.mean(1), np.atleast_2d(np.cov(v)) / m + np.atleast_2d(np.cov(w)) / n


def _midranks(x: np.ndarray) -> np.ndarray:
    """Return ranks (R,) from 1 on; equal values share their mean rank."""
    _, place, count = np.unique(x, return_inverse=True, return_counts=True)
    return (np.cumsum(count) - (count - 1) / 2)[place]


def hanley_mcneil(auc: float, positives: int, negatives: int) -> float:
    """Return the standard error of an AUC from the AUC and the numbers of rows (Hanley & McNeil 1982).

    >>> round(hanley_mcneil(0.8, positives=100, negatives=900), 4)
    0.0272
    """
    q1, q2 = auc / (2 - auc), 2 * auc * auc / (1 + auc)
    spread = auc * (1 - auc) + (positives - 1) * (q1 - auc * auc) + (negatives - 1) * (q2 - auc * auc)
    return sqrt(max(spread, 0.0) / (positives * negatives))
