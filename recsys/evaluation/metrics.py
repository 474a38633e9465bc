"""All metrics. A metric is one object: its name, label, direction and meaning, and how it is computed.

Metrics of scores, of rows and of ranked targets are added here alone: validations, tests, confidence intervals, slices
and reports follow. Those within groups are computed in `group_metrics.py`, those of lists in `list_metrics.py`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np

from recsys.evaluation.scores import SMALLEST, Scores

LOGLOSS = "mean of −ln P(label)"


@dataclass(frozen=True)
class Metric:
    """A metric of one split.

    name: name in metrics.json, without `@k` and protocol
    label: name in tables and charts
    better: which direction is better; None if neither is, so that the metric cannot select checkpoints or rank trials
    meaning: one-line description
    at_k: whether it is computed for lists of length k, as name@k
    whole: whether it is computed for the whole ranking too, as name
    of_lists: whether it describes the lists of the best k candidates without regard to the targets; such metrics are
        measured under the protocol full, if `protocol.lists` contains them
    least_k: smallest k for which it is defined
    every_k: whether tables show it for every k, instead of for the main k alone
    repeats: whether it equals another metric, or a multiple of one, if every query has one target
    interval: whether recsys.report computes a confidence interval for it
    curve: whether recsys.report plots it over the validations
    """

    name: str
    label: str
    better: Literal["higher", "lower"] | None
    meaning: str
    at_k: bool = False
    whole: bool = False
    of_lists: bool = False
    least_k: int = 1
    every_k: bool = True
    repeats: bool = False
    interval: bool = True
    curve: bool = True


@dataclass(frozen=True, kw_only=True)
class ScoresMetric(Metric):
    """A metric of binary labels. of_scores: computes it from all rows, grouped by score, for a number of bins"""

    of_scores: Callable[[Scores, int], float]


@dataclass(frozen=True, kw_only=True)
class RowMetric(Metric):
    """A metric that is the mean of a value of each row, or the root of the mean.

    of_rows: the value of each row, (R,), from predictions (R,), of classes (R, C), and labels (R,)
    root: whether the metric is the root of the mean
    """

    of_rows: Callable[[np.ndarray, np.ndarray], np.ndarray]
    root: bool = False

    def of_mean(self, mean: float) -> float:
        """Return the metric."""
        return math.sqrt(mean) if self.root else mean


@dataclass(frozen=True)
class RankedTargets:
    """The expectations of the ranks of all targets, for lists of n candidates: the rank of a target is uniform over
    greater + 1 ... greater + ties + 1.

    first: (Q,) place of each query's first target
    size: (Q,) number of targets
    hit: (P,) probability that the target is in the list
    gain: (P,) of 1 / log2(1 + rank) there (Järvelin & Kekäläinen 2002)
    reciprocal: (P,) of 1 / rank there
    precision: (P,) of the precision at its rank there
    most_hits: (Q,) the largest possible number of targets in the list
    largest_gain: (Q,) of an ideal order
    places: (Q,) of the lists of a query, of which it has one, or one for each target
    """

    first: np.ndarray
    size: np.ndarray
    hit: np.ndarray
    gain: np.ndarray
    reciprocal: np.ndarray
    precision: np.ndarray
    most_hits: np.ndarray
    largest_gain: np.ndarray
    places: np.ndarray

    def total(self, values: np.ndarray) -> np.ndarray:
        """Return the sum over the targets of each query, (P,) -> (Q,)."""
        return np.add.reduceat(values, self.first)

    def largest(self, values: np.ndarray) -> np.ndarray:
        """Return the largest value of each query, (P,) -> (Q,)."""
        return np.maximum.reduceat(values, self.first)


class RetrievalMetric(Metric):
    """A metric of rankings of items. The others measure labels."""


@dataclass(frozen=True, kw_only=True)
class TargetsMetric(RetrievalMetric):
    """A metric of the ranks of a query's targets. of_targets: computes it for each query, (Q,)"""

    of_targets: Callable[[RankedTargets], np.ndarray]


def _errors(prediction: np.ndarray, label: np.ndarray) -> np.ndarray:
    return prediction.astype(np.float64) - label


def _class_losses(prediction: np.ndarray, label: np.ndarray) -> np.ndarray:
    own = np.take_along_axis(prediction, label.astype(np.int64)[:, None], axis=1)[:, 0].astype(np.float64)
    return -np.log(np.maximum(own, SMALLEST))


