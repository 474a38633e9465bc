"""Join stored features to the rows of requests, before the model's transforms."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from recsys.base.durations import is_number, seconds_of_age
from recsys.base.errors import UserError
from recsys.files.text_values import text_of
from recsys.online.row_error import RowError
from recsys.online.servable import Features, Outputs, Query, Row, Servable
from recsys.store.aggregates import PER_SECOND, TICK, at_time
from recsys.store.fitting import CLOCKS
from recsys.store.stores import FeatureStore, Values, events_of
from recsys.store.views import View, columns_of


class OnlineFeatures:
    """Adds the stored features of each row's entities. Values that a row has itself win; missing keys add nothing."""

    def __init__(self, views: Mapping[str, View], store: FeatureStore) -> None:
        self._views, self._store = list(views.values()), store

    @property
    def keys(self) -> frozenset[str]:
        """The columns by which values are looked up."""
        return frozenset(v.key for v in self._views)

    @property
    def names(self) -> frozenset[str]:
        """The names of the features."""
        return frozenset(n for v in self._views for n in v.names)

    def join(self, rows: Sequence[Row], *, shared: bool = False) -> Sequence[Row]:
        """Return the rows with stored features. Raises RowError for a key that is not one value.

        shared: whether this is the row that all rows of a request share, which has no number
        """
        for view in self._views:
            keys = [_read_key(row.get(view.key), view.key, None if shared else i) for i, row in enumerate(rows)]
            if distinct := sorted({key for key in keys if key is not None}):
                values = values_at(view, self._store, distinct, time.time())
                rows = [{**values.get(key or "", {}), **row} for key, row in zip(keys, rows, strict=True)]
        return rows


def values_at(view: View, store: FeatureStore, keys: Sequence[str], now: float) -> dict[str, Values]:
    """Return the features of entities at a time, in seconds since 1970.

    Latest values are left out if the store has none, or if they are too old or still to come. An entity that the
    store does not know has the aggregates of no events.
    """
    features: dict[str, Values] = {}
    if view.columns:
        age = seconds_of_age(view.max_age)
        latest = now + CLOCKS if has_times(view) else math.inf
        for key, entry in zip(keys, store.get(view.name, keys), strict=True):
            if entry is not None and entry[0] <= latest and (age is None or now - entry[0] <= age):
                features[key] = entry[1]
    if view.aggregates:
        for key, entry in zip(keys, store.get(events_of(view.name), keys), strict=True):
            events = {} if entry is None else entry[1]
            columns = {c: events.get(c, []) for c in view.event_columns}
            per_second = events.get(PER_SECOND, 1)
            tick = math.ceil(now * per_second)
            made = at_time(events.get(TICK, []), columns, view.aggregates, tick, per_second)
            features[key] = {**features.get(key, {}), **made}
    return features


@lru_cache  # asked for each request
def has_times(view: View) -> bool:
    """Return whether a view's times are times, not numbers of any unit. If nothing says so, they count as numbers."""
    units = [not is_number(view.max_age)] if view.max_age is not None else []
    units += [not a.unitless for a in view.aggregates if a.window is not None]
    try:  # a server need not have the files
        return units[0] if units else columns_of(view.paths()[0], view.name)[view.time].is_temporal()
    except (UserError, KeyError):
        return False


def _read_key(value: object, column: str, row: int | None) -> str | None:
    """Return a key as text, None if it is missing. Raises RowError."""
    if value is None or type(value) is str:  # the most common ones
        return value or None
    try:
        key = text_of(value) or None
    except ValueError as e:
        raise RowError(column, value, str(e), row) from e
    return key


class WithFeatures:
    """A Servable whose rows get stored features first."""

    def __init__(self, model: Servable, features: OnlineFeatures) -> None:
        self._model, self._features = model, features

    @property
    def columns(self) -> frozenset[str]:
        """The keys of rows that the model reads, and the keys of stored features."""
        return self._model.columns | self._features.keys

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def features(self, rows: Sequence[Row], shared: Row | None = None) -> Features:
        """Join stored features to the rows, or to what they share, and transform them."""
        if shared is not None:
            [shared] = self._features.join([shared], shared=True)
        return self._model.features(self._features.join(rows), shared)

    def features_of_columns(self, columns: Mapping[str, Sequence[Any]], rows: int) -> Features:
        """Join stored features to raw columns and transform them."""
        return self.features([{n: values[i] for n, values in columns.items()} for i in range(rows)])

    def run(self, features: Features) -> Outputs:
        return self._model.run(features)

    def recommend(self, queries: Sequence[Query]) -> Sequence[tuple[list[Any], ...]]:
        """Join stored features to the rows of each query and list items."""
        return self._model.recommend([replace(q, rows=self._features.join(q.rows)) for q in queries])
