"""Write the latest values of views, and the events that aggregates read, to a store.

The store also keeps which files of a view were read, so that the next time only new ones are. To read a file again
changes nothing: the events of an entity are kept with the number of their file, and replaced by file. So a file may be
written again with more events, such as the log of today, but must not lose events.

    store key                       value
    VIEW, entity                    the latest values of the columns
    VIEW#events, entity             times (in ticks), the columns of the events, and the number of each event's file
    VIEW#files, *                   the definition's digest, and number, size and time of each file that was read
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import polars as pl

from recsys.console import bar
from recsys.serving.store.aggregates import TICK, ticks, ticks_per_second
from recsys.serving.store.events import FILE, Event, EventMerger
from recsys.serving.store.stores import Entry, FeatureStore, Values, events_of, files_of
from recsys.serving.store.views import View

ALL = "*"
ENTITIES = 5000  # that are merged at a time


def materialise(views: Mapping[str, View], store: FeatureStore, until: Any = None) -> dict[str, int]:
    """Write the entities that new files name and return their number for each view.

    until: a time; later values are left out, and all files are read
    """
    return {view.name: _materialise(view, store, until) for view in views.values()}


def _materialise(view: View, store: FeatureStore, until: Any) -> int:
    paths, known = view.paths(), _read_files(view, store)
    files = known | _files_now(paths, known)
    new = paths if until is not None else [p for p in paths if files[p] != known.get(p)]
    if not new:
        return 0
    written = 0
    if view.columns:
        latest = view.latest(until, new)
        with bar(f"writing {view.name}", latest.height, "entities") as shown:
            written = store.put(view.name, entries(view, latest, shown.advance))
    if view.aggregates:
        numbers = {p: files[p][0] for p in new}
        written = max(written, _put_events(view, store, until, numbers))
    if until is None:  # last: until then, the next run reads the same files again
        progress = {"digest": view.digest, "files": files}
        store.put(files_of(view.name), iter([(ALL, time.time(), progress)]))
    return written


def _read_files(view: View, store: FeatureStore) -> dict[str, list[int]]:
    """Return number, size and time of each file that was read by this definition."""
    [entry] = store.get(files_of(view.name), [ALL])
    return dict(entry[1]["files"]) if entry is not None and entry[1]["digest"] == view.digest else {}


def _files_now(paths: Sequence[str], known: Mapping[str, Sequence[int]]) -> dict[str, list[int]]:
    """Return number, size and time of each file; a file that is not known gets a new number."""
    free = count(1 + max((n for n, *_ in known.values()), default=-1))
    found = {}
    for path in paths:
        state = Path(path).stat()
        found[path] = [known[path][0] if path in known else next(free), state.st_size, state.st_mtime_ns]
    return found


def entries(view: View, latest: pl.DataFrame, advance: Callable[[int], object] = lambda _: None) -> Iterator[Entry]:
    """Yield what a store keeps of the last row of each entity. advance: called with 1 for each"""
    times = seconds_of(latest[view.time])
    for (key, *values), time_ in zip(latest.select(view.key, *view.columns).iter_rows(), times, strict=True):
        yield key, time_, dict(zip(view.columns, values, strict=True))
        advance(1)


def seconds_of(times: pl.Series) -> pl.Series:
    """Return times as seconds since 1970, and numbers as they are, (n,) Float64."""
    if times.dtype.is_temporal():
        return times.cast(pl.Datetime("us")).dt.epoch("us") / 1e6
    return times.cast(pl.Float64)


def _put_events(view: View, store: FeatureStore, until: Any, numbers: Mapping[str, int]) -> int:
    """Merge the events of files into those of each entity."""
    parts = []
    for path, number in numbers.items():
        frame = view.until(view.scan([path]), until)
        dtype = frame.collect_schema()[view.time]
        per_second = ticks_per_second(dtype)
        time_ = ticks(pl.col(view.time), dtype, per_second).alias(TICK)
        parts.append(frame.select(view.key, time_, *view.event_columns, pl.lit(number).alias(FILE)))
    events = pl.concat(parts).sort(TICK, maintain_order=True)
    grouped = events.group_by(view.key).agg(pl.all()).collect(engine="streaming")
    newest = grouped.select(pl.col(TICK).list.max().max()).item()
    merger = EventMerger(view, per_second, newest)
    read = set(numbers.values())
    with bar(f"writing {view.name}", grouped.height, "entities") as shown:
        for some in grouped.iter_slices(ENTITIES):
            rows = {
                key: list(zip(*lists, strict=True))
                for key, *lists in some.select(view.key, TICK, FILE, *view.event_columns).iter_rows()
            }

            def merged(key: str, stored: Values | None, rows: dict[str, list[Event]] = rows) -> tuple[float, Values]:
                return merger.files(stored, rows[key], read)

            store.update(events_of(view.name), list(rows), merged)
            shown.advance(len(rows))
    return grouped.height
