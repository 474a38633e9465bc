"""Small catalogues, users and parts of pipelines for tests, without models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from recsys.schema.pipeline_schema import PipelineConfig
from recsys.stages.catalogue import Catalogue
from recsys.stages.filters import Filter
from recsys.stages.merge import Merge, ReciprocalRank
from recsys.stages.open_models import Models, Resources
from recsys.stages.order import Order
from recsys.stages.score import Score
from recsys.stages.sources import Found, Source
from recsys.stages.staged import StagedRecommender
from recsys.stages.visitor import Events, Visitor


def catalogue(columns: Mapping[str, Sequence[Any]], vectors: np.ndarray | None = None) -> Catalogue:
    """Return items i0, i1, ... with these columns."""
    n = len(next(iter(columns.values())))
    names = pl.Series([f"i{i}" for i in range(n)])
    frame = pl.DataFrame({"item": names, **columns})
    return Catalogue(names, frame, {} if vectors is None else {"source": vectors})


def resources(
    items: Catalogue,
    user: Sequence[str] = (),
    context: Sequence[str] = (),
    events: Events | None = None,
    root: Path = Path(),
) -> Resources:
    return Resources(items, Models(root), user, context, events)


def visitor(**values: Any) -> Visitor:
    given = {"key": "u", "user": {}, "context": {}, "events": (), "seen": np.zeros(0, np.int64), "k": 10}
    return Visitor(**{**given, **values})


class Listed(Source):
    """A source that lists the same items for all, as far as they are wanted."""

    def __init__(self, items: Sequence[int], k: int = 10, weight: float = 1.0) -> None:
        self.k, self.weight, self._items = k, weight, np.array(items, np.int64)

    def bind(self, resources: Resources, key: str) -> None: ...

    def retrieve(self, visitors: Sequence[Visitor], k: int) -> list[Found]:
        items = self._items[:k]
        return [(items, -np.arange(len(items), dtype=float)) for _ in visitors]


def recommender(
    items: Catalogue,
    sources: Mapping[str, Source],
    filters: Mapping[str, Filter] | None = None,
    order: Mapping[str, Order] | None = None,
    score: Score | None = None,
    merge: Merge | None = None,
    events: Events | None = None,
    **settings: Any,
) -> StagedRecommender:
    given = {"k": 3, "candidates": 10, "history": 10}
    found = resources(items, events=events)
    for parts in (sources, filters or {}, order or {}):
        for name, part in parts.items():
            part.bind(found, name)
    return StagedRecommender(
        PipelineConfig(**{**given, **settings}),
        items,
        sources,
        merge or ReciprocalRank(),
        filters or {},
        score,
        order or {},
        events=events,
    )
