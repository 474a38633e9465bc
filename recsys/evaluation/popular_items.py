"""Metrics of the list of the most popular items, which any trained model should exceed."""

import numpy as np

from recsys.batch import JaggedIds
from recsys.evaluation.retrieval_metrics import MISSED, ranking_metrics


class PopularItems:
    """Ranks targets among all candidates by the candidates' counts in the training data.

    Args:
        popularity: (N,) counts. Candidates are 1 ... N - 1.
        filter_history: whether to leave out the items of a query's history, except for targets.
    """

    def __init__(self, popularity: np.ndarray, *, filter_history: bool) -> None:
        self.popularity, self.filter_history = popularity, filter_history
        self._counts = np.sort(popularity[1:])
        self._query: list[int] = []
        self._greater: list[int] = []
        self._ties: list[int] = []
        self.queries = 0

    def update(self, targets: JaggedIds, history: JaggedIds) -> None:
        """Add B queries: B lists of targets each, and B lists of their histories."""
        wanted, known = (np.split(x.values.numpy(), x.lengths.cumsum(0).numpy()[:-1]) for x in (targets, history))
        for own, seen in zip(wanted, known, strict=True):
            items = np.append(np.unique(own[own != 0]), own[own == 0])  # unknown items may differ
            is_known = (items > 0) & (items < len(self.popularity))
            left_out = np.setdiff1d(seen[(seen > 0) & (seen < len(self.popularity))], items)
            excluded = np.sort(self.popularity[left_out if self.filter_history else left_out[:0]])
            counts = self.popularity[np.where(is_known, items, 0)]
            greater = _above(self._counts, counts) - _above(excluded, counts)
            ties = _equal(self._counts, counts) - _equal(excluded, counts) - 1
            self._query.extend([self.queries] * len(items))
            self._greater.extend(np.where(is_known, greater, MISSED).tolist())
            self._ties.extend(np.where(is_known, ties, 0).tolist())
            self.queries += 1

    def metrics(self, k: tuple[int, ...]) -> dict[str, float]:
        """Return the metrics of all queries. k: lengths of lists"""
        return ranking_metrics(np.array(self._query), np.array(self._greater), np.array(self._ties), k)


def _above(ascending: np.ndarray, counts: np.ndarray) -> np.ndarray:
    return len(ascending) - np.searchsorted(ascending, counts, side="right")


def _equal(ascending: np.ndarray, counts: np.ndarray) -> np.ndarray:
    return np.searchsorted(ascending, counts, side="right") - np.searchsorted(ascending, counts, side="left")
