"""Write the events of a stream into partitions by their time, each event once.

    FOLDER/day=2026-01-31/stream-PARTITION-OFFSET.jsonl     events of a partition of the stream, from this offset on
    ROOT/stream.json                                        the positions in the stream, and the names of its partitions
    ROOT/rejected.jsonl                                     events that cannot be read, or have no time

Positions are written after the files, and before the first file of a partition. Files that begin at or after the
position of their partition were written by a process that was killed in between; they are removed, and their events are
read again.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from recsys.base.console import say
from recsys.base.errors import UserError
from recsys.files.atomic import whole_file, write_json
from recsys.files.journal import append_line
from recsys.files.json_text import parse_json
from recsys.follow.follow_settings import PartitionsConfig
from recsys.store.durations import seconds_of_age
from recsys.store.streams import Message, open_stream

FILE = re.compile(r"stream-(?P<partition>.*)-(?P<offset>\d{20})\.jsonl")
POSITIONS, REJECTED = "stream.json", "rejected.jsonl"
AHEAD = 86_400  # seconds by which the clocks of senders may be ahead
BATCH, WAIT = 50_000, 1.0  # events of a batch; seconds to wait for the first one


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
    latest = time.time() + AHEAD
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
            append_line(root / REJECTED, {"offset": message.offset, "partition": message.partition, "why": str(e),
                                          "text": text})  # fmt: skip
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
