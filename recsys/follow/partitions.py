"""Partitions: folders or files with an interval of event time in their names; events of a stream become them."""

from __future__ import annotations

import hashlib
import json
import math
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import MAXYEAR, UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from recsys.base.console import say
from recsys.base.durations import seconds_of_age
from recsys.base.errors import UserError
from recsys.data.raw.raw_files import natural_sort
from recsys.files.atomic import whole_file, write_json
from recsys.files.data_files import files_in, is_data
from recsys.files.json_text import append_line, parse_json
from recsys.follow.follow_settings import PartitionsConfig
from recsys.store.streams import Message, open_stream

DAY = re.compile(r"(\d{4}-\d{2}-\d{2})(?:[T_ ]?(\d{2})(?::?(\d{2}))?(?!\d))?")
HOUR = re.compile(r"hour=(\d{1,2})(?!\d)")
FILE = re.compile(r"stream-(?P<partition>.*)-(?P<offset>\d{20})\.jsonl")
POSITIONS, REJECTED = "stream.json", "rejected.jsonl"
MAX_AHEAD = 86_400  # seconds by which the clocks of senders may be ahead
BATCH, WAIT = 50_000, 1.0  # events of a batch; seconds to wait for the first one


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
        inside = files_in(path) if path.is_dir() else [path] if path.is_file() else []
        files = [f for f in inside if is_data(f.relative_to(config.folder).parts, config.pattern)]
        if not files:
            continue
        stats = [(f.relative_to(config.folder).as_posix(), (s := f.stat()).st_size, s.st_mtime_ns) for f in files]
        digest = hashlib.sha256(repr(stats).encode()).hexdigest()[:16]
        start = time_of(name)
        stop = None if start is None else start + timedelta(seconds=every)
        found.append(Partition(name, tuple(s[0] for s in stats), start, stop, digest, max(s[2] for s in stats) / 1e9))
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


def collect(config: PartitionsConfig, root: Path) -> int:
    """Write all events that are there now into partitions, and return their number.

    Raises:
        UserError: the stream cannot be read, or the folder has files of another collection.
    """
    assert config.stream is not None
    positions: dict[str, dict[str, Any]] = {}
    try:
        positions = dict(json.loads((root / POSITIONS).read_text(encoding="utf-8")))
    except FileNotFoundError:
        pass
    except (OSError, ValueError) as e:
        raise UserError(f"{root / POSITIONS}: is damaged ({e}); restore it, or remove it and the stream's files") from e
    # a process that was killed before it wrote the positions has left files
    following = {p["partition"]: int(p["next"]) for p in positions.values()}
    for file in sorted(config.folder.rglob("stream-*-*.jsonl")):
        if (found := FILE.fullmatch(file.name)) is None:
            continue
        if found["partition"] not in following:
            hint = "restore its stream.json, or name another folder"
            raise UserError(f"partitions.folder={config.folder}: {file.name} was collected with another root; {hint}")
        if int(found["offset"]) >= following[found["partition"]]:
            file.unlink()
    total = rejected = 0
    properties = None if config.kafka_properties is None else str(config.kafka_properties)
    with open_stream(config.stream, lambda key: positions.get(key), properties) as stream:
        while messages := stream.read(BATCH, WAIT):
            if new := {m.key: m for m in reversed(messages) if m.key not in positions}:  # the first of each partition
                before = stream.positions(messages)[0]
                for key, first in new.items():
                    positions[key] = before.get(key, {"next": first.offset}) | {"partition": first.partition}
                write_json(root / POSITIONS, positions)
            rejected += _write(config, root, messages)
            positions |= stream.positions(messages)[1]
            for message in messages:
                positions[message.key]["partition"] = message.partition
            write_json(root / POSITIONS, positions)
            total += len(messages)
    if total:
        say(f"{config.stream}: {total:,} events" + (f", {rejected:,} of them rejected" if rejected else ""))
    return total


def partition_name(seconds: float, every: float) -> str:
    """Return the name of the partition of an event. Raises ValueError for a time before year 1 or after 9999.

    every: seconds of a partition's interval
    """
    try:
        start = datetime.fromtimestamp(math.floor(seconds / every) * every, UTC)
    except (OverflowError, OSError, ValueError):
        raise ValueError(f"{seconds:g}: must be seconds since 1970, or a time in ISO 8601") from None
    if every % 86_400 == 0:
        return f"day={start.date()}"
    return f"day={start.date()}/hour={start:%H}" if every % 3600 == 0 else f"at={start.date()}T{start:%H%M}"


def _write(config: PartitionsConfig, root: Path, messages: Sequence[Message]) -> int:
    """Write a batch of events, and return how many were rejected."""
    every = seconds_of_age(config.every)
    assert every is not None
    files: dict[Path, list[bytes]] = {}
    first: dict[str, int] = {}
    rejected = 0
    latest = time.time() + MAX_AHEAD
    for message in messages:
        offset = first.setdefault(message.key, message.offset)
        try:
            event = parse_json(message.value.decode())
            if not isinstance(event, dict) or config.time not in event:
                raise ValueError(f"has no {config.time}")
            value = event[config.time]
            if isinstance(value, int | float) and not isinstance(value, bool):
                seconds = float(value)  # since 1970
            else:
                time_ = datetime.fromisoformat(str(value))
                seconds = (time_ if time_.tzinfo is not None else time_.replace(tzinfo=UTC)).timestamp()
            name = partition_name(seconds, every)
            if seconds > latest:  # as the newest event, it would make all partitions look complete
                raise ValueError(f"{name} is in the future")
        except (ValueError, OverflowError) as e:  # OverflowError: of an integer that no float holds
            text = message.value.decode(errors="replace").rstrip("\n")
            append_line(
                root / REJECTED, {"offset": message.offset, "partition": message.partition, "why": str(e), "text": text}
            )
            rejected += 1
            continue
        file = config.folder / name / f"stream-{message.partition}-{offset:020d}.jsonl"
        line = message.value.replace(b"\r", b" ").replace(b"\n", b" ").rstrip()  # JSON has them between values alone
        files.setdefault(file, []).append(line + b"\n")
    for file, lines in files.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(file) as building:
            building.write_bytes(b"".join(lines))
    return rejected
