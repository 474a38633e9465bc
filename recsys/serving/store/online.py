"""Join stored features to the rows of requests, before the model's transforms."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import polars as pl

from recsys.serving.servable import Features, Outputs, Query, Row, Servable
from recsys.serving.store.stores import FeatureStore, Values
from recsys.serving.store.views import View


class OnlineFeatures:
    """Adds the stored features of each row's entities. Values that a row has itself win; missing keys add nothing."""

    def __init__(self, views: Mapping[str, View], store: FeatureStore) -> None:
        self._views, self._store = list(views.values()), store
        self._ages = {v.name: seconds_of_age(v.max_age) for v in self._views}

    @property
    def keys(self) -> frozenset[str]:
        """The columns by which values are looked up."""
        return frozenset(v.key for v in self._views)

    def join(self, rows: Sequence[Row]) -> Sequence[Row]:
        """Return the rows with stored features."""
        for view in self._views:
            keys = {str(k) for row in rows if (k := row.get(view.key)) is not None}
            if keys:
                values = self._values(view, sorted(keys))
                rows = [{**values.get(str(row.get(view.key)), {}), **row} for row in rows]
        return rows

    def _values(self, view: View, keys: list[str]) -> dict[str, Values]:
        age, now = self._ages[view.name], time.time()
        found = zip(keys, self._store.get(view.name, keys), strict=True)
        return {key: entry[1] for key, entry in found if entry is not None and (age is None or now - entry[0] <= age)}


def seconds_of_age(age: str | None) -> float | None:
    """Return a duration such as 30d in seconds; a number is one of seconds."""
    if age is None:
        return None
    try:
        return float(age)
    except ValueError:
        moment = pl.Series([0]).cast(pl.Datetime("us")).dt.offset_by(age)
        delta = moment.item() - pl.Series([0]).cast(pl.Datetime("us")).item()
        assert isinstance(delta, timedelta)
        return delta.total_seconds()


class WithFeatures:
    """A Servable whose rows get stored features first."""

    def __init__(self, model: Servable, features: OnlineFeatures) -> None:
        self._model, self._features = model, features

    @property
    def columns(self) -> frozenset[str]:
        """The keys of rows that the model reads, and those of stored features."""
        return self._model.columns | self._features.keys

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def features(self, rows: Sequence[Row], shared: Row | None = None) -> Features:
        """Join stored features to the rows, or to what they share, and transform them."""
        if shared is not None:
            [shared] = self._features.join([shared])
        return self._model.features(self._features.join(rows), shared)

    def features_of_columns(self, columns: Mapping[str, Sequence[Any]], rows: int) -> Features:
        """Join stored features to raw columns and transform them."""
        return self.features([{n: values[i] for n, values in columns.items()} for i in range(rows)])

    def run(self, features: Features) -> Outputs:
        return self._model.run(features)

    def recommend(self, queries: Sequence[Query]) -> list[tuple[list[Any], list[float]]]:
        """Join stored features to the rows of each query and list items."""
        return self._model.recommend([replace(q, rows=self._features.join(q.rows)) for q in queries])
