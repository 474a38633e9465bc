"""A retrieval model of an artefact: raw rows of a history in, the best items out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import polars as pl

from recsys.base.errors import UserError, did_you_mean
from recsys.data.features import GROUP, Fitted
from recsys.data.features.blocks import LINE, ORDER
from recsys.export.artefact.folder import Artefact
from recsys.export.artefact.graph_io import GraphInputs, apart, check_feed, graph_inputs, longest_lists
from recsys.export.artefact.scorers import VectorScorer, scorer_of
from recsys.files.text_values import text_of
from recsys.index.protocol import highest
from recsys.online.fast_queries import FastQueries
from recsys.online.queries import Queries, in_batches
from recsys.online.queries import unknown_item as missing_item
from recsys.online.query_parameters import unknown_candidates, unknown_item
from recsys.online.raw_rows import RowFrames
from recsys.online.row_transforms import UNUSUAL
from recsys.online.servable import Outputs, Query, Row

Found = tuple[np.ndarray, np.ndarray]  # places of items (n,), best first, and their scores (n,)
BLOCK = 1 << 24  # largest number of scores in memory


class ServedRetrieval:
    """A Servable that lists the best items for a history. Threads may share it."""

    kind: Literal["retrieval"] = "retrieval"
    unit = "query"  # of a recorded example
    context: tuple[str, ...] = ()
    rows_depend_on_others = True

    def __init__(
        self,
        artefact: Artefact,
        threads: int = 1,
        before: Fitted | None = None,
        *,
        exact: bool = False,
        device: str = "auto",
    ) -> None:
        self.name, self.version = artefact.name, str(artefact.about["version"])
        self.inputs, self.tensors, self.outputs = artefact.specs
        self._frames = RowFrames(artefact.raw_rows(before))
        self.columns, examples = self._frames.names, artefact.examples()
        self.example: list[Row] = examples[0] if examples else []
        self.fitted, self._types = self._frames.fitted, self._frames.rows.types
        self._fast = FastQueries.from_frames(self._frames)
        self._scorer = scorer_of(artefact, threads, exact=exact, device=device)
        self._index = self._scorer.index if isinstance(self._scorer, VectorScorer) else None
        about = artefact.about
        self._k, self._filter, self._items = about["k"], about["filter_history"], about["items"]
        data = self.fitted.data
        assert data.group is not None and data.item_feature is not None
        self._item = data.sparse_columns[data.item_feature].column
        self._group, self._order = data.group.by, data.group.order
        self._candidates = self.fitted.candidates
        self._item_column = next(c for c in self._frames.columns if c.name == self._item)
        self.item_type = self._types.get(self._item, pl.String())  # in raw rows
        self._unknown_item = missing_item(self.item_type)
        if not self._items < about["candidates"] or self._items > len(self._candidates):
            raise ValueError(f"{self._items} items of {len(self._candidates)}, and {about['candidates']} candidates")

    def check_example(self) -> None:
        """Raise an error of any class if the recorded example has no answer."""
        self.recommend([Query(self.example)])

    def differences(self, recorded: Mapping[str, Any]) -> np.ndarray:
        """Return the largest difference of the scores of each query, infinity if it lists other items, (queries,)."""
        queries = [Query(rows, recorded["k"]) for rows in recorded["rows"]]
        differences = []
        for (items, scores), expected in zip(self.recommend(queries), recorded["outputs"], strict=True):
            wanted = np.asarray(expected["scores"], np.float32)
            same = len(scores) == len(wanted) and same_items(items, expected["items"], wanted)
            differences.append(np.max(apart(np.asarray(scores, np.float32), wanted), initial=0.0) if same else np.inf)
        return np.asarray(differences)

    @property
    def names(self) -> pl.Series:
        """The items that can be listed, (n,) String; an item's place here is its number."""
        return self._candidates[: self._items]

    @property
    def vectors(self) -> np.ndarray | None:
        """The vectors (n, d) of the items in `names`, or None for a model without vectors."""
        return self._scorer.items if isinstance(self._scorer, VectorScorer) else None

    @property
    def relates_items(self) -> bool:
        """True if the model can list the items most like one."""
        return self._scorer.relates_items

    @property
    def longest_history(self) -> int | None:
        """The number of last rows of a history that the model reads; None if it may read all."""
        data = self.fitted.data
        closed_form = not isinstance(self._scorer, VectorScorer)
        if closed_form or data.sequences is None or data.where is not None:
            return None
        return data.sequences.max_length

    def recommend(self, queries: Sequence[Query]) -> list[tuple[list[Any], list[float]]]:
        """Return items and scores of each query, best first.

        Raises UserError for a row that cannot be read or lacks the item, a k that is out of range, and candidates that
        are all unknown.
        """
        for query in queries:
            for i, row in enumerate(query.rows):
                if not any(key in row for key in self._item_column.keys):
                    name = self._item_column.keys[0]
                    hint = f'; for a user without items, send {{"{name}": null, ...}}'
                    hint = near if "did you mean" in (near := did_you_mean(name, row)) else hint
                    raise UserError(f"history[{i}]: has no column {name}{hint}")
        answers = []
        for places, scores in self.find(queries):
            names = self._candidates[places]
            named = names if self.item_type == pl.String else names.cast(self.item_type, strict=False)
            answers.append((named.to_list(), scores.tolist()))
        return answers

    def find(self, queries: Sequence[Query]) -> list[Found]:
        """Return the items and scores of each query, best first; see `recommend`. Items are places in `names`."""
        candidates: list[np.ndarray | None] = []  # places of the candidates that each query names
        for query in queries:
            if query.k is not None and query.k < 1:
                raise UserError(f"k={query.k}: must be at least 1")
            places = None if query.candidates is None else self._places(query.candidates)
            if query.candidates and places is not None and not len(places):
                raise unknown_candidates(query.candidates)
            candidates.append(places)
        if not queries:
            return []
        of_items = {i: self._similar(q, candidates[i]) for i, q in enumerate(queries) if q.item is not None}
        of_histories = [i for i in range(len(queries)) if i not in of_items]
        lists, chosen = of_items, [queries[i] for i in of_histories]
        if chosen:
            found = self._lists(chosen, [candidates[i] for i in of_histories])
            lists = of_items | {of_histories[i]: own for i, own in found}
        for i, query in enumerate(queries):
            if i not in lists:  # data.where filters its rows out: the most popular items
                scores = self._scorer.without_history()[1 : 1 + self._items].copy()
                lists[i] = self._best(query, candidates[i], scores, np.zeros(0, np.int64))
        return [lists[i] for i in range(len(queries))]

    def _similar(self, query: Query, candidates: np.ndarray | None) -> Found:
        """Return the items most like the one that a query names."""
        places = self._places([query.item])
        if not len(places):
            raise unknown_item(query.item, self.names.head(1).to_list())
        scores = self._scorer.similar(int(places[0]) + 1)[1 : 1 + self._items].copy()
        return self._best(replace(query, filter_history=True), candidates, scores, places + 1)

    def _lists(self, queries: Sequence[Query], candidates: Sequence[np.ndarray | None]) -> Iterator[tuple[int, Found]]:
        """Yield the place and the list of each query that was made of at least one row."""
        for made in self._made(queries):
            places = [int(group) for group in made.groups]
            if self._index is None or any(candidates[place] is not None for place in places):
                for place, row, history in zip(places, self._scorer.scores(made), made.histories, strict=True):
                    scores = row[1 : 1 + self._items].copy()
                    yield place, self._best(queries[place], candidates[place], scores, history)
                continue
            assert isinstance(self._scorer, VectorScorer)
            for place, vector, history in zip(places, self._scorer.vectors(made), made.histories, strict=True):
                left_out = self._left_out(queries[place], history)
                k = min(queries[place].k or self._k, self._items - len(left_out))
                items, scores = _without(left_out, *self._scorer.search(vector, max(1, k + len(left_out))))
                if len(items) < k:  # the search did not come by so many
                    items, scores = _without(left_out, *self._scorer.search(vector, k + len(left_out), exact=True))
                yield place, (items[:k], scores[:k])

    def _made(self, queries: Sequence[Query]) -> Iterable[Queries]:
        """Turn the queries into batches of inputs for the scorer."""
        size = max(1, BLOCK // (1 + self._items))
        if self._fast is not None:
            with suppress(*UNUSUAL):  # polars reads the rows, or says what is wrong with them
                return [self._fast(*self._completed(queries, i, i + size)) for i in range(0, len(queries), size)]
        rows, owner, unordered = self._completed(queries)
        parsed = self._frames.parsed(rows, past=True)
        lines = parsed[LINE].to_numpy()
        ordered = np.array([i not in unordered for i in owner])[lines]
        order = np.where(ordered, parsed[ORDER].to_numpy(), lines.astype(np.float64))
        groups = pl.Series(GROUP, [str(owner[line]) for line in lines], dtype=pl.String)  # each query is one
        return in_batches(self.fitted, parsed.with_columns(groups, pl.Series(ORDER, order)), size)

    def _best(self, query: Query, candidates: np.ndarray | None, scores: np.ndarray, history: np.ndarray) -> Found:
        """Return places and scores of one query, of the scores (N - 1,) of the items and the ids of its history.

        candidates: places of the items that it names as candidates; None for all items
        """
        scores[np.isnan(scores)] = -np.inf
        scores[self._left_out(query, history)] = -np.inf
        if candidates is not None:
            others = np.full_like(scores, -np.inf)
            others[candidates] = scores[candidates]
            scores = others
        [places] = highest(scores[None], min(query.k or self._k, self._items))
        places = places[scores[places] > -np.inf]
        places = places[np.argsort(-scores[places], kind="stable")]
        return places, scores[places]

    def _left_out(self, query: Query, history: np.ndarray) -> np.ndarray:
        """Return the places of the items that a list must not have."""
        filtered = self._filter if query.filter_history is None else query.filter_history
        seen = history[history <= self._items] - 1 if filtered else history[:0]
        return np.union1d(seen, self._places(query.exclude)) if query.exclude else np.unique(seen)

    def _completed(
        self, queries: Sequence[Query], start: int = 0, stop: int | None = None
    ) -> tuple[list[Row], list[int], set[int]]:
        """Return the rows of some queries with a group, an item and an order, the number of each row's query, and the
        queries whose rows are in order already.
        """
        rows: list[Row] = []
        owner: list[int] = []
        unordered = set()
        for i, query in enumerate(queries[start:stop], start):
            given = [dict(row) for row in query.rows] or [{}]
            for row in given:
                if row.get(self._group) is None:
                    row[self._group] = str(i) if self._types.get(self._group) == pl.String else i
                if row.get(self._item) in (None, ""):
                    row[self._item] = self._unknown_item
                if self._order is not None and row.get(self._order) in (None, ""):
                    row[self._order] = "0" if self._types.get(self._order) == pl.String else 0
                    unordered.add(i)
            rows += given
            owner += [i] * len(given)
        return rows, owner, unordered

    def known_items(self, query: Query) -> tuple[int, int] | None:
        """Return the number of items of a history that the model knows, and of all; None without a history."""
        if query.item is not None:
            return None
        items = [text for row in query.rows if (text := text_of(self._item_column.value(row, None)))]
        ids = self.fitted.candidate_index.results  # as queries look them up
        return sum(ids[text] > 0 for text in items), len(items)

    def _places(self, items: Sequence[Any]) -> np.ndarray:
        """Return the places of those items that the model can rank among the scores."""
        texts: list[str | None] = []
        for item in items:
            with suppress(ValueError):  # what is no item is unknown
                texts.append(text_of(self._item_column.read(item)))
        known = self.fitted.candidate_ids(pl.Series(texts, dtype=pl.String)).to_numpy()
        places: np.ndarray = known[(known > 0) & (known <= self._items)] - 1
        return places

    def features(self, rows: Sequence[Row], shared: Row | None = None) -> GraphInputs:
        """Transform the rows of one history."""
        rows = rows if shared is None else [{**shared, **row} for row in rows]
        [made] = self._made([Query(rows)])
        return graph_inputs(made.arrays, self.fitted.features, one_length=True)

    def features_of_columns(self, columns: Mapping[str, Sequence[Any]], rows: int) -> GraphInputs:
        """Transform the columns of one history, (rows,) each."""
        return self.features([{n: values[i] for n, values in columns.items()} for i in range(rows)])

    def run(self, features: GraphInputs) -> Outputs:
        """Return the query vectors (rows, d)."""
        return {"query": self._scorer.queries(features)}

    def run_tensors(self, tensors: Mapping[str, np.ndarray]) -> Outputs:
        """Return the query vectors for features that the client has computed."""
        return self.run(check_feed(tensors, self.tensors, self.fitted.features, longest_lists(self.fitted.data)))

    def unknown_shares(self, features: GraphInputs) -> dict[str, float]:
        """Return nothing: see `known_items`."""
        return {}


def _without(left_out: np.ndarray, items: np.ndarray, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the items (n,) and scores (n,) of one search (k,) that are not left out."""
    kept = ~np.isin(items, left_out)
    return items[kept], scores[kept]


def same_items(items: list[Any], expected: list[Any], scores: np.ndarray) -> bool:
    """Return whether two lists hold the same items; items of (nearly) equal scores may have another order."""
    if [str(i) for i in items] == [str(i) for i in expected]:
        return True
    if len(items) != len(expected):
        return False
    last = scores[-1]
    sure = {str(i) for i, s in zip(expected, scores, strict=True) if s > last + 1e-4}
    return sure <= {str(i) for i in items}
