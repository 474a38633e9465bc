"""Partitions: the folders or files in which data arrives, with the interval of event time in their names."""

from __future__ import annotations

import hashlib
import re
import time
from dataclasses import dataclass
from datetime import MAXYEAR, UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from recsys.base.errors import UserError
from recsys.data.raw.storage import natural_sort
from recsys.follow.follow_settings import PartitionsConfig
from recsys.store.durations import seconds_of_age

DAY = re.compile(r"(\d{4}-\d{2}-\d{2})(?:[T_ ]?(\d{2})(?::?(\d{2}))?(?!\d))?")
HOUR = re.compile(r"hour=(\d{1,2})(?!\d)")


@dataclass(frozen=True)
class Partition:
    """A partition.

    name: its path below the folder
    files: globs of its files, below the folder
    start, stop: its interval of event time; None if its name holds no time
    digest: of its files' names, sizes and times
    changed: when a file was changed last, in seconds since 1970
    """

    name: str
    files: tuple[str, ...]
    start: datetime | None
    stop: datetime | None
    digest: str
    changed: float


def find_partitions(config: PartitionsConfig) -> list[Partition]:
    """Return the partitions that are there, oldest first; those without files are left out."""
    every = seconds_of_age(config.every)
    assert every is not None
    found = []
    for path in natural_sort(config.folder.glob(config.pattern)):
        name = path.relative_to(config.folder).as_posix()
        inside = sorted(f for f in path.rglob("*") if f.is_file()) if path.is_dir() else [path]
        files = [f for f in inside if not any(p.startswith((".", "_")) for p in f.relative_to(config.folder).parts)]
        if not files:
            continue
        stats = [(f.relative_to(config.folder).as_posix(), (s := f.stat()).st_size, s.st_mtime_ns) for f in files]
        digest = hashlib.sha256(repr(stats).encode()).hexdigest()[:16]
        start = time_of(name)
        stop = None if start is None else start + timedelta(seconds=every)
        found.append(
            Partition(name, tuple(s[0] for s in stats), start, stop, digest, max(s[2] for s in stats) / 1e9)
        )  # fmt: skip
    return found


def rows_of(partition: Partition, folder: Path) -> int | None:
    """Return the number of rows of Parquet files, from their metadata; None for other files, which would be read."""
    if not all(f.endswith(".parquet") for f in partition.files):
        return None
    try:
        return sum(pq.read_metadata(folder / f).num_rows for f in partition.files)
    except (OSError, pa.ArrowException):  # the check of the partition says why
        return None


def time_of(name: str) -> datetime | None:
    """Return the time in a partition's name, in UTC; None if it holds none."""
    if (day := DAY.search(name)) is None:
        return None
    hour = HOUR.search(name)
    try:
        start = datetime.strptime(day[1], "%Y-%m-%d").replace(tzinfo=UTC)
        if start.year == MAXYEAR:  # the end of its interval would be no date
            return None
        return start + timedelta(hours=int(hour[1] if hour else day[2] or 0), minutes=int(day[3] or 0))
    except ValueError:
        return None


def ripe(partitions: list[Partition], config: PartitionsConfig, now: float | None = None) -> list[Partition]:
    """Return the partitions that are complete, and whose labels are ripe. partitions: all, oldest first

    Raises UserError if `delay` is set, and a partition's name holds no time.
    """
    now = time.time() if now is None else now
    settled = [p for p in partitions if now - p.changed >= config.settle_seconds or p.changed > now]
    delay = seconds_of_age(config.delay) or 0.0
    if config.delay is None and config.clock == "data":
        return settled
    if nameless := next((p for p in partitions if p.stop is None), None):
        raise UserError(
            f"partitions.delay={config.delay}: the name of {nameless.name} holds no time such as 2026-01-31; rename "
            "the partitions, or leave delay and clock out"
        )
    newest = max((p.stop.timestamp() for p in partitions if p.stop is not None), default=0.0)
    clock = newest if config.clock == "data" else now
    return [p for p in settled if p.stop is not None and p.stop.timestamp() + delay <= clock]
