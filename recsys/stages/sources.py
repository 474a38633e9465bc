"""Sources of candidates: retrieval models, items like those that the user saw, and rows of the table of items."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Annotated

import numpy as np
import polars as pl
from pydantic import Field, PositiveFloat

from recsys.base.errors import UserError
from recsys.export.artefact.served_retrieval import ServedRetrieval
from recsys.online.query_parameters import NOT_RELATED
from recsys.online.servable import Query
from recsys.stages.catalogue import ABSENT, unit
from recsys.stages.expressions import Condition
from recsys.stages.open_models import Models, Resources
from recsys.stages.visitor import Visitor

Found = tuple[np.ndarray, np.ndarray]  # items (n,) as numbers, best first, and their scores (n,)
Count = Annotated[int, Field(ge=1, le=1_000_000)]
Weight = PositiveFloat
NOTHING: Found = (np.zeros(0, np.int64), np.zeros(0))


class Source(ABC):
    """A source of candidates.

    k: number of candidates that a request gets from it at first
    weight: its weight when sources are merged
    """

    k: int
    weight: float

    def open(self, models: Models, key: str) -> pl.Series | None:
        """Load what the source needs, and return the names of its items, or None if it lists the table's items."""
        return None

    def vectors(self) -> np.ndarray | None:
        """Return the vectors (n, d) of the items that `open` returned, or None for a source without vectors."""
        return None

    @abstractmethod
    def bind(self, resources: Resources, key: str) -> None:
        """Get ready for the items of a catalogue. key: the config key of the source, for messages"""

    @abstractmethod
    def retrieve(self, visitors: Sequence[Visitor], k: int) -> list[Found]:
        """Return at most k candidates of each visitor, best first."""


class _ModelSource(Source):
    """A source of the items of a retrieval model."""

    run: str
    _model: ServedRetrieval | None = None

    @property
    def model(self) -> ServedRetrieval:
        assert self._model is not None
        return self._model

    def open(self, models: Models, key: str) -> pl.Series | None:
        self._model = models.retrieval(self.run, f"{key}.run")
        return self._model.names

    def vectors(self) -> np.ndarray | None:
        return self.model.vectors

    def bind(self, resources: Resources, key: str) -> None:
        self._numbers = resources.catalogue.numbers(self.model.names)


class Model(_ModelSource):
    """The best items of a retrieval model.

    Args:
        run: a run, or an artefact that recsys.export wrote.
        k: number of candidates.
        weight: weight when sources are merged.
        filter_history: whether to leave out the items of the history; null: as the artefact does.
        history: whether the model sees what the user did; false for one that lists the same items for all.
    """

    def __init__(
        self, run: str, k: Count = 100, weight: Weight = 1.0, filter_history: bool | None = False, history: bool = True
    ) -> None:
        self.run, self.k, self.weight, self._filter, self._history = run, k, weight, filter_history, history
        self._same: dict[int, Found] = {}  # lists that are the same for all, by k

    def retrieve(self, visitors: Sequence[Visitor], k: int) -> list[Found]:
        k = min(k, len(self._numbers))
        if not self._history:
            if k not in self._same:
                self._same[k] = self._named(self.model.find([Query([{}], k=k, filter_history=False)])[0])
            return [self._same[k]] * len(visitors)
        queries, longest = [], None if self._filter else self.model.longest_history
        for v in visitors:  # what an event lacks, the request has
            events = v.events if longest is None else v.events[-longest:]
            rows = [{**v.context, **row} for row in events] or [dict(v.context)]
            queries.append(Query(rows, k=k, filter_history=self._filter))
        return [self._named(found) for found in self.model.find(queries)]

    def _named(self, found: Found) -> Found:
        return self._numbers[found[0]], found[1].astype(np.float64)


