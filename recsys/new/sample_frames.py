"""Frames of rows: a sample, the rows of JSON, and a part of many rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from recsys.data.raw.nested import plain
from recsys.files.json_text import parse_json
from recsys.new import raw_bytes


@dataclass
class Sample:
    """Rows of raw files, as text or with the types of the file, and the estimated number of rows of all files."""

    frame: pl.DataFrame
    rows: int


def thinned(frame: pl.DataFrame, most: int) -> pl.DataFrame:
    """Return at most so many rows, in four runs from the head to the tail."""
    if frame.height <= most:
        return frame
    run = most // 4
    starts = [round(i * (frame.height - run) / 3) for i in range(4)]
    return pl.concat([frame.slice(s, run) for s in starts])


def json_frame(lines: Sequence[str]) -> pl.DataFrame:
    """Return the rows of JSON lines, without damaged lines."""
    rows = []
    for line in lines:
        try:
            row = parse_json(line)
        except ValueError:  # a damaged line, or one that was cut
            continue
        rows.append(row)
    return _rows_frame(rows)


def json_array(file: Path) -> pl.DataFrame:
    """Return the rows of a JSON array of objects."""
    with raw_bytes.opened(file) as raw:
        rows = parse_json(raw.read())
    return plain(_rows_frame(rows), file)


def _rows_frame(rows: Sequence[Any]) -> pl.DataFrame:
    """Return objects as rows, nested fields under their paths: {"user": {"id": 7}} is {"user.id": 7}."""

    def flat(row: dict[str, Any], prefix: str = "") -> dict[str, Any]:
        fields: dict[str, Any] = {}
        for name, value in row.items():
            fields |= flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
        return fields

    objects = [flat(row) for row in rows if isinstance(row, dict)]
    return pl.DataFrame(objects, infer_schema_length=None, strict=False) if objects else pl.DataFrame()
