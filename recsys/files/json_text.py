"""Parse JSON that others have written, and journals: files of JSON lines that are only appended to."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from recsys.base.append import append
from recsys.base.console import say_once
from recsys.base.errors import UserError
from recsys.files.atomic import finite
from recsys.files.user_files import problem_of

MAX_DEPTH = 64  # lists and objects within each other; readers of columns, such as polars, recurse


def parse_json(text: bytes | str) -> Any:
    """Return the value of a JSON text. Raises ValueError if it is not JSON, or is nested deeper than MAX_DEPTH.

    text: bytes may be UTF-8, UTF-16 or UTF-32, with a byte order mark or without

    >>> parse_json(b'{"a": [1, 2]}')
    {'a': [1, 2]}
    """
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError(f"nested deeper than {MAX_DEPTH} levels") from None
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(MAX_DEPTH):
        nested = (v.values() if isinstance(v, dict) else v for v in level)
        level = [v for values in nested for v in values if isinstance(v, dict | list)]
        if not level:
            return value
    raise ValueError(f"nested deeper than {MAX_DEPTH} levels")


def read_json(path: Path) -> Any:
    """Return the value of a JSON file.

    Raises OSError if the file is missing, and ValueError if it cannot be read, or is not JSON.
    """
    path.stat()
    if (problem := problem_of(path)) is not None:  # a named pipe would wait for its writer, and /dev/zero has no end
        raise ValueError(problem)
    return parse_json(path.read_bytes())


def append_line(path: Path, value: Mapping[str, Any]) -> None:
    """Append a JSON object as one line, and return when it is on disk. Raises OSError if it cannot be written."""
    append(path, (json.dumps(finite(dict(value)), ensure_ascii=False) + "\n").encode())


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
