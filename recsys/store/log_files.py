"""Which files of a view a store has read, known by their rows: a file that was renamed is not a new one.

For each file the store keeps its size and time, by which a change is noticed, and a few of its rows, by which it is
known under another name, or not known under its own:

- a file that was renamed, moved, joined to others, split, or compressed in another way takes the place of the old one
- a file that has more rows than before, or others with the same keys and times, is the same file, and is read again
- a file none of whose rows are there any more, as after a rotation, is a new one; the events of the old one stay

A file that is gone, and whose rows are in no other file, keeps its events.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import polars as pl

from recsys.store.aggregates import TICK, ticks, ticks_per_second
from recsys.store.views import View, readable

SAMPLE = 8  # rows of a file by which it is known
ROW = "__row__"
Row = tuple[int, str, str]  # time in ticks, digest of key and time, digest of all columns


@dataclass(frozen=True)
class LogFile:
    """A file that was read.

    number: of its events
    size, changed: in bytes, and nanoseconds since 1970; None until its events are in the store
    rows, sample: number of its rows, and some of them; none if the view has no aggregates
    gone: whether the file has been deleted, or another one has its name
    """

    path: str
    number: int
    size: int | None = None
    changed: int | None = None
    rows: int = 0
    sample: tuple[Row, ...] = ()
    gone: bool = False


@dataclass
class Reading:
    """The files of a view that are to be read.

    files: all files to keep in the store; those to be read have no size yet
    numbers: the numbers of the files to be read, by path
    replaced: numbers whose events the files to be read hold now
    states: size and time of all files when they were looked at
    notes: lines for the user
    """

    files: list[LogFile]
    numbers: dict[str, int] = field(default_factory=dict)
    replaced: set[int] = field(default_factory=set)
    states: dict[str, tuple[int, int]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def done(self) -> list[LogFile]:
        """Return the files to keep in the store once all were read."""
        kept = []
        for file in (f for f in self.files if f.number not in self.replaced):
            if file.number in self.numbers.values() and not file.gone:
                size, changed = self.states[file.path]
                file = replace(file, size=size, changed=changed)
            kept.append(file)
        return kept


def to_json(files: Iterable[LogFile]) -> list[dict[str, Any]]:
    """Return files as a store keeps them."""
    return [{**asdict(f), "sample": [list(row) for row in f.sample]} for f in files]


def from_json(files: Iterable[Mapping[str, Any]]) -> list[LogFile]:
    """Return the files that `to_json` wrote."""
    return [LogFile(**{**f, "sample": tuple(tuple(row) for row in f["sample"])}) for f in files]


def look(view: View, known: Sequence[LogFile], *, whole: bool) -> Reading:
    """Find out which files are to be read. Raises UserError if one cannot be.

    known: the files that were read, or that a killed process began to read
    whole: whether to read all files, and to keep them as not read
    """
    paths = view.paths()
    reading = Reading(list(known))
    for path in paths:
        stat = Path(path).stat()
        reading.states[path] = stat.st_size, stat.st_mtime_ns
    listed = {f.path: f for f in known if not f.gone}
    unread = [p for p in paths if whole or p not in listed or reading.states[p] != (listed[p].size, listed[p].changed)]
    described = {p: _described(view, p) for p in unread}
    kept = {p: listed[p] for p in unread if p in listed and _goes_on(view, listed[p], described[p], reading.notes)}
    gone = {p for p in listed if p not in reading.states} | {p for p in unread if p in listed and p not in kept}
    lost = [f for f in known if f.gone or f.path in gone]
    held = {p: [f for f, share in _held(view, lost, p, whole=True) if share] for p in unread}
    reading.replaced = {f.number for files in held.values() for f in files}
    reading.notes += [f"{p}: has the rows of {f.path}, which is gone; they count once" for p in held for f in held[p]]
    new = [f.path for f in lost if not f.gone and f.number not in reading.replaced]
    if new:
        what = f"{len(new):,} files that were read are gone, such as" if new[1:] else "a file that was read is gone:"
        reading.notes.append(
            f"{view.name}: {what} {new[0]}; the store keeps the {'events' if view.aggregates else 'values'}"
        )
    free = 1 + max((f.number for f in known), default=-1)
    for path in unread:
        number = kept[path].number if path in kept else free
        free += path not in kept
        reading.numbers[path] = number
    stays = [replace(f, gone=True) if f.path in gone else f for f in known if f.path not in kept or f.gone]
    reading.files = [*stays, *(replace(described[p], number=n) for p, n in reading.numbers.items())]
    return reading


def _goes_on(view: View, old: LogFile, new: LogFile, notes: list[str]) -> bool:
    """Return whether a file is still the one that was read under its name."""
    for _, share in _held(view, [old], new.path, whole=False):
        if not share:
            notes.append(f"{new.path}: is not the file that was read before, whose events stay")
            return False
        if share < 1 or new.rows < old.rows:
            notes.append(f"{new.path}: has lost rows since it was read; entities that it names no more keep theirs")
    return True


def _held(view: View, files: Sequence[LogFile], path: str, *, whole: bool) -> list[tuple[LogFile, float]]:
    """Return the share of the rows kept of files that are in another file; files without such rows are left out.

    whole: compare all columns, not only key and time
    """
    known = [f for f in files if f.sample]
    if not known:
        return []
    column = 2 if whole else 1
    rows = _rows(view, path).filter(pl.col(TICK).is_in({row[0] for f in known for row in f.sample}))
    digests = {row[column] for row in _digests(view, path, rows)}
    return [(f, sum(row[column] in digests for row in f.sample) / len(f.sample)) for f in known]


def _described(view: View, path: str) -> LogFile:
    """Return a file with some of its rows, evenly from its first to its last."""
    if not view.aggregates:
        return LogFile(path, -1)
    with readable(f"{view.name}: {path}"):
        rows = int(_rows(view, path).select(pl.len()).collect(engine="streaming").item())
    places = sorted({round(i * (rows - 1) / (SAMPLE - 1)) for i in range(SAMPLE)}) if rows else []
    picked = _rows(view, path).with_row_index(ROW).filter(pl.col(ROW).is_in(places)).drop(ROW)
    return LogFile(path, -1, rows=rows, sample=tuple(_digests(view, path, picked)) if rows else ())


def _rows(view: View, path: str) -> pl.LazyFrame:
    frame = view.scan([path])
    dtype = frame.collect_schema()[view.time]
    tick = ticks(pl.col(view.time), dtype, ticks_per_second(dtype)).alias(TICK)
    return frame.select(tick, view.key, *view.event_columns)


def _digests(view: View, path: str, rows: pl.LazyFrame) -> list[Row]:
    with readable(f"{view.name}: {path}"):
        found = rows.collect(engine="streaming")
    return [(tick, _digest(tick, key), _digest(tick, key, *rest)) for tick, key, *rest in found.iter_rows()]


def _digest(*values: object) -> str:
    return hashlib.blake2b(json.dumps(values, default=str).encode(), digest_size=6).hexdigest()
