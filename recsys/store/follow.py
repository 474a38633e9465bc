"""Keep a store up to date from streams of events, each of which counts once.

A store also keeps how far it has read each stream, and, with the events of an entity, which of them it has: a process
that was killed goes on where it was, and what it reads again changes nothing.

    store key                       value
    VIEW#streams, stream partition  the definition's digest, and the position in the stream
    VIEW#streams, *                 the definition's digest
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

import polars as pl

from recsys.base.console import say
from recsys.base.errors import did_you_mean
from recsys.files.text_values import as_text
from recsys.store.aggregates import TICK, ticks, ticks_per_second
from recsys.store.fitting import check_rejected, latest_time, reject
from recsys.store.materialise import ALL, STREAM, EventMerger, check_definition, entries
from recsys.store.stores import FeatureStore, Values, events_of, replace, streams_of
from recsys.store.streams import Message, Stream, open_stream
from recsys.store.views import View, columns_of

UNREADABLE = (ValueError, OverflowError, RecursionError, pl.exceptions.PolarsError)  # what an event can raise
BATCH, WAIT, REPORT = 2000, 0.5, 10.0  # events of a write; seconds that it waits for events, and between two reports


def follow(
    views: Sequence[View],
    store: FeatureStore,
    *,
    rejected: Path | None = None,
    properties: str | None = None,
    until_end: bool = False,
) -> dict[str, int]:
    """Write the events of the views' streams to the store, until the process is ended.

    rejected: a file to which events that cannot be read are appended; None makes the first of them an error
    properties: a file with settings of Kafka
    until_end: whether to return the number of events for each view when all events that are there were read
    """
    counts = {view.name: 0 for view in views}
    check_rejected(rejected)
    with ExitStack() as stack:
        open_ = [stack.enter_context(_opened(view, store, properties)) for view in views]
        followers = [Follower(v, s, store, rejected) for v, s in zip(views, open_, strict=True)]
        reports = [_Report(view.name) for view in views]
        while True:
            idle = True
            for follower, report in zip(followers, reports, strict=True):
                read = follower.step(WAIT / len(followers) if idle else 0)
                counts[follower.view.name] += read
                idle = idle and not read
                report(read, follower.last)
            if until_end and idle and all(f.stream.ended for f in followers):
                for report in reports:
                    report.say()
                return counts


def _opened(view: View, store: FeatureStore, properties: str | None) -> AbstractContextManager[Stream]:
    check_definition(view, store)
    replace(store, streams_of(view.name), ALL, {"digest": view.digest})

    def position(key: str) -> Any:
        [entry] = store.get(streams_of(view.name), [key])
        return entry[1] if entry is not None and entry[1]["digest"] == view.digest else None

    return open_stream(str(view.stream), position, properties)


class Follower:
    """Reads the events of one view's stream into the store."""

    def __init__(self, view: View, stream: Stream, store: FeatureStore, rejected: Path | None) -> None:
        self.view, self.stream, self.last = view, stream, ""
        self._store, self._rejected = store, rejected
        first = view.paths()[:1]
        wanted = dict.fromkeys([view.key, view.time, *view.columns, *view.event_columns])
        view.scan(first)  # raises UserError if a column is missing
        schema = columns_of(first[0], view.name)
        self._schema = {name: schema[name] for name in wanted}

    def step(self, wait: float) -> int:
        """Read the next events, write them, and then the position after them; return their number."""
        messages = self.stream.read(BATCH, wait)
        if not messages:
            return 0
        before, after = self.stream.positions(messages)
        self._put(before)
        read, frame = self._parsed(messages)
        if read:
            self._write(read, frame)
        self._put(after)
        return len(messages)

    def _put(self, positions: Mapping[str, Mapping[str, Any]]) -> None:
        for key, position in positions.items():
            replace(self._store, streams_of(self.view.name), key, {"digest": self.view.digest, **position})

    def _write(self, messages: Sequence[Message], frame: pl.DataFrame) -> None:
        view, dtype = self.view, self._schema[self.view.time]
        latest = frame[view.time].max()
        self.last = str(latest)
        if view.columns:
            newest = view.last_rows(frame.lazy()).collect()
            self._store.put(view.name, entries(view, newest), latest_time(dtype))
        if not view.aggregates:
            return
        per_second = ticks_per_second(dtype)
        at = frame[TICK]
        merger = EventMerger(view, per_second, at.max())  # type: ignore[arg-type]
        by_key: dict[str, list[Any]] = {}
        values = frame.select(view.event_columns).iter_rows() if view.event_columns else ((),) * frame.height
        for message, key, tick, row in zip(messages, frame[view.key], at, values, strict=True):
            event = (message.key, message.offset, (tick, STREAM, *row))
            by_key.setdefault(key, []).append(event)

        def merged(key: str, stored: Values | None) -> tuple[float, Values] | None:
            return merger.stream(stored, by_key[key])

        self._store.update(events_of(view.name), list(by_key), merged)

    def _parsed(self, messages: Sequence[Message]) -> tuple[Sequence[Message], pl.DataFrame]:
        """Return the messages that can be read, and their events; the others are rejected."""
        try:
            return messages, self._frame([self._values(m.value) for m in messages])
        except UNREADABLE:  # find out which one it is
            read, rows = [], []
            for message in messages:
                try:
                    values = self._values(message.value)
                    self._frame([values])
                except UNREADABLE as e:
                    where = f"{self.stream.url}, partition {message.partition}, offset {message.offset}"
                    text = message.value.decode(errors="replace").rstrip("\n")
                    reject(self._rejected, self.view.name, where, str(e).partition("\n")[0], text)
                else:
                    read.append(message)
                    rows.append(values)
            return read, self._frame(rows)

    def _values(self, text: bytes) -> dict[str, Any]:
        found = json.loads(text, parse_constant=_no_json)
        if not isinstance(found, dict):
            raise ValueError("is not a JSON object")
        for name in (self.view.key, self.view.time):
            if name not in found:
                raise ValueError(f"has no {name}{did_you_mean(name, found)}")
            if found[name] is None:
                raise ValueError(f"{name} is null")
        return {name: found.get(name) for name in self._schema}

    def _frame(self, rows: Sequence[dict[str, Any]]) -> pl.DataFrame:
        """Return events with the types of the files, the key as text, and TICK. Raises one of UNREADABLE."""
        frame = pl.DataFrame(
            [_column(name, [row[name] for row in rows], dtype) for name, dtype in self._schema.items()]
        )
        unfit = frame.select(flag.any().alias(name) for name, flag in self.view.unfit(self._schema).items())
        if wrong := next((flag.name for flag in unfit if flag[0]), None):
            raise ValueError(self.view.why_unfit(wrong, rows[0][wrong], self._schema[wrong]))
        dtype = self._schema[self.view.time]
        tick = ticks(pl.col(self.view.time), dtype, ticks_per_second(dtype)).alias(TICK)
        return frame.with_columns(as_text(pl.col(self.view.key), self._schema[self.view.key]), tick)


