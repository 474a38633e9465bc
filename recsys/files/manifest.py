"""Digests of the files of a folder: written with the files, and checked when the files are read again.

    FOLDER/manifest.json     {"version": 1, "files": {path in the folder: [bytes, XXH3-128]}}

A checkpoint, prepared data and a run have one each. A digest detects damage (a flipped bit, a file cut short, a file
copied from another run), not forgery. `digest` is that of the manifest's other keys.
"""

import json
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import xxhash

from recsys.base.cores import reading_threads
from recsys.base.errors import UserError
from recsys.files.atomic import write_text
from recsys.files.user_files import POINTER, is_pointer, problem_of

FILE = "manifest.json"
MADE_FROM = "made_from"  # in manifest.json: globs of files elsewhere; when they change, a server loads the folder again
UNREADABLE = "is damaged and cannot be read"
BLOCK_BYTES = 1 << 22
MAX_PATH = 4000  # bytes of a path in a folder

Entry = tuple[int, str]  # bytes and digest of a file


class DamagedFile(UserError):
    """A file is missing or is not as it was written."""

    def __init__(self, file: Path, problem: str) -> None:
        super().__init__(f"{file}: {problem}")
        self.file, self.problem = file, problem

    def __reduce__(self) -> tuple[type["DamagedFile"], tuple[Path, str]]:
        return DamagedFile, (self.file, self.problem)


def entry_of(file: Path) -> Entry:
    """Read a file and return its entry."""
    state, size = xxhash.xxh3_128(), 0
    with file.open("rb", buffering=0) as f:
        while block := f.read(BLOCK_BYTES):
            state.update(block)
            size += len(block)
    return size, state.hexdigest()


def entries_of(
    folder: Path, files: Iterable[Path] | None = None, *, known: Mapping[str, Entry] | None = None
) -> dict[str, Entry]:
    """Read files in parallel and return their entries, by path in the folder.

    Args:
        files: by default, all files in the folder.
        known: entries of files that are not read again.
    """
    if files is None:
        files = (f for f in folder.rglob("*") if f.is_file() and f != folder / FILE)
    known = known or {}
    names = sorted(f.relative_to(folder).as_posix() for f in files)
    new = [name for name in names if name not in known]
    with ThreadPoolExecutor(reading_threads(), thread_name_prefix="manifest") as pool:
        return {**known, **dict(zip(new, pool.map(lambda name: entry_of(folder / name), new), strict=True))}


def write(folder: Path, entries: Mapping[str, Entry], about: Mapping[str, Any] | None = None) -> None:
    """Write the manifest of a folder. about: further keys, which describe the folder."""
    value = {"version": 1, **(about or {}), "files": dict(sorted(entries.items()))}
    value["digest"] = _digest(value)
    write_text(folder / FILE, json.dumps(value, indent=1) + "\n")


def _digest(value: Mapping[str, Any]) -> str:
    own = {k: v for k, v in value.items() if k != "digest"}
    return xxhash.xxh3_128_hexdigest(json.dumps(own, sort_keys=True).encode())


def content(folder: Path) -> dict[str, Any] | None:
    """Return the manifest of a folder, or None. Raises DamagedFile if the manifest is not as `write` wrote it."""
    file = folder / FILE
    if not file.exists():
        return None
    value = read_json(file, "files")
    if "digest" in value and value["digest"] != _digest(value):  # older manifests have none
        raise DamagedFile(file, "is damaged; its content differs from what was written")
    return value


def read(folder: Path) -> dict[str, Entry] | None:
    """Return the entries of a folder, None if it was written before there were manifests."""
    value = content(folder)
    try:
        return None if value is None else {name: (size, digest) for name, (size, digest) in value["files"].items()}
    except (ValueError, TypeError, AttributeError):
        raise DamagedFile(folder / FILE, UNREADABLE) from None


def read_json(file: Path, *keys: str) -> dict[str, Any]:
    """Read a JSON object with these keys. Raises DamagedFile if the file is missing or holds anything else."""
    if problem := problem_of(file):
        raise DamagedFile(file, "is missing" if problem == "no such file" else problem)
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        raise DamagedFile(file, UNREADABLE) from None
    if not isinstance(value, dict) or not value.keys() >= set(keys):
        raise DamagedFile(file, UNREADABLE)
    return value


def inside(folder: Path, name: str) -> Path:
    """Return folder / name, where the name comes out of a file that somebody else may have written.

    Raises:
        UserError: the path leads out of the folder, also by a link.
    """
    path = folder / name
    try:
        if (
            0 < len(os.fsencode(name)) < MAX_PATH
            and "\0" not in name
            and path.resolve().is_relative_to(folder.resolve())
        ):
            return path
    except (OSError, RuntimeError, ValueError):  # a name that is too long or no text, a circle of links
        pass
    raise UserError(f"{folder}: names the file {name[:200]!r}, which is not in this folder; it is not read")


