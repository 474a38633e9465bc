"""Run the stages of a pipeline for the users of requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from time import perf_counter
from typing import Any

import numpy as np
import polars as pl

from recsys.base.errors import UserError
from recsys.online.query_parameters import unknown_candidates
from recsys.online.servable import Query, Row
from recsys.schema.pipeline_schema import PipelineConfig
from recsys.stages.catalogue import Catalogue
from recsys.stages.filters import Filter
from recsys.stages.merge import Merge, Retrieved
from recsys.stages.order import Order, Ranked
from recsys.stages.score import Score
from recsys.stages.sources import Found, Source
from recsys.stages.visitor import Events, Visitor, as_key
from recsys.store.request_features import OnlineFeatures

MORE = 4  # how many times as many candidates are wanted if filters leave too few


@dataclass
class Trace:
    """Record of the stages for one request. All items are numbers, best first.

    found: the candidates of each source
    merged, kept, scored: the candidates after each stage, before the list is ordered
    predictions: what the scores of `scored` were made of, (n,) each
    removed: the candidates that each filter removed
    rounds: how often the sources were asked
    seconds: time of each stage
    """

    found: dict[str, np.ndarray] = field(default_factory=dict)
    merged: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    kept: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    scored: Ranked = field(default_factory=lambda: Ranked(np.zeros(0, np.int64), np.zeros(0)))
    predictions: dict[str, np.ndarray] = field(default_factory=dict)
    removed: dict[str, np.ndarray] = field(default_factory=dict)
    rounds: int = 1
    seconds: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class PipelineAnswer:
    """The list for one request.

    items: (m,) numbers, best first, m <= k
    scores: (m,) the scores of the third stage
    propensities: (m,) probability that each item was put at its place, None if nothing was drawn
    ranked: all candidates in their last order
    trace: what the stages did
    """

    items: np.ndarray
    scores: np.ndarray
    propensities: np.ndarray | None
    ranked: Ranked
    trace: Trace

    def probability(self, items: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """Return the probability that the pipeline puts items at positions of this list, (n,) and (n,) from 0 -> (n,).

        Over all items, it adds up to 1 at each place of the list, and to 0 behind its end.
        """
        return self.ranked.probability(items, positions, len(self.items))


class StagedRecommender:
    """Retrieves, filters, scores and orders items. Threads may share it.

    Args:
        settings: names and sizes; the parts have been built of its other keys.
        catalogue: the items.
        sources, filters, order: the parts by name, in their order.
        merge: makes one list of the candidates of several sources.
        score: gives scores; None keeps the scores of the merge.
        users: the columns of users by name.
        events: what users did, None if requests bring their histories.
        features: stored features of users, or None.
    """

    def __init__(
        self,
        settings: PipelineConfig,
        catalogue: Catalogue,
        sources: Mapping[str, Source],
        merge: Merge,
        filters: Mapping[str, Filter],
        score: Score | None,
        order: Mapping[str, Order],
        users: Mapping[str, Row] | None = None,
        events: Events | None = None,
        features: OnlineFeatures | None = None,
        item_type: pl.DataType | None = None,
    ) -> None:
        self.settings, self.catalogue, self.sources, self.filters = settings, catalogue, sources, filters
        self.score, self.order, self.events = score, order, events
        self._merge, self._users, self._features = merge, users or {}, features
        self.item_type = item_type or pl.String()
        self._rng = np.random.default_rng(settings.seed)

    def visitor(self, query: Query) -> Visitor:
        """Return the user of a request, with columns, features and events.

        Raises UserError for a k that is out of range, and for candidates that are all unknown.
        """
        s = self.settings
        k = s.k if query.k is None else query.k
        if k < 1:
            raise UserError(f"k={k}: must be at least 1")
        k = min(k, len(self.catalogue))
        context = dict(query.context or {})
        if not context and query.rows:  # a history alone: its rows name the user
            context = {s.user: query.rows[-1].get(s.user)}
        key = as_key(context.get(s.user), s.user)
        user: Row = self._users.get(key or "", {})
        if self._features is not None:
            [user] = self._features.join([{**user, s.user: key}], shared=True)
        events, stored = self._stored(key, user)
        seen = stored
        if query.rows:
            events = list(query.rows)[-s.history :]
            seen = self.catalogue.numbers([as_key(row.get(s.item), s.item) or "" for row in query.rows])
        exclude = self.catalogue.numbers([str(i) for i in query.exclude])
        wanted = None if query.candidates is None else self.catalogue.numbers([str(i) for i in query.candidates])
        if query.candidates and wanted is not None and (wanted < 0).all():
            raise unknown_candidates(query.candidates)
        return Visitor(key, user, context, events, seen, k, exclude, wanted, query.rows, stored)

    def _stored(self, key: str | None, user: Row) -> tuple[Sequence[Row], np.ndarray]:
        """Return the last stored events of a user as raw rows, and the numbers of the items of all of them."""
        s = self.settings
        if self.events is not None:
            return self.events.rows(key), self._numbers[self.events.places(key)]
        names = [str(i) for i in user.get(s.features.history or "") or []]
        return [{s.user: key, s.item: name} for name in names[-s.history :]], self.catalogue.numbers(names)

    @cached_property
    def _numbers(self) -> np.ndarray:
        """The number of the item of each event (n,)."""
        assert self.events is not None
        return self.catalogue.numbers(self.events.frame[self.settings.item])

    def answers(self, queries: Sequence[Query]) -> list[PipelineAnswer]:
        """Return the list for each request."""
        visitors = [self.visitor(q) for q in queries]
        started = perf_counter()
        found = self._retrieve(visitors, 1)
        seconds = (perf_counter() - started) / max(1, len(visitors))
        return [self._answer(v, f, seconds) for v, f in zip(visitors, found, strict=True)]

    def explain(self, context: Row, k: int | None = None) -> pl.DataFrame:
        """Return a row for each candidate of one request: the items of the list first, then the others by score.

        Its columns are `item`; for each source SOURCE_rank, the candidate's rank in it from 1; `merged_rank`;
        `removed_by`, the filter that removed it; `score`; and `place`, its place in the list from 1. A value is null
        if the stage did not get or did not choose the candidate.

        Args:
            context: the columns of the request, such as {"user": "u5", "device": "phone"}.
            k: length of the list; by default the pipeline's.
        """
        [answer] = self.answers([Query([], context=context, k=k)])
        trace = answer.trace
        items = list(dict.fromkeys(np.concatenate([trace.merged, *trace.found.values()]).tolist()))
        removed = {item: name for name, some in trace.removed.items() for item in some.tolist()}
        scores = dict(zip(trace.scored.items.tolist(), trace.scored.scores.tolist(), strict=True))
        frame = pl.DataFrame(
            {
                "item": self.names(np.array(items, np.int64)),
                **{f"{name}_rank": _ranks(found, items) for name, found in trace.found.items()},
                "merged_rank": _ranks(trace.merged, items),
                "removed_by": pl.Series([removed.get(item) for item in items], dtype=pl.String),
                "score": pl.Series([scores.get(item) for item in items], dtype=pl.Float64),
                "place": _ranks(answer.items, items),
            }
        )
        return frame.sort("place", "score", descending=[False, True], nulls_last=True, maintain_order=True)

    def found(self, queries: Sequence[Query]) -> list[dict[str, Found]]:
        """Return the candidates of each source for each request."""
        return self._retrieve([self.visitor(q) for q in queries], 1)

    def candidates(self, visitor: Visitor, found: Mapping[str, Found]) -> np.ndarray:
        """Return the candidates of all sources that the filters leave, in the order of the merge."""
        return self._candidates(visitor, found, 1, Trace())[0]

    def names(self, items: np.ndarray) -> list[Any]:
        """Return the names of items, of the type that they have in raw rows."""
        names = self.catalogue.names.gather(items)
        return (names if self.item_type == pl.String else names.cast(self.item_type, strict=False)).to_list()

    def _retrieve(self, visitors: Sequence[Visitor], factor: int) -> list[dict[str, Found]]:
        """Return the candidates of each source for each visitor."""
        by_source = {name: s.retrieve(visitors, s.k * factor) for name, s in self.sources.items()}
        return [{name: lists[i] for name, lists in by_source.items()} for i in range(len(visitors))]

    def _answer(self, visitor: Visitor, found: Mapping[str, Found], retrieve_seconds: float) -> PipelineAnswer:
        trace = Trace(seconds={"retrieve": retrieve_seconds})
        factor = 1
        while True:
            kept, scores = self._candidates(visitor, found, factor, trace)
            asked = {n: s.k * factor for n, s in self.sources.items()}
            more = any(len(their) >= asked[n] < len(self.catalogue) for n, (their, _) in found.items())
            if len(kept) >= visitor.k or not more:
                break
            factor *= MORE
            trace.rounds += 1
            started = perf_counter()
            [found] = self._retrieve([visitor], factor)
            trace.seconds["retrieve"] += perf_counter() - started
        started = perf_counter()
        if self.score is not None and len(kept):
            scores, trace.predictions = self.score.scores(visitor, kept, Retrieved(found, kept))
            order = np.argsort(-scores, kind="stable")
            trace.predictions = {n: values[order] for n, values in trace.predictions.items()}
            kept, scores = kept[order], scores[order]
        trace.seconds["score"] = perf_counter() - started
        trace.scored = ranked = Ranked(kept, scores)
        started = perf_counter()
        for part in self.order.values():
            ranked = part.apply(visitor, ranked, visitor.k, self._rng)
        trace.seconds["order"] = perf_counter() - started
        k = visitor.k
        items = ranked.items[:k]
        drawn = None if ranked.draw is None else ranked.probability(items, np.arange(len(items)), k)
        return PipelineAnswer(items, ranked.scores[:k], drawn, ranked, trace)

    def _candidates(
        self, visitor: Visitor, found: Mapping[str, Found], factor: int, trace: Trace
    ) -> tuple[np.ndarray, np.ndarray]:
        """Merge and filter; return items and scores."""
        started = perf_counter()
        weights = [s.weight for s in self.sources.values()]
        items, scores = self._merge(list(found.values()), weights, self.settings.candidates * factor)
        trace.found = {name: their for name, (their, _) in found.items()}
        trace.merged = items
        trace.seconds["merge"] = trace.seconds.get("merge", 0.0) + perf_counter() - started
        started = perf_counter()
        stays = ~np.isin(items, visitor.exclude)
        if visitor.candidates is not None:
            stays &= np.isin(items, visitor.candidates)
        items, scores = items[stays], scores[stays]
        trace.removed = {}
        for name, part in self.filters.items():
            stays = part.keep(visitor, items)
            trace.removed[name] = items[~stays]
            items, scores = items[stays], scores[stays]
        trace.kept = items
        trace.seconds["filter"] = trace.seconds.get("filter", 0.0) + perf_counter() - started
        return items, scores

    def kept(self, visitor: Visitor, items: np.ndarray) -> np.ndarray:
        """Return the items (n,) that the filters leave, in their order."""
        for part in self.filters.values():
            items = items[part.keep(visitor, items)]
        return items


def _ranks(ranked: np.ndarray, items: Sequence[int]) -> pl.Series:
    """Return the rank of each item from 1; null for items that are not ranked."""
    rank = {item: i for i, item in enumerate(ranked.tolist(), 1)}
    return pl.Series([rank.get(item) for item in items], dtype=pl.Int64)
