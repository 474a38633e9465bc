"""Scores of models that were fitted in closed form, in numpy, equal to the scores of the classes in recsys.models.

A method maps the known items of a history (L,), oldest first, to the scores (N,) of all rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from recsys.data.features.arrays import places_of_ranges

STATE = "state"  # the folder of the arrays, NAME.npy

History = np.ndarray


def _arrays(folder: Path) -> dict[str, np.ndarray]:
    return {f.stem: np.load(f, mmap_mode="r", allow_pickle=False) for f in sorted((folder / STATE).glob("*.npy"))}


class PopularityScores:
    """The numbers of interactions of all items, whatever the history."""

    def __init__(self, folder: Path, options: Mapping[str, Any]) -> None:
        self._counts = _arrays(folder)["counts"].astype(np.float32)

    def __call__(self, history: History) -> np.ndarray:
        return self._counts


class EASEScores:
    """The sum of the weights' rows of the distinct items of a history."""

    def __init__(self, folder: Path, options: Mapping[str, Any]) -> None:
        self._weights = _arrays(folder)["weights"]

    def __call__(self, history: History) -> np.ndarray:
        items = np.unique(history[history < len(self._weights)])
        scores: np.ndarray = self._weights[items].sum(axis=0, dtype=np.float32)
        return scores


class ItemKNNScores:
    """The similarities of the nearest items of each distinct item of a history, added up."""

    def __init__(self, folder: Path, options: Mapping[str, Any]) -> None:
        own = _arrays(folder)
        self._neighbours, self._similarities = own["neighbours"], own["similarities"]

    def __call__(self, history: History) -> np.ndarray:
        rows = len(self._neighbours)
        items = np.unique(history[history < rows])
        near, weights = self._neighbours[items].ravel(), self._similarities[items].ravel()
        return np.bincount(near, weights, minlength=rows).astype(np.float32)


class GFCFScores:
    """A linear filter over the lists of the users that share an item, and a low-pass filter over all items."""

    def __init__(self, folder: Path, options: Mapping[str, Any]) -> None:
        own = _arrays(folder)
        self._items, self._item_starts = own["items"], own["item_starts"]
        self._users, self._user_starts = own["users"], own["user_starts"]
        self._vectors, self._low_pass = own["vectors"], options["low_pass"]
        self._of_user = np.sqrt(np.diff(self._item_starts))
        self._of_item = np.sqrt(np.diff(self._user_starts))

    def __call__(self, history: History) -> np.ndarray:
        items = np.unique(history[history < len(self._vectors)])
        items = items[self._of_item[items] > 0]
        weights = 1 / self._of_item[items]
        places, owner = _ranges(self._user_starts[items], self._user_starts[items + 1])
        users, place = np.unique(self._users[places], return_inverse=True)
        shared = np.bincount(place, weights[owner], minlength=len(users)) / self._of_user[users] ** 2
        places, owner = _ranges(self._item_starts[users], self._item_starts[users + 1])
        scores = np.bincount(self._items[places], shared[owner], minlength=len(self._vectors))
        scores = np.divide(scores, self._of_item, out=np.zeros_like(scores), where=self._of_item > 0)
        low = (weights @ self._vectors[items]) @ self._vectors.T * self._of_item
        return (scores + self._low_pass * low).astype(np.float32)


class SessionKNNScores:
    """The similarities of the nearest past sessions that contain an item, added up."""

    def __init__(self, folder: Path, options: Mapping[str, Any]) -> None:
        own = _arrays(folder)
        self._items, self._item_starts = own["items"], own["item_starts"]
        self._sessions, self._session_starts = own["sessions"], own["session_starts"]
        self._k, self._sample = options["k"], options["sample_size"]
        self._linear, self._cosine = options["linear"], options["cosine"]

    def __call__(self, history: History) -> np.ndarray:
        rows = len(self._session_starts) - 1
        scores = np.zeros(rows, np.float32)
        current = history[history < rows]
        if not len(current):
            return scores
        items, place = np.unique(current, return_inverse=True)
        last = np.zeros(len(items))
        np.maximum.at(last, place, np.arange(1, len(current) + 1))
        weights = last / len(current) if self._linear else np.ones(len(items))
        stop = self._session_starts[items + 1]
        begin = np.maximum(self._session_starts[items], stop - self._sample)
        places, owner = _ranges(begin, stop)
        sessions, shared = np.unique(self._sessions[places], return_inverse=True)
        similarity = np.bincount(shared, weights[owner], minlength=len(sessions))
        sessions, similarity = sessions[-self._sample :][::-1], similarity[-self._sample :][::-1]
        if self._cosine:
            lengths = self._item_starts[sessions + 1] - self._item_starts[sessions]
            similarity = similarity / (np.linalg.norm(weights) * np.sqrt(lengths.astype(np.float64)))
        order = np.argsort(-similarity.round(9), kind="stable")[: self._k]
        sessions, similarity = sessions[order], similarity[order].astype(np.float32)
        places, owner = _ranges(self._item_starts[sessions], self._item_starts[sessions + 1])
        np.add.at(scores, self._items[places], similarity[owner])
        return scores


def _ranges(begin: np.ndarray, stop: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Concatenate ranges of integers: begin (B,), stop (B,) -> the integers (P,), the range of each (P,)."""
    lengths = stop - begin
    return places_of_ranges(begin, lengths), np.repeat(np.arange(len(begin)), lengths)


METHODS: dict[str, Callable[[Path, Mapping[str, Any]], Callable[[History], np.ndarray]]] = {
    "Popularity": PopularityScores,
    "EASE": EASEScores,
    "GFCF": GFCFScores,
    "ItemKNN": ItemKNNScores,
    "SessionKNN": SessionKNNScores,
}
