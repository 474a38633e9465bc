"""Make one list of the candidates of several sources; their scores and ranks are columns for a ranking model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from pydantic import NonNegativeFloat

from recsys.stages.sources import Found

SCORE, RANK = "_score", "_rank"  # behind the name of a source


class Merge(ABC):
    """Gives each candidate of some lists a score; the highest come first."""

    def __call__(self, lists: Sequence[Found], weights: Sequence[float], k: int) -> Found:
        """Return the best k items of all lists, each once, and their scores; equal scores in the lists' order."""
        items = np.concatenate([found for found, _ in lists])
        names, first, place = np.unique(items, return_index=True, return_inverse=True)
        scores = np.zeros(len(names))
        start = 0
        for number, ((found, theirs), weight) in enumerate(zip(lists, weights, strict=True)):
            stop = start + len(found)
            if len(found):
                np.add.at(scores, place[start:stop], self.scores(theirs, weight, number, len(lists)))
            start = stop
        order = np.lexsort((first, -scores))[:k]
        return names[order], scores[order]

    @abstractmethod
    def scores(self, scores: np.ndarray, weight: float, number: int, sources: int) -> np.ndarray:
        """Return the scores (n,) that a list adds to its items, best first.

        Args:
            scores: (n,) the scores of the list's items.
            number: number of the list, from 0.
        """


class ReciprocalRank(Merge):
    """Reciprocal rank fusion: the sum over lists of weight / (c + rank) (Cormack, Clarke & Buettcher, SIGIR 2009).

    Args:
        c: lowers the lead of the first ranks.
    """

    def __init__(self, c: NonNegativeFloat = 60.0) -> None:
        self._c = c

    def scores(self, scores: np.ndarray, weight: float, number: int, sources: int) -> np.ndarray:
        return weight / (self._c + 1 + np.arange(len(scores)))


class Weighted(Merge):
    """The sum over lists of weight times the score, scaled to 0 ... 1 within the list."""

    def scores(self, scores: np.ndarray, weight: float, number: int, sources: int) -> np.ndarray:
        low, high = scores.min(), scores.max()
        scaled: np.ndarray = weight * (1 + (scores - low) / (high - low or 1.0)) / 2  # the last of a list counts, too
        return scaled


class RoundRobin(Merge):
    """The first of each list, then the second of each, and so on; an item keeps its best place."""

    def __call__(self, lists: Sequence[Found], weights: Sequence[float], k: int) -> Found:
        items = np.concatenate([found for found, _ in lists])
        turn = np.concatenate([np.arange(len(found)) for found, _ in lists])
        number = np.repeat(np.arange(len(lists)), [len(found) for found, _ in lists])
        order = items[np.lexsort((number, turn))]
        _, first = np.unique(order, return_index=True)
        merged = order[np.sort(first)[:k]]
        return merged, -np.arange(len(merged), dtype=np.float64)

    def scores(self, scores: np.ndarray, weight: float, number: int, sources: int) -> np.ndarray:
        raise AssertionError("places decide")


def column_names(sources: Iterable[str]) -> list[str]:
    """Return the names of the columns of some sources."""
    return [f"{name}{what}" for name in sources for what in (SCORE, RANK)]


class Retrieved:
    """The scores and ranks that sources gave to candidates.

    found: the candidates of each source, best first
    items: (n,) the candidates that are looked at
    """

    def __init__(self, found: Mapping[str, Found], items: np.ndarray) -> None:
        self._found, self.items = found, items

    def column(self, name: str) -> np.ndarray:
        """Return a column (n,) float64, NaN for candidates that the source did not list; ranks begin with 1."""
        what = RANK if name.endswith(RANK) else SCORE
        items, scores = self._found[name.removesuffix(what)]
        values = np.full(len(self.items), np.nan)
        if len(items):
            order = np.argsort(items)
            at = order[np.minimum(np.searchsorted(items, self.items, sorter=order), len(items) - 1)]
            known = items[at] == self.items
            given = scores if what == SCORE else np.arange(1, len(items) + 1, dtype=np.float64)
            values[known] = given[at[known]]
        return values
