"""Score all items of an artefact for queries: by a graph and item vectors, or by the arrays of a closed-form model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from recsys.base.errors import UserError
from recsys.data.features.arrays import places_of_ranges
from recsys.export.artefact.folder import GRAPH, INDEX, SCORER, Artefact
from recsys.export.artefact.graph_io import GraphInputs, graph_inputs, open_session
from recsys.index import Index, load
from recsys.index.cosines import Cosines
from recsys.index.protocol import equal_rows
from recsys.online.queries import Queries
from recsys.online.query_parameters import NOT_RELATED

SCORER_STATE = "state"  # the folder of the arrays, NAME.npy

History = np.ndarray  # of candidates
ITEM_VECTORS = "tables/items.bin"
PAIRS = 1 << 16  # number of pairs that score.onnx scores in one call


def _in_table(history: History, rows: int) -> np.ndarray:
    """Return the candidates of a history that have a row of their own in an item table of `rows` rows."""
    known: np.ndarray = history[(history > 0) & (history < rows)]
    return known


def _arrays(folder: Path) -> dict[str, np.ndarray]:
    files = sorted((folder / SCORER_STATE).glob("*.npy"))
    return {f.stem: np.load(f, mmap_mode="r", allow_pickle=False) for f in files}


class HistoryScores(ABC):
    """The scores of all items for the items of a history. relates_items: as in `ClosedFormModel`"""

    relates_items = True

    @abstractmethod
    def __call__(self, history: History) -> np.ndarray:
        """Return the scores (N,)."""


class PopularityScores(HistoryScores):
    """The numbers of interactions of all items, whatever the history."""

    relates_items = False

    def __init__(self, folder: Path, options: Mapping[str, Any]) -> None:
        self._counts = _arrays(folder)["counts"].astype(np.float32)

    def __call__(self, history: History) -> np.ndarray:
        return self._counts


class EASEScores(HistoryScores):
    """The sum of the weights' rows of the distinct items of a history."""

    def __init__(self, folder: Path, options: Mapping[str, Any]) -> None:
        self._weights = _arrays(folder)["weights"]

    def __call__(self, history: History) -> np.ndarray:
        items = np.unique(_in_table(history, len(self._weights)))
        scores: np.ndarray = self._weights[items].sum(axis=0, dtype=np.float32)
        return scores


class ItemKNNScores(HistoryScores):
    """The similarities of the nearest items of each distinct item of a history, added up."""

    def __init__(self, folder: Path, options: Mapping[str, Any]) -> None:
        own = _arrays(folder)
        self._neighbours, self._similarities = own["neighbours"], own["similarities"]

    def __call__(self, history: History) -> np.ndarray:
        rows = len(self._neighbours)
        items = np.unique(_in_table(history, rows))
        near, weights = self._neighbours[items].ravel(), self._similarities[items].ravel()
        return np.bincount(near, weights, minlength=rows).astype(np.float32)


class GFCFScores(HistoryScores):
    """A linear filter over the lists of the users that share an item, and a low-pass filter over all items."""

    def __init__(self, folder: Path, options: Mapping[str, Any]) -> None:
        own = _arrays(folder)
        self._items, self._item_starts = own["items"], own["item_starts"]
        self._users, self._user_starts = own["users"], own["user_starts"]
        self._vectors, self._low_pass = own["vectors"], options["low_pass"]
        self._of_user = np.sqrt(np.diff(self._item_starts))
        self._of_item = np.sqrt(np.diff(self._user_starts))

    def __call__(self, history: History) -> np.ndarray:
        items = np.unique(_in_table(history, len(self._vectors)))
        items = items[self._of_item[items] > 0]
        weights = 1 / self._of_item[items]
        places, owner = _ranges(self._user_starts[items], self._user_starts[items + 1])
        users, place = np.unique(self._users[places], return_inverse=True)
        shared = np.bincount(place, weights[owner], minlength=len(users)) / self._of_user[users] ** 2
        places, owner = _ranges(self._item_starts[users], self._item_starts[users + 1])
        scores = np.bincount(self._items[places], shared[owner], minlength=len(self._vectors)).astype(np.float64)
        scores = np.divide(scores, self._of_item, out=np.zeros_like(scores), where=self._of_item > 0)
        low = (weights @ self._vectors[items]) @ self._vectors.T * self._of_item
        return (scores + self._low_pass * low).astype(np.float32)


