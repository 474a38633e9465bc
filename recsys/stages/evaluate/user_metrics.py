"""Metrics of lists of items, user by user, and intervals of their means and differences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from recsys.batch import JaggedIds
from recsys.evaluation.list_metrics import ListMetrics, similarities
from recsys.evaluation.metrics_table import LISTS
from recsys.evaluation.retrieval_metrics import MISSED, query_metrics

ACCURACY = ("ndcg", "hr", "recall", "mrr")
Lists = Sequence[np.ndarray]  # for each user, items (m,) as numbers, best first


def by_user(lists: Lists, targets: Lists, k: int) -> dict[str, np.ndarray]:
    """Return (Q,) values of ndcg@k, hr@k, recall@k and mrr@k (see `query_metrics`).

    targets: for each of the Q users, at least one item
    """
    owner = np.repeat(np.arange(len(targets)), [len(t) for t in targets])
    ranks = []  # the number of items before each wanted one, MISSED for one that is not there
    for found, wanted in zip(lists, targets, strict=True):
        place = {int(item): rank for rank, item in enumerate(found[:k])}
        ranks.append(np.array([place.get(int(item), MISSED) for item in wanted], np.int64))
    greater = np.concatenate(ranks) if ranks else np.zeros(0, np.int64)
    values = query_metrics(owner, greater, np.zeros_like(greater), (k,))
    return {f"{name}@{k}": values[f"{name}@{k}"] for name in ACCURACY}


def recall(lists: Lists, targets: Lists) -> np.ndarray:
    """Return the share of each user's targets that a list has, (Q,)."""
    pairs = zip(lists, targets, strict=True)
    return np.array([np.isin(wanted, found).mean() for found, wanted in pairs])


def of_lists(
    lists: Lists, histories: Lists, counts: np.ndarray, vectors: np.ndarray | None, k: int
) -> dict[str, float]:
    """Return coverage, Gini, novelty, diversity and popularity lift of lists (see `ListMetrics`).

    counts: (n,) how often each item of the catalogue was chosen before
    vectors: (n, d) vectors of the items, for the diversity within lists; None leaves it out
    """
    names = tuple(n for n in LISTS if n != "diversity" or vectors is not None)
    metrics = ListMetrics(names, (k,), np.append(0, counts))
    padded = np.full((len(lists), k), -1, np.int64)
    for row, items in zip(padded, lists, strict=True):
        row[: len(items[:k])] = items[:k] + 1  # candidates are numbered from 1
    known = [h[h >= 0] + 1 for h in histories]
    history = JaggedIds(torch.from_numpy(np.concatenate(known)), torch.tensor([len(h) for h in known]))
    table = torch.from_numpy(padded)
    same = None
    if vectors is not None and k > 1:
        with_unknown = torch.from_numpy(np.vstack([np.zeros((1, vectors.shape[1]), np.float32), vectors]))
        same = similarities(table, with_unknown, (k,), len(counts) + 1)
    metrics.update(table, history, same)
    return metrics.compute()


def interval(values: np.ndarray, resamples: int, seed: int) -> dict[str, float]:
    """Return the mean of (Q,) values and its 95 % interval: percentiles of resamples of the users (bootstrap).

    For differences of paired values the interval is that of the paired difference.
    """
    rng = np.random.default_rng(seed)
    means = np.array([values[rng.integers(0, len(values), len(values))].mean() for _ in range(resamples)])
    low, high = np.percentile(means, [2.5, 97.5])
    return {"mean": float(values.mean()), "low": float(low), "high": float(high)}


def means(values: Mapping[str, np.ndarray]) -> dict[str, float]:
    """Return the mean of each metric."""
    return {name: float(v.mean()) for name, v in values.items()}