def _column(name: str, values: list[Any], dtype: pl.DataType) -> pl.Series:
    """Return values of JSON as a column of a type. Times are ISO 8601; those without a zone are UTC."""
    if isinstance(dtype, pl.Date | pl.Datetime):
        times = pl.Series(name, [None if v is None else _time(name, v) for v in values], pl.Datetime("us", "UTC"))
        zone = getattr(dtype, "time_zone", None)
        return (times.dt.convert_time_zone(zone) if zone else times.dt.replace_time_zone(None)).cast(dtype)
    try:
        return pl.Series(name, values, dtype, strict=True)
    except (TypeError, OverflowError, pl.exceptions.PolarsError):
        wrong = next(v for v in values if not _fits(v, dtype))
        raise ValueError(f"{name}={json.dumps(wrong)[:80]}: is not of type {dtype}, as in the files") from None


def _time(name: str, text: Any) -> datetime:
    try:
        found = datetime.fromisoformat(text)
    except (TypeError, ValueError):
        raise ValueError(f"{name}={json.dumps(text)}: is not a time such as 2026-01-31T12:00:00") from None
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)


def _no_json(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")


def _fits(value: object, dtype: pl.DataType) -> bool:
    try:
        pl.Series([value], dtype=dtype, strict=True)
    except (TypeError, OverflowError, pl.exceptions.PolarsError):
        return False
    return True


class _Report:
    """Says from time to time how many events were read."""

    def __init__(self, name: str) -> None:
        self._name, self._count, self._new, self._since, self._last = name, 0, 0, time.monotonic(), ""

    def __call__(self, read: int, last: str) -> None:
        self._count, self._new, self._last = self._count + read, self._new + read, last
        if self._new and time.monotonic() - self._since >= REPORT:
            self.say()

    def say(self) -> None:
        seconds = max(time.monotonic() - self._since, 1e-3)
        last = f", the last one of {self._last}" if self._last else ""
        say(f"{self._name}: {self._count:,} events, {self._new / seconds:,.0f} events/s{last}")
        self._new, self._since = 0, time.monotonic()
