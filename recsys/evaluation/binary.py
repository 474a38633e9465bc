"""Metrics of binary predictions over all rows of all ranks.

They are exact up to a number of rows; above it, the error of binned scores is bounded and reported.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from torch import Tensor

from recsys.base.errors import NotFinite
from recsys.evaluation.collected_rows import RowCollector, Rows, from_rank_0, on_rank_0, rank, summed_over_ranks
from recsys.evaluation.metrics import BINARY
from recsys.evaluation.negatives import mix
from recsys.evaluation.scores import Scores

BLOCK = 8_000_000  # number of rows whose groups are read at once


def metrics_of(scores: Scores, bins: int = 20) -> dict[str, float]:
    """Return the metrics of binary labels by name, and the number of rows."""
    return {m.name: m.of_scores(scores, bins) for m in BINARY} | {"rows": int(scores.rows.sum())}


def binary_metrics(
    probability: np.ndarray, label: np.ndarray, bins: int = 20, weight: np.ndarray | None = None
) -> dict[str, float]:
    """Return the metrics of R rows, and `rows`, their number.

    Args:
        probability: (R,) predicted probabilities.
        label: (R,) labels, 0 or 1.
        bins: number of bins of ece.
        weight: (R,) weights; None gives each row the weight 1.

    >>> metrics = binary_metrics(np.array([0.9, 0.6, 0.2, 0.1]), np.array([1, 0, 1, 0]))
    >>> round(metrics["auc"], 2), round(metrics["calibration"], 2)
    (0.75, 0.9)
    """
    return metrics_of(Scores.from_rows(probability, label, weight), bins) | {"rows": len(label)}


def gauc(
    group: np.ndarray, probability: np.ndarray, label: np.ndarray, weight: np.ndarray | None = None
) -> tuple[float, int]:
    """Return the mean of the AUCs of groups, and the number of rows that have one.

    With w_r the weights of the rows (R,), and AUC_g the AUC of the rows of group g with these weights,

        GAUC = sum_g W_g AUC_g / sum_g W_g,    W_g = sum of w_r over the rows of g

    over the groups with both classes. If all weights are 1, W_g is the group's number of rows, which are impressions in
    Zhu et al., Optimized Cost per Click in Taobao Display Advertising, 2017. NaN if no group has both classes.

    Args:
        group: (R,) the group of each row.
        probability: (R,) predictions; only their order within a group matters.
        label: (R,) labels, 0 or 1.
        weight: (R,) w_r; None gives each row the weight 1.
    """
    auc, total, rows = group_aucs(group, probability, label, weight)
    if not total.any():
        return math.nan, 0
    return float((auc * total).sum() / total.sum()), int(rows[total > 0].sum())


def group_aucs(
    group: np.ndarray, probability: np.ndarray, label: np.ndarray, weight: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return AUC_g and W_g of `gauc`, both 0 without both classes, and the number of rows of each group.

    They are (G,) each, in ascending order of the groups; the parameters are those of `gauc`.
    """
    if not len(group):
        return np.zeros(0), np.zeros(0), np.zeros(0, np.int64)
    order, new_group, new_score = _by_group_and_score(group, probability)
    y = label[order].astype(np.int64)
    w = np.ones(len(group), np.int64) if weight is None else weight[order].astype(np.float64)
    first, score = np.flatnonzero(new_group), np.flatnonzero(new_score)
    owner = np.cumsum(new_group[score]) - 1
    weights, positives = np.add.reduceat(w, score), np.add.reduceat(w * y, score)
    negatives = weights - positives
    of_group = lambda x: np.bincount(owner, x, len(first))  # noqa: E731
    before = np.cumsum(negatives) - negatives
    below = before - before[np.flatnonzero(new_group[score])][owner]
    pairs = of_group(positives) * of_group(negatives)
    area = of_group(positives * (below + negatives / 2))
    both = pairs > 0
    counts = np.diff(np.append(first, len(group)))
    return area / np.where(both, pairs, 1), np.where(both, np.add.reduceat(w, first), 0), counts


