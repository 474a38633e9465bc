"""Atomic writes of files and folders: each is written under a hidden temporary name, then renamed.

Neither a reader nor the next run after `kill -9` sees a partly written file. The temporary file or folder is locked
while it is written (flock), and the lock ends with the process. So two processes never write to the same one, and what
a killed process leaves behind is replaced by the next writer.
"""

import fcntl
import json
import math
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from recsys.base.errors import UserError

WRITING = "while writing "  # begins the note on an error
MAX_ATTEMPTS = 100  # to create a folder that other processes remove at the same time


def beside(path: Path, *, unique: bool = False) -> Path:
    """Return the hidden path, next to `path`, under which it is written.

    unique: choose a new name, so that several processes can write at the same time
    """
    return path.with_name(f".{path.name}.{uuid.uuid4().hex[:8] if unique else 'building'}")


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Note on an error of the block what was being written: errors of libraries do not say on which disk they were."""
    try:
        yield
    except BaseException as e:
        e.add_note(f"{WRITING}{path}")
        raise


def written_at(error: BaseException) -> Path | None:
    """Return what was being written when an error was raised, if `writing` noted it."""
    notes = (n.removeprefix(WRITING) for n in getattr(error, "__notes__", ()) if n.startswith(WRITING))
    return next(map(Path, notes), None)


@contextmanager
def whole_file(path: Path, *, unique: bool = False) -> Iterator[Path]:
    """Yield a path to write to; it becomes `path` when the block ends, and is removed if the block raises.

    A second writer of the same path waits for the first one. If `path` is a link, the file that it names is written.
    """
    path = path.resolve() if path.is_symlink() else path
    building = beside(path, unique=unique)
    with _locked(building, lambda: os.open(building, os.O_RDWR | os.O_CREAT, 0o666), wait=True):
        try:
            with writing(path):
                os.truncate(building, 0)
                yield building
                building.replace(path)
        except BaseException:  # not after success, when the name may be another process's already
            building.unlink(missing_ok=True)
            raise


@contextmanager
def whole_folder(path: Path, *, new: bool = False) -> Iterator[Path]:
    """Yield an empty folder to fill; it becomes `path` when the block ends, and is removed if the block raises.

    Args:
        path: the folder. One that exists is replaced.
        new: the folder must not exist.

    Raises:
        UserError: another process is writing this folder or, with `new`, has written it.
    """
    building = beside(path)
    with _locked(building, lambda: _open_folder(building), wait=False):
        try:
            for entry in building.iterdir():  # the folder itself is locked
                shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
            with writing(path):
                yield building
                if new and path.exists():
                    raise UserError(f"{path}: was written by another process; name a folder that does not exist yet")
                put_in_place(building, path)
        except BaseException:
            shutil.rmtree(building, ignore_errors=True)
            raise


def put_in_place(building: Path, path: Path) -> None:
    """Rename the folder `building` to `path`, replacing a folder that exists there. One process at a time may do so.

    If the process is killed between the two renames, the next call puts the old folder back first.
    """
    old = path.with_name(f".{path.name}.old")
    if old.exists() and not path.exists():
        old.rename(path)
    shutil.rmtree(old, ignore_errors=True)
    try:
        with suppress(FileNotFoundError):
            path.rename(old)
        building.rename(path)
    except BaseException:
        if old.exists() and not path.exists():
            old.rename(path)
        raise
    shutil.rmtree(old, ignore_errors=True)


@contextmanager
def _locked(building: Path, open_: Callable[[], int], *, wait: bool) -> Iterator[None]:
    """Create and lock a temporary file or folder. Raises UserError if another process has it and `wait` is false."""
    descriptor = open_()
    try:
        _lock(descriptor, building, wait)
        while not _is(descriptor, building):  # the process that had the lock has renamed or removed it
            os.close(descriptor)
            descriptor = open_()
            _lock(descriptor, building, wait)
        yield
    finally:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # also for processes that were forked in the meantime
        os.close(descriptor)


def _lock(descriptor: int, building: Path, wait: bool) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        path = building.with_name(building.name.removeprefix(".").removesuffix(".building"))
        hint = "wait until it has ended, or name another place"
        raise UserError(f"{path}: another process is writing it; {hint}") from None
    except OSError:  # a file system without locks
        return


def _is(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _open_folder(folder: Path) -> int:
    for _ in range(MAX_ATTEMPTS):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            return os.open(folder, os.O_RDONLY)
        except (FileNotFoundError, FileExistsError):  # another process has just removed it
            continue
    raise UserError(f"{folder.parent}: no folder can be created here; name another place")  # as in /proc


def link_or_copy(source: str | Path, target: str | Path) -> None:
    """Link a file, or copy it to another file system."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy(source, target)


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


def write_json(path: Path, value: object) -> None:
    """Write a JSON file atomically. NaN and infinities, which JSON lacks, become null."""
    write_text(path, json.dumps(finite(value), indent=1) + "\n")


def finite(value: object) -> Any:
    """Return a value for JSON, which has neither NaN nor infinities: they become null.

    >>> finite({"auc": float("nan"), "rows": 3})
    {'auc': None, 'rows': 3}
    """
    if isinstance(value, dict):
        return {k: finite(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
