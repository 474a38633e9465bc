"""Write the latest values of views, and the events that aggregates read, to a store.

The store also keeps which files of a view were read, so that the next time only new ones are (`log_files`). To read a
file again changes nothing: the events of an entity are kept with the number of their file, and replaced by file. A
file gets its number before its events are written, so that a process that is killed, and others at the same time, use
the same one.

    store key                       value
    VIEW, entity                    the latest values of the columns
    VIEW#events, entity             times (in ticks), the columns of the events, and the number of each event's file
    VIEW#files, *                   the definition's digest, and the files that were read
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from recsys.base.console import bar, say
from recsys.base.errors import UserError
from recsys.store.aggregates import PER_SECOND, TICK, lasts, longest, ticks, ticks_per_second, window_ticks
from recsys.store.fitting import check_rejected, latest_time
from recsys.store.log_files import LogFile, Reading, from_json, look, to_json
from recsys.store.stores import Entry, FeatureStore, Values, events_of, files_of, replace, streams_of
from recsys.store.views import View, readable

FILE = "__file__"  # the number of the file of each event
STREAM = -1  # the number of events of a stream
DEFINITION = "__definition__"  # the digest of the view that the events were kept for
APPLIED = "__applied__"  # the offset after the last event of each partition of a stream that was merged
Event = tuple[Any, ...]  # time in ticks, number of the file, and the values of View.event_columns
ALL = "*"
ENTITIES = 5000  # that are merged at a time


class EventMerger:
    """Merges events into what a store keeps of an entity.

    newest: ticks of the newest event; events that no aggregate reads from then on are left out. A time that is still to
        come counts as now, so that one clock that is ahead does not make all other events old
    """

    def __init__(self, view: View, per_second: int, newest: int | None) -> None:
        window, now = longest(view.aggregates), int(time.time() * per_second)
        newest = None if newest is None else min(newest, now)
        self._digest = view.digest
        self._oldest = None if window is None or newest is None else newest - window_ticks(window, per_second)
        self._columns = [TICK, FILE, *view.event_columns]
        self._last = [(2 + view.event_columns.index(c), n) for c, n in lasts(view.aggregates).items()]
        self._per_second = per_second

    def files(self, stored: Values | None, rows: Sequence[Event], read: set[int]) -> tuple[float, Values]:
        """Replace the events of the files `read` by rows; return the newest time and the events to store."""
        end = max(tick for tick, *_ in rows)
        events, applied = self._kept(stored)
        kept = [e for e in events if e[1] not in read and (e[1] != STREAM or e[0] > end)]
        return self._stored(kept + list(rows), applied)

    def stream(self, stored: Values | None, rows: Sequence[tuple[str, int, Event]]) -> tuple[float, Values] | None:
        """Add rows (partition, offset, event) that are new; return as `files` does, None if no row is."""
        events, applied = self._kept(stored)
        end = max((e[0] for e in events if e[1] != STREAM), default=None)
        count = 0
        for partition, offset, event in rows:
            if offset >= applied.get(partition, 0):
                applied[partition] = offset + 1
                count += 1
                if end is None or event[0] > end:
                    events.append(event)
        return self._stored(events, applied) if count and events else None

    def _kept(self, stored: Values | None) -> tuple[list[Event], dict[str, int]]:
        """Return events and offsets kept for this definition: another may have left out what this one reads."""
        if stored is None or stored.get(DEFINITION) != self._digest:
            return [], {}
        return list(zip(*(stored[c] for c in self._columns), strict=True)), dict(stored.get(APPLIED, {}))

    def _stored(self, events: list[Event], applied: Mapping[str, int]) -> tuple[float, Values]:
        events = sorted(events, key=lambda e: e[:2])
        newest = events[-1][0]
        if self._oldest is not None:  # an aggregate still reads events of the longest window, and the last of a column
            needed = [e[0] >= self._oldest for e in events]
            for place, number in self._last:
                for i in [i for i, e in enumerate(events) if e[place] is not None][-number:]:
                    needed[i] = True
            events = [e for e, keep in zip(events, needed, strict=True) if keep]
        values: Values = {c: [e[i] for e in events] for i, c in enumerate(self._columns)}
        values |= {PER_SECOND: self._per_second, DEFINITION: self._digest}
        values |= {APPLIED: dict(applied)} if applied else {}
        return newest / self._per_second, values


def materialise(
    views: Mapping[str, View], store: FeatureStore, until: Any = None, rejected: Path | None = None
) -> dict[str, int]:
    """Write the entities that new files name and return their number for each view.

    Raises UserError if a file is missing, cannot be read, or holds a value that does not fit.

    until: a time; later values are left out, and all files are read
    rejected: a file to which rows whose values do not fit are appended; None makes the first of them an error
    """
    check_rejected(rejected)
    return {view.name: _materialise(view, store, until, rejected) for view in views.values()}


def check_definition(view: View, store: FeatureStore) -> None:
    """Raise UserError if the store has events of the view's stream that were kept for another definition.

    They may no longer be in the stream, and the new definition may need what the old one left out.
    """
    [entry] = store.get(streams_of(view.name), [ALL])
    if entry is None:
        return
    kept, now = entry[1]["digest"], view.digest
    if kept != now and kept.partition("-")[0] == now.partition("-")[0]:  # not of an older recsys
        why = "has changed since the store was written, and events that are no longer in its stream would be lost"
        raise UserError(f"{view.name}: the definition {why}; write another store, or name the view otherwise")


def _materialise(view: View, store: FeatureStore, until: Any, rejected: Path | None) -> int:
    check_definition(view, store)
    for copy, original in view.copies().items():
        say(f"{view.name}: {copy} has the content of {original}; its events count once")
    reading = _reserved(view, store, until, rejected)
    for note in reading.notes:
        say(note)
    new = list(reading.numbers)
    if not new:
        return 0
    written = 0
    if view.columns:
        with readable(view.name):
            latest = view.latest(until, new)
        with bar(f"writing {view.name}", latest.height, "entities") as shown:
            written = store.put(view.name, entries(view, latest, shown.advance), latest_time(latest[view.time].dtype))
    if view.aggregates:
        written = max(written, _put_events(view, store, until, reading))
    if until is None:  # last: until then, the next run reads the same files again
        done = {f.number: f for f in reading.done()}

        def finished(_: str, stored: Values | None) -> tuple[float, Values]:  # another process may have read others
            files = [done.get(f.number, f) for f in _files(view, stored or {}) if f.number not in reading.replaced]
            return time.time(), _kept(view, files)

        store.update(files_of(view.name), [ALL], finished)
    return written


def _reserved(view: View, store: FeatureStore, until: Any, rejected: Path | None) -> Reading:
    """Store the numbers of new files, and return the files that are to be read."""
    while True:
        [entry] = store.get(files_of(view.name), [ALL])
        stored = {} if entry is None else entry[1]
        known = _files(view, stored)
        reading = look(view, known, whole=until is not None)
        if reading.files == known:
            return reading
        view.check_values(list(reading.numbers), rejected)
        if replace(store, files_of(view.name), ALL, _kept(view, reading.files), expected=stored):
            return reading


def _files(view: View, stored: Values) -> list[LogFile]:
    """Return the files that were read by this definition."""
    return from_json(stored["files"]) if stored.get("digest") == view.digest else []


def _kept(view: View, files: list[LogFile]) -> Values:
    return {"digest": view.digest, "files": to_json(files)}


def entries(view: View, rows: pl.DataFrame, advance: Callable[[int], object] = lambda _: None) -> Iterator[Entry]:
    """Yield key, time and values of each entity's last row, as a store keeps them. advance: called with 1 for each"""
    times = rows[view.time]  # numbers stay as they are
    latest = time.time() if times.dtype == pl.Date else sys.float_info.max  # a date may have begun in other time zones
    times = times.cast(pl.Datetime("us")).dt.epoch("us") / 1e6 if times.dtype.is_temporal() else times.cast(pl.Float64)
    times = times.clip(upper_bound=latest)
    for (key, *values), time_ in zip(rows.select(view.key, *view.columns).iter_rows(), times, strict=True):
        yield key, time_, dict(zip(view.columns, values, strict=True))
        advance(1)


def _put_events(view: View, store: FeatureStore, until: Any, reading: Reading) -> int:
    """Merge the events of files into the stored events of each entity."""
    parts = []
    for path, number in reading.numbers.items():
        frame = view.until(view.scan([path]), until)
        dtype = frame.collect_schema()[view.time]
        per_second = ticks_per_second(dtype)
        time_ = ticks(pl.col(view.time), dtype, per_second).alias(TICK)
        parts.append(frame.select(view.key, time_, *view.event_columns, pl.lit(number).alias(FILE)))
    events = pl.concat(parts).sort(TICK, maintain_order=True)
    with readable(view.name):
        grouped = events.group_by(view.key).agg(pl.all()).collect(engine="streaming")
    newest = grouped.select(pl.col(TICK).list.max().max()).item()
    merger = EventMerger(view, per_second, newest)
    read = {*reading.numbers.values(), *reading.replaced}
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