def _by_group_and_score(group: np.ndarray, score: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the order by group and score, and where in it a group, and a score, begins. group, score: (R,)

    Float32 scores within a range of 2^31 groups are sorted as one integer: five times as fast as by two keys.
    """
    whole = np.issubdtype(group.dtype, np.integer)
    if whole and score.dtype == np.float32 and int(group.max()) - int(group.min()) < 2**31:
        bits = (score + np.float32(0)).view(np.int32).astype(np.int64)  # + 0: -0 has other bits than 0
        ascending = bits ^ ((bits >> 63) & 0x7FFFFFFF)
        key = ((group - group.min()).astype(np.int64) << 32) + (ascending + 2**31)
        order = np.argsort(key)
        key = key[order]
        new_score = np.append(True, key[1:] != key[:-1])
        group = key >> 32
        return order, np.append(True, group[1:] != group[:-1]), new_score
    order = np.lexsort((score, group))
    group, score = group[order], score[order]
    new_group = np.append(True, group[1:] != group[:-1])
    return order, new_group, new_group | np.append(True, score[1:] != score[:-1])


class BinaryMetrics:
    """Metrics of binary predictions.

    Collects the rows of this rank and computes the metrics over the rows of all ranks together, not as averages of
    batches or ranks. Memory is bounded: of more than `exact_rows` rows, a rank keeps binned scores and a sample.

    Args:
        exact_rows: with more rows than this, AUC, PR-AUC and ECE use binned scores, and GAUC uses a sample of about
            this many rows (whole groups). auc_error and pr_auc_error bound the errors of AUC and PR-AUC. All other
            metrics stay exact.
        bins: number of bins of the calibration error.

    Attributes:
        groups: function that returns the group of rows start ... stop - 1 of the split, for GAUC; None omits GAUC.
        scores: grouped scores of the last `compute`.
        rows: rows of the last `compute`, on rank 0: all rows, or the sample.
    """

    def __init__(self, exact_rows: int = 20_000_000, bins: int = 20) -> None:
        self.exact_rows, self.bins = exact_rows, bins
        self.groups: Callable[[int, int], np.ndarray] | None = None
        self.scores: Scores | None = None
        self.rows: Rows | None = None
        self._collected = RowCollector()
        self._reset()

    @staticmethod
    def of(rows: Rows) -> dict[str, float]:
        """Return the metrics of these rows, and the number of positive ones."""
        return binary_metrics(rows.probability, rows.label, weight=rows.weight) | {"positives": int(rows.label.sum())}

    def columns(self, rows: Rows) -> dict[str, Any]:
        """Return the columns of a file of predictions."""
        return {"probability": rows.probability, "label": rows.label.astype(np.uint8)}

    def _reset(self) -> None:
        self._binned: Scores | None = None  # of the rows that were folded
        self._seen = 0  # their number
        self._sample: Rows | None = None  # of them

    def update(self, probability: Tensor, label: Tensor, weight: Tensor | None = None, first_row: int = 0) -> None:
        """Collect the rows of a batch; rows whose label is NaN are left out.

        Args:
            probability: (B,).
            label: (B,); labels above 0 are positive.
            weight: (B,), weight of each row; rows of weight 0 are left out.
            first_row: row number of the first row in the split.
        """
        self._collected.add(probability.detach().float(), label, weight, first_row)
        rows = self._collected.rows
        if rows >= self.exact_rows / 2 and rows + self._seen > self.exact_rows and not self._collected.not_finite:
            self._fold(self._collected.take_mine(bool))

    def _fold(self, rows: Rows) -> None:
        """Bin rows, and keep a sample of all rows so far that contains the sample of all rows of all ranks."""
        binned = Scores.binned(rows.probability, rows.label, rows.weight)
        self._binned = binned if self._binned is None else self._binned + binned
        self._seen += len(rows.place)
        before = self._sample or rows.take(np.zeros(0, np.int64))
        together = Rows.concat([before, rows])
        if len(before.place) and len(rows.place) and before.place[-1] > rows.place[0]:
            together = together.take(np.argsort(together.place))
        self._sample = together.take(sampled(self._keys(together.place), self.exact_rows / self._seen))

    def _keys(self, place: np.ndarray) -> np.ndarray:
        """Return the keys by which rows are sampled: their groups, or the rows themselves."""
        return place if self.groups is None else groups_at(self.groups, place)

    def compute(self) -> dict[str, float]:
        """Return the metrics of all rows, on every rank, and reset. Collective.

        Raises:
            NotFinite: a prediction is NaN or infinite; on all ranks.
        """
        try:
            mine = self._collected.take(bool)
        except NotFinite:
            self._reset()
            raise
        total = int(summed_over_ranks(np.array([self._seen + len(mine.place)]))[0])
        if exact := total <= self.exact_rows:
            rows, group = on_rank_0(mine, None if self.groups is None else self._keys(mine.place))
            self.scores = Scores.from_rows(rows.probability, rows.label, rows.weight) if rank() == 0 else None
        else:
            self._fold(mine)
            assert self._binned is not None and self._sample is not None
            self.scores = Scores(*(summed_over_ranks(c) for c in vars(self._binned).values()))
            keys = self._keys(self._sample.place)
            chosen = sampled(keys, self.exact_rows / total)
            rows, group = on_rank_0(self._sample.take(chosen), None if self.groups is None else keys[chosen])
        self._reset()
        self.rows = rows if rank() == 0 else None
        metrics: dict[str, float] = {}
        if rank() == 0:
            assert self.scores is not None
            metrics = metrics_of(self.scores, self.bins) | {"rows": total}
            if not exact:
                metrics |= {"auc_error": self.scores.auc()[1], "pr_auc_error": self.scores.pr_auc_error()}
            if group is not None:
                metrics["gauc"], metrics["gauc_rows"] = gauc(group, rows.probability, rows.label, rows.weight)
        return from_rank_0(metrics)


def sampled(keys: np.ndarray, share: float) -> np.ndarray:
    """Return a mask that selects about this share of the keys by a hash; equal keys are selected together."""
    hashed = mix(keys.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15))
    return hashed < np.uint64(min(share, 1.0) * (2**64 - 2**11))


def groups_at(groups: Callable[[int, int], np.ndarray], place: np.ndarray) -> np.ndarray:
    """Return the group of each row, (R,), of ascending row numbers in the split, (R,). groups: as in BinaryMetrics"""
    if not len(place):
        return np.zeros(0, np.int64)
    starts = np.arange(int(place[0]), int(place[-1]) + 1, BLOCK)
    blocks = np.split(place, np.searchsorted(place, starts[1:]))
    parts = [groups(int(p[0]), int(p[-1]) + 1)[p - p[0]] for p in blocks if len(p)]
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def undefined(metrics: Mapping[str, float]) -> str | None:
    """Return a line that names the metrics that are undefined because all rows have one label, or None."""
    if not math.isnan(metrics.get("auc", 0.0)):
        return None
    rows = int(metrics["rows"])
    if math.isnan(metrics["calibration"]):
        return f"auc, pr_auc, ne and calibration are undefined: no positives among {rows:,} rows"
    return f"auc and ne are undefined: no negatives among {rows:,} rows"
