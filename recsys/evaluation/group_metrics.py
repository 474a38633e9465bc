"""Metrics of the order of rows within groups, such as the documents of a query."""

import math
from collections.abc import Sequence

import numpy as np

from recsys.base.ranges import MAX_GRADE


def group_metrics(
    group: np.ndarray, score: np.ndarray, label: np.ndarray, ks: Sequence[int], weight: np.ndarray | None = None
) -> dict[str, float]:
    """Return gndcg@k and gmrr@k: the means over groups of NDCG@k and of the reciprocal rank of the best relevant row.

    NDCG@k has the gains 2^label - 1 and discounts log2(1 + rank) (Burges et al. 2005). Rows with equal scores share the
    mean of their gains, as in scikit-learn's ndcg_score (McSherry & Najork 2008), and count half for each other in a
    rank. A row is relevant if its label is above 0. Groups without a relevant row are omitted, and with weights a group
    counts by the mean weight of its rows. `groups` is the number of groups that remain. NDCG is NaN if a label is
    negative or above 30; all are NaN if no group remains. The parameters are those of `group_values`.

    >>> group_metrics(np.array([1, 1, 2, 2]), np.array([0.9, 0.1, 0.2, 0.3]), np.array([1, 0, 1, 0]), ks=[1])
    {'gndcg@1': 0.5, 'gmrr@1': 0.5, 'groups': 2}
    """
    values, share = group_values(group, score, label, ks, weight)
    kept = share > 0
    total = share.sum()
    means = {name: float((x * share).sum() / total) if total else math.nan for name, x in values.items()}
    return means | {"groups": int(kept.sum())}


def group_values(
    group: np.ndarray, score: np.ndarray, label: np.ndarray, ks: Sequence[int], weight: np.ndarray | None = None
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return the metrics of groups, (G,) by name, and the weight (G,) with which they count, 0 without a relevant row.

    Groups are in ascending order.

    Args:
        group: (R,) the group of each row.
        score: (R,) predictions, by which the rows of a group are ranked.
        label: (R,) labels; a row is relevant if its label is above 0.
        ks: values of k of the metrics.
        weight: (R,) weights; None gives each row the weight 1.
    """
    label = label.astype(np.float64)
    order = np.lexsort((-score.astype(np.float64), group))
    group, score, label = group[order], score[order], label[order]
    new = np.append(True, group[1:] != group[:-1])[: len(group)]
    first = np.flatnonzero(new)
    if not len(first):
        return {f"{name}@{k}": np.zeros(0) for name in ("gndcg", "gmrr") for k in ks}, np.zeros(0)
    owner = np.cumsum(new) - 1
    total = lambda x: np.add.reduceat(x, first)  # noqa: E731
    place = np.arange(len(group)) - first[owner]  # ranks from 0
    share = (total(label > 0) > 0).astype(np.float64)
    if weight is not None:
        share *= total(weight[order].astype(np.float64)) / total(np.ones(len(group)))
    graded = bool(label.min() >= 0 and label.max() <= MAX_GRADE)
    gains = np.exp2(np.clip(label, 0, MAX_GRADE)) - 1
    ideal = gains[np.lexsort((-gains, owner))]
    # gains shared by rows of equal score
    tied = np.flatnonzero(new | np.append(True, score[1:] != score[:-1])[: len(score)])
    sizes = np.diff(np.append(tied, len(score)))
    shared = np.repeat(np.add.reduceat(gains, tied) / sizes, sizes)
    values = {}
    for k in ks:
        discount = np.where(place < k, 1 / np.log2(2 + place), 0.0)
        best = total(ideal * discount)
        values[f"gndcg@{k}"] = total(shared * discount) / np.where(best > 0, best, 1) if graded else best * math.nan
    middle = np.repeat(place[tied] + (sizes + 1) / 2, sizes)  # mean rank of the rows of equal score
    rank = np.minimum.reduceat(np.where(label > 0, middle, np.inf), first)
    for k in ks:
        values[f"gmrr@{k}"] = np.where(rank <= k, 1 / rank, 0.0)
    return values, share
