"""Journals: files of JSON lines that processes only append to, and that `kill -9` at any moment leaves readable."""

import json
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from recsys.base.console import say_once
from recsys.base.errors import UserError
from recsys.files.atomic import finite
from recsys.files.input_files import problem_of
from recsys.files.json_text import parse_json


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
    """Return the objects of a journal, oldest first; none if it is missing.

    Lines that were written in part, or are damaged, are left out, which is said once. Raises UserError if the path is
    not a file that can be read.
    """
    if (problem := problem_of(path)) == "no such file":
        return []
    if problem is not None:
        raise UserError(f"{path}: {problem}")
    values, damaged = [], []
    for number, line in enumerate(path.read_bytes().split(b"\n"), 1):
        try:
            value = parse_json(line) if line.strip() else None
        except ValueError:
            value = line
        if isinstance(value, dict):
            values.append(value)
        elif value is not None:
            damaged.append(number)
    if damaged:
        others = f" and {len(damaged) - 1} more" if damaged[1:] else ""
        say_once(f"{path}: line {damaged[0]}{others} cannot be read, and is left out")
    return values


def now() -> str:
    """Return the time in ISO 8601, in UTC, to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
