"""Write the latest values of views to a store."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import polars as pl

from recsys.console import bar
from recsys.serving.store.stores import Entry, FeatureStore
from recsys.serving.store.views import View


def materialise(views: Mapping[str, View], store: FeatureStore, until: Any = None) -> dict[str, int]:
    """Write each entity's latest values and return the number of entities of each view.

    until: a time; later values are left out
    """
    counts = {}
    for view in views.values():
        latest = view.latest(until)
        with bar(f"writing {view.name}", latest.height, "entities") as shown:
            counts[view.name] = store.put(view.name, _entries(view, latest, shown.advance))
    return counts


def _entries(view: View, latest: pl.DataFrame, advance: Any) -> Iterator[Entry]:
    times = seconds_of(latest[view.time])
    for (key, *values), time in zip(latest.select(view.key, *view.columns).iter_rows(), times, strict=True):
        yield key, time, dict(zip(view.columns, values, strict=True))
        advance(1)


def seconds_of(times: pl.Series) -> pl.Series:
    """Return times as seconds since 1970, and numbers as they are, (n,) Float64."""
    if times.dtype.is_temporal():
        return times.cast(pl.Datetime("us")).dt.epoch("us") / 1e6
    return times.cast(pl.Float64)