class ChebyCFScores(GFCFScores):
    """A polynomial of the graph of items, by Clenshaw's recurrence, and a low-pass filter over all items."""

    def __init__(self, folder: Path, options: Mapping[str, Any]) -> None:
        super().__init__(folder, options)
        self._coefficients = _arrays(folder)["coefficients"].astype(np.float64)
        lists, users, degree = np.diff(self._item_starts), np.diff(self._user_starts), options["degree"]
        self._of_pair = 1 / (np.repeat(self._of_user, lists) * self._of_item[self._items])  # in the order of users
        self._of_pair_by_item = 1 / (np.repeat(self._of_item, users) * self._of_user[self._users])
        self._before, self._after = (np.where(users > 0, np.maximum(users, 1.0) ** d, 0) for d in (-degree, degree))

    def __call__(self, history: History) -> np.ndarray:
        items = np.unique(_in_table(history, len(self._vectors)))
        signal = np.bincount(items, self._before[items], len(self._vectors))
        later, last = np.zeros_like(signal), np.zeros_like(signal)
        for c in self._coefficients[:0:-1]:
            later, last = c * signal + 2 * self._shifted(later) - last, later
        low = self._low_pass * (signal[items] @ self._vectors[items]) @ self._vectors.T
        return ((self._coefficients[0] * signal + self._shifted(later) - last + low) * self._after).astype(np.float32)

    def _shifted(self, signal: np.ndarray) -> np.ndarray:
        users = _sums(signal[self._items] * self._of_pair, self._item_starts)
        return signal - 2 * _sums(users[self._users] * self._of_pair_by_item, self._user_starts)


class SessionKNNScores(HistoryScores):
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
        current = _in_table(history, rows)
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


class SLIMScores(HistoryScores):
    """The weights of the distinct items of a history, added up."""

    def __init__(self, folder: Path, options: Mapping[str, Any]) -> None:
        own = _arrays(folder)
        self._item_starts, self._others, self._weights = own["item_starts"], own["others"], own["weights"]

    def __call__(self, history: History) -> np.ndarray:
        rows = len(self._item_starts) - 1
        items = np.unique(_in_table(history, rows))
        places, _ = _ranges(self._item_starts[items], self._item_starts[items + 1])
        return np.bincount(self._others[places], self._weights[places], minlength=rows).astype(np.float32)


class TransitionScores(HistoryScores):
    """The shares of the transitions from the last items of a history, directly or over a few hops."""

    def __init__(self, folder: Path, options: Mapping[str, Any]) -> None:
        own = _arrays(folder)
        self._item_starts, self._followers, self._shares = own["item_starts"], own["followers"], own["shares"]
        self._items, self._hops = options["last"], options["hops"]
        self._item_weight, self._hop_weight = options["item_weight"], options["hop_weight"]

    def __call__(self, history: History) -> np.ndarray:
        rows = len(self._item_starts) - 1
        last = _in_table(history, rows)[::-1][: self._items]
        reached = np.bincount(last, self._item_weight ** np.arange(len(last)), minlength=rows)
        scores = np.zeros(rows)
        for hop in range(self._hops):
            items = np.flatnonzero(reached)
            places, owner = _ranges(self._item_starts[items], self._item_starts[items + 1])
            weights = reached[items][owner] * self._shares[places]
            reached = np.bincount(self._followers[places], weights, minlength=rows)
            scores += self._hop_weight**hop * reached
        return scores.astype(np.float32)