class Similar(_ModelSource):
    """The items most like one of the last items that the user saw, as in POST /similar; the best of each, in turns.

    Args:
        run: a run, or an artefact, of a model that relates items, by their vectors or in closed form.
        k: number of candidates.
        weight: weight when sources are merged.
        last: number of seen items that are looked at.
    """

    def __init__(self, run: str, k: Count = 50, weight: Weight = 1.0, last: Count = 5) -> None:
        self.run, self.k, self.weight, self._last = run, k, weight, last

    def open(self, models: Models, key: str) -> pl.Series | None:
        names = super().open(models, key)
        if not self.model.relates_items:
            raise UserError(f"{key}.run={self.run}: {NOT_RELATED}, or leave {key} out")
        return names

    def bind(self, resources: Resources, key: str) -> None:
        from recsys.index import build

        super().bind(resources, key)
        self._place = np.full(len(resources.catalogue), ABSENT, np.int64)
        self._place[self._numbers] = np.arange(len(self._numbers))
        if self.model.vectors is not None:
            self._unit = unit(self.model.vectors)
            self._index = build(self._unit, k=min(100, len(self._unit)))

    def _nearest(self, places: np.ndarray, k: int) -> Found:
        """Return the items most like each of P, and how like they are: (P, k) each, -1 where there is none."""
        if self.model.vectors is not None:
            return self._index.search(self._unit[places], min(k + 1, len(self._unit)))
        found = self.model.find([Query([], k=k, item=name) for name in self.model.names.gather(places)])
        items, scores = np.full((len(places), k), -1), np.zeros((len(places), k))
        for row, (own, best) in enumerate(found):
            items[row, : len(own)], scores[row, : len(own)] = own, best
        return items, scores

    def retrieve(self, visitors: Sequence[Visitor], k: int) -> list[Found]:
        lists: list[Found] = []
        for visitor in visitors:
            places = self._place[visitor.seen[visitor.seen >= 0][::-1]]
            _, first = np.unique(places, return_index=True)
            places = places[np.sort(first)]
            places = places[places >= 0][: self._last]
            if not len(places):
                lists.append(NOTHING)
                continue
            items, likeness = self._nearest(places, k + len(places) - 1)
            turns, scores = items.T.ravel(), likeness.T.ravel()  # the nearest of each, then the second nearest, ...
            kept = (turns >= 0) & ~np.isin(turns, places)
            turns, scores = turns[kept], scores[kept]
            _, first = np.unique(turns, return_index=True)
            first = np.sort(first)[:k]
            order = first[np.argsort(-scores[first], kind="stable")]
            lists.append((self._numbers[turns[order]], scores[order].astype(np.float64)))
        return lists


class Items(Source):
    """Items of the table, such as the newest or the cheapest.

    Args:
        by: column whose largest values come first.
        where: a condition in SQL over item., user. and context. columns; null: all items.
        descending: false lists the smallest values first.
        k: number of candidates.
        weight: weight when sources are merged.
    """

    def __init__(
        self, by: str, where: str | None = None, descending: bool = True, k: Count = 20, weight: Weight = 1.0
    ) -> None:
        self._by, self._where, self._descending, self.k, self.weight = by, where, descending, k, weight

    def bind(self, resources: Resources, key: str) -> None:
        column = resources.catalogue.column(self._by, f"{key}.by")
        self._condition = Condition(self._where, f"{key}.where", resources) if self._where else None
        filled = column.is_not_null().to_numpy()
        order = column.arg_sort(descending=self._descending, nulls_last=True).to_numpy().astype(np.int64)
        self._order = order[filled[order]]
        if not len(self._order):
            raise UserError(f"{key}.by={self._by}: no item has a value, so that the source is empty")

    def retrieve(self, visitors: Sequence[Visitor], k: int) -> list[Found]:
        found = []
        for v in visitors:
            items = self._order if self._condition is None else self._order[self._condition(v, self._order)]
            items = items[:k]
            found.append((items, -np.arange(len(items), dtype=np.float64)))
        return found
