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

import hashlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import count
from pathlib import Path
from typing import Any

import polars as pl

from recsys.console import bar
from recsys.serving.store.aggregates import PER_SECOND, TICK, lasts, longest, ticks, ticks_per_second, window_ticks
from recsys.serving.store.stores import Entry, FeatureStore, Values, events_of, files_of
from recsys.serving.store.views import View

ALL = "*"
ENTITIES = 5000  # that are merged at a time
FILE = "__file__"


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
            written = store.put(view.name, _entries(view, latest, shown.advance))
    if view.aggregates:
        numbers = {p: files[p][0] for p in new}
        written = max(written, _put_events(view, store, until, numbers, fresh=until is not None or not known))
    if until is None:  # last: until then, the next run reads the same files again
        progress = {"digest": _digest(view), "files": files}
        store.put(files_of(view.name), iter([(ALL, time.time(), progress)]))
    return written


def _read_files(view: View, store: FeatureStore) -> dict[str, list[int]]:
    """Return number, size and time of each file that was read by this definition."""
    [entry] = store.get(files_of(view.name), [ALL])
    return dict(entry[1]["files"]) if entry is not None and entry[1]["digest"] == _digest(view) else {}


def _files_now(paths: Sequence[str], known: Mapping[str, Sequence[int]]) -> dict[str, list[int]]:
    """Return number, size and time of each file; a file that is not known gets a new number."""
    free = count(1 + max((n for n, *_ in known.values()), default=-1))
    found = {}
    for path in paths:
        state = Path(path).stat()
        found[path] = [known[path][0] if path in known else next(free), state.st_size, state.st_mtime_ns]
    return found


def _entries(view: View, latest: pl.DataFrame, advance: Any) -> Iterator[Entry]:
    times = seconds_of(latest[view.time])
    for (key, *values), time_ in zip(latest.select(view.key, *view.columns).iter_rows(), times, strict=True):
        yield key, time_, dict(zip(view.columns, values, strict=True))
        advance(1)


def seconds_of(times: pl.Series) -> pl.Series:
    """Return times as seconds since 1970, and numbers as they are, (n,) Float64."""
    if times.dtype.is_temporal():
        return times.cast(pl.Datetime("us")).dt.epoch("us") / 1e6
    return times.cast(pl.Float64)


def _put_events(view: View, store: FeatureStore, until: Any, numbers: Mapping[str, int], *, fresh: bool) -> int:
    """Merge the events of files into those of each entity. fresh: whether to ignore the events in the store"""
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
    window = longest(view.aggregates)
    oldest = None if window is None or newest is None else newest - window_ticks(window, per_second)
    with bar(f"writing {view.name}", grouped.height, "entities") as shown:
        for some in grouped.iter_slices(ENTITIES):
            keys = some[view.key].to_list()
            stored = [None] * len(keys) if fresh else store.get(events_of(view.name), keys)
            rows = zip(keys, stored, some.iter_rows(named=True), strict=True)
            merged = (
                (key, *_merged(view, entry and entry[1], row, set(numbers.values()), oldest, per_second))
                for key, entry, row in rows
            )
            store.put(events_of(view.name), merged)
            shown.advance(len(keys))
    return grouped.height


def _merged(
    view: View, stored: Values | None, row: Mapping[str, Any], read: set[int], oldest: int | None, per_second: int
) -> tuple[float, Values]:
    """Return the newest time and the events of an entity: those of other files than `read`, and those of a row."""
    columns = [TICK, FILE, *view.event_columns]
    events = list(zip(*(row[c] for c in columns), strict=True))
    if stored is not None:
        kept = zip(*(stored[c] for c in columns), strict=True)
        events = sorted([e for e in kept if e[1] not in read] + events, key=lambda e: e[:2])
    newest, needed = events[-1][0], _needed(view, events, oldest)
    events = [e for e, keep in zip(events, needed, strict=True) if keep]
    values = {c: [e[i] for e in events] for i, c in enumerate(columns)}
    return newest / per_second, {PER_SECOND: per_second, **values}


def _needed(view: View, events: Sequence[tuple[Any, ...]], oldest: int | None) -> list[bool]:
    """Return which events an aggregate can still read: those of the longest window, and the last of some columns."""
    if oldest is None:
        return [True] * len(events)
    needed = [e[0] >= oldest for e in events]
    for column, number in lasts(view.aggregates).items():
        place = 2 + view.event_columns.index(column)
        with_value = [i for i, e in enumerate(events) if e[place] is not None]
        for i in with_value[-number:]:
            needed[i] = True
    return needed


def _digest(view: View) -> str:
    return hashlib.sha256(repr(sorted(asdict(view).items())).encode()).hexdigest()
