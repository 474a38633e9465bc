"""Files and folders that are whole or absent: written beside their place, then renamed.

A reader, or the next run after `kill -9`, never sees half of one. What a killed process leaves beside the place is
hidden, and the next writer removes it.
"""

import json
import math
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def beside(path: Path, *, unique: bool = False) -> Path:
    """Return the hidden place beside `path` to build it in. unique: where several processes may build it at once."""
    return path.with_name(f".{path.name}.{uuid.uuid4().hex[:8] if unique else 'building'}")


@contextmanager
def whole_file(path: Path, *, unique: bool = False) -> Iterator[Path]:
    """Yield a path to write to; it becomes `path` when the block ends, and is removed if the block raises."""
    building = beside(path, unique=unique)
    try:
        yield building
        building.replace(path)
    finally:
        building.unlink(missing_ok=True)


@contextmanager
def whole_folder(path: Path, *, unique: bool = False) -> Iterator[Path]:
    """Yield an empty folder to fill; it replaces `path` when the block ends, and is removed if the block raises."""
    building = beside(path, unique=unique)
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir(parents=True)
    try:
        yield building
        put_in_place(building, path)
    finally:
        shutil.rmtree(building, ignore_errors=True)


def put_in_place(building: Path, path: Path) -> None:
    """Rename the folder `building` to `path`. A folder that is there already is renamed away first, then removed."""
    old = path.with_name(f".{path.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if path.exists():
        path.rename(old)
    building.rename(path)
    shutil.rmtree(old, ignore_errors=True)


def write_text(path: Path, text: str) -> None:
    """Write a whole text file."""
    with whole_file(path) as building:
        building.write_text(text)


def write_json(path: Path, value: Any) -> None:
    """Write a whole JSON file. NaN and infinities become null: JSON has none."""
    write_text(path, json.dumps(_finite(value), indent=1) + "\n")


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
