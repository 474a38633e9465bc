"""Parse JSON that others have written: events of streams, and lines of logs."""

import json
from pathlib import Path
from typing import Any

from recsys.files.input_files import problem_of

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
