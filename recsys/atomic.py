"""Atomic writes of files and folders: each is written under a hidden temporary name, then renamed.

Neither a reader nor the next run after `kill -9` sees a partly written file. A temporary file or folder that a killed
process leaves behind is replaced by the next writer, unless its name is unique.
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
    """Return the hidden path, next to `path`, under which it is written.

    unique: choose a new name, so that several processes can write at the same time
    """
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
    """Rename the folder `building` to `path`, replacing a folder that exists there."""
    old = path.with_name(f".{path.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if path.exists():
        path.rename(old)
    building.rename(path)
    shutil.rmtree(old, ignore_errors=True)


def remove_folder(path: Path) -> None:
    """Remove a folder. It is renamed first, so that a folder that is partly removed is not taken for a whole one."""
    removing = beside(path, unique=True)
    try:
        path.rename(removing)
    except FileNotFoundError:  # another process has removed it
        return
    shutil.rmtree(removing, ignore_errors=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file in UTF-8 atomically."""
    with whole_file(path) as building:
        building.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file atomically. NaN and infinities, which JSON lacks, become null."""
    write_text(path, json.dumps(finite(value), indent=1) + "\n")


def finite(value: Any) -> Any:
    """Return a value for JSON, which has neither NaN nor infinities: they become null."""
    if isinstance(value, dict):
        return {k: finite(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