_at_k = partial(TargetsMetric, at_k=True)
_of_lists = partial(RetrievalMetric, at_k=True, of_lists=True, every_k=False, interval=False, curve=False)
BINARY = (
    ScoresMetric("auc", "AUC", "higher", "area under the ROC curve", of_scores=lambda s, _: s.auc()[0]),
    ScoresMetric("pr_auc", "PR-AUC", "higher", "average precision", curve=False, of_scores=lambda s, _: s.pr_auc()),
    ScoresMetric("logloss", "logloss", "lower", LOGLOSS, of_scores=lambda s, _: s.mean_logloss()),
    ScoresMetric(
        "ne",
        "NE",
        "lower",
        "normalised entropy: logloss over that of the mean label",
        curve=False,
        of_scores=lambda s, _: s.mean_logloss() / s.entropy(),
    ),
    ScoresMetric(
        "calibration",
        "calibration",
        None,
        "predicted over observed sum of the labels; 1 is calibrated",
        of_scores=lambda s, _: s.predicted_over_observed(),
    ),
    ScoresMetric(
        "ece", "ECE", "lower", "expected calibration error", interval=False, of_scores=lambda s, bins: s.ece(bins)
    ),
)
NUMBERS = (
    RowMetric(
        "rmse", "RMSE", "lower", "root of the mean squared error", root=True, of_rows=lambda p, y: _errors(p, y) ** 2
    ),
    RowMetric("mae", "MAE", "lower", "mean absolute error", of_rows=lambda p, y: np.abs(_errors(p, y))),
)
CLASSES = (
    RowMetric("logloss", "logloss", "lower", LOGLOSS, of_rows=_class_losses),
    RowMetric("accuracy", "accuracy", "higher", "share of rows predicted right", of_rows=lambda p, y: p.argmax(1) == y),
)
WITHIN_GROUPS = (
    Metric("gauc", "GAUC", "higher", "AUC within groups, weighted by their rows"),
    Metric("gndcg", "group NDCG", "higher", "discounted gain within groups divided by the largest possible", at_k=True),
    Metric(
        "gmrr", "group MRR", "higher", "mean reciprocal rank of a group's best relevant row", at_k=True, curve=False
    ),
)
TARGET_METRICS = (
    _at_k(
        "mrr",
        "MRR",
        "higher",
        "mean reciprocal rank of a query's best target; mrr@k counts the best k alone",
        whole=True,
        every_k=False,
        of_targets=lambda t: t.largest(t.reciprocal),
    ),
    _at_k(
        "hr", "HR", "higher", "share of queries with a target among the best k", of_targets=lambda t: t.largest(t.hit)
    ),
    _at_k(
        "ndcg",
        "NDCG",
        "higher",
        "discounted gain divided by the largest possible",
        of_targets=lambda t: t.total(t.gain) / t.largest_gain,
    ),
    _at_k(
        "recall",
        "recall",
        "higher",
        "share of a query's targets among the best k",
        repeats=True,
        of_targets=lambda t: t.total(t.hit) / t.size,
    ),
    _at_k(
        "map",
        "MAP",
        "higher",
        "mean average precision of the best k",
        every_k=False,
        repeats=True,
        curve=False,
        of_targets=lambda t: t.total(t.precision) / t.most_hits,
    ),
    _at_k(
        "precision",
        "precision",
        "higher",
        "share of targets among the best k",
        every_k=False,
        repeats=True,
        curve=False,
        of_targets=lambda t: t.total(t.hit) / t.places,
    ),
)
LIST_METRICS = (
    _of_lists("coverage", "coverage", "higher", "share of the candidates that are in any list of the best k"),
    _of_lists("gini", "Gini", "lower", "Gini index of how often each candidate is listed; 0: all equally often"),
    _of_lists("novelty", "novelty", "higher", "mean of −log2 of the listed items' shares of the training rows"),
    _of_lists(
        "diversity",
        "diversity",
        None,
        "1 − mean cosine similarity, within a list, of the vectors that the model itself gives to items; "
        "not comparable between models",
        least_k=2,
    ),
    _of_lists(
        "popularity_lift",
        "popularity lift",
        None,
        "mean popularity of listed items relative to that of the histories, − 1; 0: as popular",
    ),
    _of_lists("average_popularity", "average popularity", None, "mean number of training rows of the listed items"),
    _of_lists(
        "long_tail",
        "long tail",
        None,
        "share of the lists' places that have items outside of the fewest that make 80 % of the training rows",
    ),
    _of_lists(
        "unexpectedness",
        "unexpectedness",
        None,
        "share of listed items that are not among the k most popular ones left to the user",
    ),
    _of_lists("serendipity", "serendipity", "higher", "share of unexpected listed items that are targets"),
)
