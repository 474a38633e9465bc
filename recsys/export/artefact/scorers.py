"""Score all items of an artefact for queries: by a graph and item vectors, or by the arrays of a closed-form model."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from recsys.base.errors import UserError
from recsys.export.artefact.closed_form import METHODS
from recsys.export.artefact.folder import GRAPH, INDEX, SCORER, Artefact
from recsys.export.artefact.inputs import GraphInputs, graph_inputs
from recsys.export.artefact.session import open_session
from recsys.index import Index, load
from recsys.online.queries import Queries

ITEM_VECTORS = "tables/items.bin"
PAIRS = 1 << 16  # number of pairs that score.onnx scores in one call


class QueryScorer(Protocol):
    """Scores all N candidates, row 0 standing for unknown items."""

    def scores(self, queries: Queries) -> np.ndarray:
        """Return the scores (Q, N) of queries."""
        ...

    def queries(self, inputs: GraphInputs) -> np.ndarray:
        """Return the query vectors (rows, d). Raises UserError if the model has none."""
        ...

    def without_history(self) -> np.ndarray:
        """Return the scores (N,) if nothing is known of a user; equal scores list the most popular items."""
        ...


class VectorScorer:
    """Scores by the vectors of queries, from a graph, and of items.

    items: (N - 1, d) the vectors of the items that can be listed
    index: finds the best items of a query without scoring all, None if the artefact has no index
    """

    def __init__(self, artefact: Artefact, threads: int, *, exact: bool = False, device: str = "auto") -> None:
        about = artefact.about
        self._graph = open_session(artefact.folder / GRAPH, threads, device=device)
        self._names = {i.name for i in self._graph.get_inputs()}
        shape = (about["candidates"], about["width"])
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

    @property
    def multiplies(self) -> bool:
        """True if a score is the inner product of two vectors."""
        return self._pairs is None

    def vectors(self, queries: Queries) -> np.ndarray:
        """Return the query vectors (Q, d)."""
        return self.queries(graph_inputs(queries.arrays, queries.features, one_length=True))

    def scores(self, queries: Queries) -> np.ndarray:
        vectors = self.vectors(queries)
        if self._pairs is None:
            scores: np.ndarray = vectors @ self._items.T
            return scores
        return np.stack([self._score(v) for v in vectors])

    def _score(self, query: np.ndarray) -> np.ndarray:
        """Return the scores (N,) of one query (d,), a block of items at a time."""
        assert self._pairs is not None
        blocks = (self._items[at : at + PAIRS] for at in range(0, len(self._items), PAIRS))
        parts = [self._pairs.run(["scores"], {"query": query[None], "items": np.asarray(b)})[0][0] for b in blocks]
        return np.concatenate(parts)


class HistoryScorer:
    """Scores by the items of a history, with the arrays that a closed-form model was fitted to."""

    def __init__(self, artefact: Artefact) -> None:
        self._method = METHODS[artefact.about["method"]](artefact.folder, artefact.about["state"])
        self._candidates = artefact.about["candidates"]

    def queries(self, inputs: GraphInputs) -> np.ndarray:
        raise UserError("this model was fitted in closed form and has no query vectors")

    def scores(self, queries: Queries) -> np.ndarray:
        return np.stack([self._score(history) for history in queries.histories])

    def without_history(self) -> np.ndarray:
        return self._score(np.zeros(0, np.int64))

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
