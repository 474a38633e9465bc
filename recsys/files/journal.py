"""Journals: files of JSON lines that processes only append to, and that `kill -9` at any moment leaves readable."""

import json
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from recsys.files.atomic import finite


def append_line(path: Path, value: Mapping[str, Any]) -> None:
    """Append a JSON object as one line, and return when it is on disk.

    A line that a killed process has written in part is ended first, so that it damages no other line.
    """
    line = json.dumps(finite(dict(value)), ensure_ascii=False) + "\n"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
    try:
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            line = "\n" + line
        rest = line.encode()
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a journal, oldest first, without lines that were written in part; none if it is missing."""
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return []
    values = []
    for line in text.split(b"\n"):
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            values.append(value)
    return values


def now() -> str:
    """Return the time in ISO 8601, in UTC, to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