@contextmanager
def from_elsewhere(folder: Path) -> Iterator[None]:
    """Raise DamagedFile, in one line, for whatever the content of a folder that somebody else wrote leads to."""
    try:
        yield
    except DamagedFile:
        raise
    except UserError as e:
        if str(folder) in str(e):
            raise
        raise UserError(f"{folder}: {e}") from e
    except BaseException as e:  # Rust's panics are not Exceptions
        if not isinstance(e, Exception) and type(e).__name__ != "PanicException":
            raise
        why = next((line.strip() for line in str(e).splitlines() if line.strip()), "")[:200]
        raise DamagedFile(folder, f"cannot be loaded ({type(e).__name__}: {why}); write it again") from e


def check_file(folder: Path, name: str, entry: Entry, *, size_only: bool = False) -> None:
    """Check that a file is as it was written.

    Args:
        name: path of the file within the folder.
        entry: its size in bytes and its digest, as the manifest has them.
        size_only: whether to compare the size alone, which does not read the file.

    Raises:
        DamagedFile: the file is missing or differs from its entry.
    """
    file = inside(folder, name)
    if not os.path.isfile(file):
        raise DamagedFile(file, "is missing")
    if (size := file.stat().st_size) != entry[0]:
        if is_pointer(file):
            raise DamagedFile(file, POINTER)
        raise DamagedFile(file, f"is damaged; it has {size:,} bytes and was written with {entry[0]:,}")
    if not size_only and entry_of(file)[1] != entry[1]:
        raise DamagedFile(file, "is damaged; its content differs from what was written")


def check(
    folder: Path,
    names: Iterable[str] | None = None,
    *,
    of: Callable[[str], bool] = lambda _: True,
    size_only: bool = False,
) -> None:
    """Check files of a folder in parallel; a folder without a manifest passes.

    Args:
        names: by default, all files of the manifest; those without an entry are not checked.
        of: selects the files to check among these.
        size_only: whether to compare sizes but no digests.

    Raises:
        DamagedFile: a file is missing or is not as it was written.
    """
    entries = read(folder)
    if entries is None:
        return
    chosen = [n for n in (sorted(entries) if names is None else names) if n in entries and of(n)]
    with ThreadPoolExecutor(reading_threads(), thread_name_prefix="manifest") as pool:
        list(pool.map(lambda name: check_file(folder, name, entries[name], size_only=size_only), chosen))


_checks: dict[tuple[Path, int, int], Future[None]] = {}  # by file, inode and time, which tell it from its successor
_checks_lock = threading.Lock()


@cache
def _background() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, thread_name_prefix="manifest")


class BackgroundCheck:
    """Checks large files of a folder in a thread, one after another, each once in a process.

    Args:
        folder: a folder; if it has no manifest, nothing is checked.
        files: files in it.
        advice: what to do about a damaged file, for the error.
    """

    def __init__(self, folder: Path, files: Iterable[Path], advice: str) -> None:
        self._folder, self._advice = folder, advice
        self._files = list(files)
        self._results: list[Future[None]] | None = None

    def start(self) -> None:
        """Start to check the files that this process has not checked yet."""
        if self._results is not None:
            return
        entries = read(self._folder) or {}
        self._results = []
        with _checks_lock:
            for file in self._files:
                name, stat = file.relative_to(self._folder).as_posix(), file.stat()
                key = (file, stat.st_ino, stat.st_mtime_ns)
                if name in entries and key not in _checks:
                    _checks[key] = _background().submit(check_file, self._folder, name, entries[name])
                self._results += [_checks[key]] if key in _checks else []

    def finish(self, *, wait: bool = True) -> None:
        """Raise DamagedFile if a file is damaged. wait: wait until all files are checked."""
        for result in self._results or ():
            if (wait or result.done()) and isinstance(damage := result.exception(), DamagedFile):
                raise DamagedFile(damage.file, f"{damage.problem}; {self._advice}")

    def check_now(self, files: Iterable[Path]) -> None:
        """Check files that could not be read. Raises DamagedFile for the first damaged one."""
        entries = read(self._folder) or {}
        for file in files:
            name = file.relative_to(self._folder).as_posix()
            try:
                if name in entries:
                    check_file(self._folder, name, entries[name])
            except DamagedFile as e:
                raise DamagedFile(file, f"{e.problem}; {self._advice}") from None
