"""Parse JSON that others have written: events of streams, and lines of logs."""

import json
from pathlib import Path
from typing import Any

from recsys.files.input_files import problem_of

MAX_DEPTH = 64  # lists and objects within each other; readers of columns, such as polars, recurse


def parse_json(text: bytes | str) -> Any:
    """Return the value of a JSON text in UTF-8. Raises ValueError if it is not JSON, or is nested beyond MAX_DEPTH."""
    if isinstance(text, bytes):
        text = text.decode()
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError(f"nested deeper than {MAX_DEPTH} levels") from None
    if max(text.count("["), text.count("{")) > MAX_DEPTH // 2:  # otherwise it cannot be deeper
        level = [value]
        for _ in range(MAX_DEPTH):
            nested = (v.values() if isinstance(v, dict) else v for v in level if isinstance(v, dict | list))
            level = [v for values in nested for v in values]
        if any(isinstance(v, dict | list) for v in level):
            raise ValueError(f"nested deeper than {MAX_DEPTH} levels")
    return value


def read_json(path: Path) -> Any:
    """Return the value of a JSON file.

    Raises OSError if it is missing, and ValueError if it is no file that can be read, or no JSON.
    """
    path.stat()
    if (problem := problem_of(path)) is not None:  # a named pipe would wait for its writer, and /dev/zero has no end
        raise ValueError(problem)
    return parse_json(path.read_bytes())