class IALSScores(HistoryScores):
    """Inner products of the items' vectors and the vector that is best for the distinct items of a history."""

    def __init__(self, folder: Path, options: Mapping[str, Any]) -> None:
        own = _arrays(folder)
        self._vectors = own["vectors"]
        self._unobserved = options.get("unobserved_weight") or float(own["weight"])
        self._gram, self._l2, self._power = self._unobserved * own["gram"], options["l2"], options["power"]

    def __call__(self, history: History) -> np.ndarray:
        rows = len(self._vectors)
        items = np.unique(_in_table(history, rows))
        if not len(items):
            return np.zeros(rows, np.float32)
        chosen = self._vectors[items]
        l2 = self._l2 * (len(items) + self._unobserved * (rows - 1)) ** self._power
        left = self._gram + chosen.T @ chosen + l2 * np.eye(chosen.shape[1], dtype=np.float32)
        scores: np.ndarray = self._vectors @ np.linalg.solve(left, chosen.sum(axis=0))
        return scores.astype(np.float32)


def _sums(values: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Return the sums (B,) of consecutive lists of values: starts (B + 1,)."""
    return np.diff(np.append(0.0, np.cumsum(values))[starts])


def _ranges(begin: np.ndarray, stop: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Concatenate ranges of integers: begin (B,), stop (B,) -> the integers (P,), the range of each (P,)."""
    lengths = stop - begin
    return places_of_ranges(begin, lengths), np.repeat(np.arange(len(begin)), lengths)


SCORERS: dict[str, Callable[[Path, Mapping[str, Any]], HistoryScores]] = {
    "Popularity": PopularityScores,
    "EASE": EASEScores,
    "ChebyCF": ChebyCFScores,
    "GFCF": GFCFScores,
    "ItemKNN": ItemKNNScores,
    "IALS": IALSScores,
    "SessionKNN": SessionKNNScores,
    "SLIM": SLIMScores,
    "Transition": TransitionScores,
}


class QueryScorer(Protocol):
    """Scores all N candidates, row 0 standing for unknown items. relates_items: as in `ClosedFormModel`"""

    relates_items: bool

    def scores(self, queries: Queries) -> np.ndarray:
        """Return the scores (Q, N) of queries."""
        ...

    def queries(self, inputs: GraphInputs) -> np.ndarray:
        """Return the query vectors (rows, d). Raises UserError if the model has none."""
        ...

    def without_history(self) -> np.ndarray:
        """Return the scores (N,) if nothing is known of a user; equal scores list the most popular items."""
        ...

    def similar(self, item: int) -> np.ndarray:
        """Return how like an item all are, (N,). Raises UserError if the model does not say."""
        ...


class VectorScorer:
    """Scores by the vectors of queries, from a graph, and of items.

    items: (N - 1, d) the vectors of the items that can be listed
    index: finds the best items of a query without scoring all, None if the artefact has no index

    A query of a model of several interests is their vectors, one after another: (Q, K d). A score is the largest
    product with one of them.
    """

    relates_items = True

    def __init__(self, artefact: Artefact, threads: int, *, exact: bool = False, device: str = "auto") -> None:
        about = artefact.about
        self._graph = open_session(artefact.folder / GRAPH, threads, device=device)
        self._names = {i.name for i in self._graph.get_inputs()}
        shape = (about["candidates"], about["width"])
        self._interests = about.get("interests", 1)
        self._items = np.memmap(artefact.folder / ITEM_VECTORS, np.float32, "r", shape=shape)
        self.items: np.ndarray = self._items[1 : 1 + about["items"]]  # those that can be listed
        file = artefact.folder / SCORER
        self._pairs = open_session(file, threads, device=device) if file.is_file() else None
        self.index: Index | None = None
        if about.get("index") and not exact:
            places = artefact.folder / INDEX
            self.index = load(places, vectors=self.items, threads=threads, digests=False)

    def queries(self, inputs: GraphInputs) -> np.ndarray:
        feed = {n: x for n, x in inputs.feed.items() if n in self._names}
        vectors: np.ndarray = self._graph.run(["query"], feed)[0]
        return vectors

    def without_history(self) -> np.ndarray:
        return np.zeros(len(self._items), np.float32)

    def similar(self, item: int) -> np.ndarray:
        return self._cosines(item)

    @cached_property
    def _cosines(self) -> Cosines:
        return Cosines(self._items, self._equal)

    @property
    def multiplies(self) -> bool:
        """True if a score is the inner product of two vectors, or the largest of several."""
        return self._pairs is None

    def vectors(self, queries: Queries) -> np.ndarray:
        """Return the query vectors (Q, d), or (Q, K d) for K interests."""
        return self.queries(graph_inputs(queries.arrays, queries.features, one_length=True))

    def scores(self, queries: Queries) -> np.ndarray:
        vectors = self.vectors(queries)
        if self._pairs is None:
            parts = np.split(vectors, self._interests, axis=1)
            scores: np.ndarray = parts[0] @ self._items.T
            for interest in parts[1:]:
                np.maximum(scores, interest @ self._items.T, out=scores)
        else:
            scores = np.stack([self._score(v) for v in vectors])
        later, first = self._equal
        scores[:, later] = scores[:, first]
        return scores

    @cached_property
    def _equal(self) -> tuple[np.ndarray, np.ndarray]:
        return equal_rows(self._items)

    def search(self, query: np.ndarray, k: int, *, exact: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Return at least the k best items that the index finds for one query, and their scores, best first."""
        assert self.index is not None
        interests = query.reshape(self._interests, -1)
        items, scores = self.index.search(interests, k, exact=exact)
        if len(interests) == 1:
            return items[0][items[0] >= 0], scores[0][items[0] >= 0]
        found = np.unique(items[items >= 0])  # another interest's search may have missed an item that it scores higher
        products = np.einsum("nd,qd->qn", self.items[found], interests).max(0)  # rounds by the vector, not by its place
        order = np.argsort(-products, kind="stable")
        return found[order], products[order]

    def _score(self, query: np.ndarray) -> np.ndarray:
        """Return the scores (N,) of one query (d,), a block of items at a time."""
        assert self._pairs is not None
        blocks = (self._items[at : at + PAIRS] for at in range(0, len(self._items), PAIRS))
        parts = [self._pairs.run(["scores"], {"query": query[None], "items": np.asarray(b)})[0][0] for b in blocks]
        return np.concatenate(parts)


class HistoryScorer:
    """Scores by the items of a history, with the arrays that a closed-form model was fitted to."""

    def __init__(self, artefact: Artefact) -> None:
        self._method = SCORERS[artefact.about["method"]](artefact.folder, artefact.about["state"])
        self.relates_items = self._method.relates_items
        self._candidates = artefact.about["candidates"]

    def queries(self, inputs: GraphInputs) -> np.ndarray:
        raise UserError("this model was fitted in closed form and has no query vectors")

    def scores(self, queries: Queries) -> np.ndarray:
        return np.stack([self._score(history) for history in queries.histories])

    def without_history(self) -> np.ndarray:
        return self._score(np.zeros(0, np.int64))

    def similar(self, item: int) -> np.ndarray:
        if not self.relates_items:
            raise UserError(NOT_RELATED)
        return self._score(np.array([item]))

    def _score(self, history: np.ndarray) -> np.ndarray:
        scores = self._method(history)
        return np.pad(
            scores, (0, self._candidates - len(scores)), constant_values=-np.inf
        )  # those it was not fitted to


def scorer_of(artefact: Artefact, threads: int, *, exact: bool = False, device: str = "auto") -> QueryScorer:
    """Return the scorer of a retrieval artefact. exact: whether to leave out its index"""
    if artefact.about.get("method"):
        return HistoryScorer(artefact)
    return VectorScorer(artefact, threads, exact=exact, device=device)
