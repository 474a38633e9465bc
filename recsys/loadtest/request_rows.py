"""Read the raw rows that requests are made of."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

from recsys.base.errors import UserError
from recsys.files.input_files import problem_of

Row = dict[str, Any]
History = list[Row]  # of a query of a retrieval model

MOST = 20_000  # number of rows that are read; requests repeat them
EXAMPLES = "examples.json"  # in the folder of an exported model


def read_rows(path: Path) -> list[Row]:
    """Return at most MOST rows of a CSV, JSON lines or Parquet file, or the examples of an exported model.

    Raises:
        UserError: the file is missing, empty, of another kind, or cannot be read.
    """
    if path.is_dir():
        path = path / EXAMPLES
        if not path.is_file():
            raise UserError(f"rows={path.parent}: has no {EXAMPLES}; name a file, or the folder of an exported model")
    if problem := problem_of(path):
        raise UserError(f"rows={path}: {problem}; name a CSV, JSON lines or Parquet file, or an exported model")
    reader = _examples if path.name == EXAMPLES else READERS.get(path.suffix.lower())
    if reader is None:
        raise UserError(f"rows={path}: must end in {', '.join(READERS)}, or be the folder of an exported model")
    try:
        rows = reader(path)
    except (ValueError, csv.Error) as e:
        raise UserError(f"rows={path}: cannot be read ({' '.join(str(e).split())[:200]})") from e
    if not rows:
        raise UserError(f"rows={path}: is empty; requests are made of rows")
    return rows


def read_histories(path: Path) -> list[History]:
    """Return the histories in the examples of a retrieval model, none for other rows, which `read_rows` has read."""
    path = path / EXAMPLES if path.is_dir() else path
    if path.name != EXAMPLES:
        return []
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
    return [history for history in rows if history] if isinstance(rows[0], list) else []


def _csv(path: Path) -> list[Row]:
    with path.open(newline="", encoding="utf-8") as f:
        return [{k: v for k, v in row.items() if k is not None} for row in islice(csv.DictReader(f), MOST)]


def _json_lines(path: Path) -> list[Row]:
    with path.open(encoding="utf-8") as f:
        rows = [json.loads(line) for line in islice(f, MOST) if line.strip()]
    return _checked(rows)


def _parquet(path: Path) -> list[Row]:
    import polars as pl
    from polars.exceptions import PolarsError

    try:
        return pl.scan_parquet(path, glob=False).head(MOST).collect().to_dicts()
    except (PolarsError, OSError) as e:
        raise ValueError(str(e)) from e


def _examples(path: Path) -> list[Row]:
    value = json.loads(path.read_text(encoding="utf-8"))
    rows = value.get("rows") if isinstance(value, dict) else None
    if not isinstance(rows, list):
        raise ValueError('it has no list "rows"')
    if rows and isinstance(rows[0], list):  # retrieval: a history of rows for each query
        rows = [row for history in rows for row in history]
    return _checked(rows[:MOST])


def _checked(rows: list[Any]) -> list[Row]:
    if wrong := next((i for i, row in enumerate(rows, 1) if not isinstance(row, dict)), None):
        raise ValueError(f"row {wrong} is not an object of columns and values")
    return rows


READERS: dict[str, Callable[[Path], list[Row]]] = {
    ".csv": _csv,
    ".jsonl": _json_lines,
    ".ndjson": _json_lines,
    ".parquet": _parquet,
}
