"""Find raw files, local or by fsspec (s3://, gs://, hdfs://), know the files that commands write, and digest files."""

import hashlib
import json
import re
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PosixPath
from typing import Any, cast
from urllib.parse import unquote

import xxhash
from filelock import FileLock

from recsys.base.console import bar
from recsys.base.cores import reading_threads
from recsys.base.errors import Unavailable, UserError
from recsys.base.packages import check_extra
from recsys.data.features.blocks import one_line
from recsys.files.atomic import write_text
from recsys.files.data_files import divided, files_in, matching

EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs"}
NO_VALUE = "__HIVE_DEFAULT_PARTITION__"  # the folder of rows whose partition column is null
DEFAULT = "outputs"  # the folder of runs and prepared data, unless the config names others
PROGRESS_BYTES = 2 << 30  # show a progress bar above this size, which takes longer than a second to read
# metadata keys under which stores report a digest of the content
CONTENT = ("md5Hash", "crc32c", "ETag", "etag", "checksum")
CHANGED = ("LastModified", "last_modified", "updated", "mtime", "modified", "created")
SAMPLE_BYTES = 1 << 16
SETTLED_SECONDS = 2.0  # a file younger than this may change again without a new modification time


def is_remote(name: str) -> bool:
    """Return whether a path is on a remote store, such as s3://."""
    return "://" in name and not name.startswith("file://")


def check_remote(name: str | None, key: str) -> None:
    """Raise UserError if `key=name` is on a remote store whose extra is not installed."""
    if name is not None and (extra := EXTRAS.get(name.partition("://")[0])) and "://" in name:
        check_extra(extra, f"{key}={name}")


def resolve_path(name: str, key: str) -> Path:
    """Return the local or remote path that the config sets by `key=name`.

    Raises:
        UserError: the path does not exist, or its store cannot be reached.
    """
    if not is_remote(name):
        path = Path(name.removeprefix("file://")).expanduser()
        exists = path.exists()
    else:
        from upath import UPath

        scheme = name.partition("://")[0]
        check_remote(name, key)
        try:
            remote = UPath(name)
            remote.fs.invalidate_cache()  # the folder may have changed since this process last listed it
            path, exists = cast(Path, remote), remote.exists()
        except ImportError as e:
            raise UserError(f"{key}={name}: {scheme}:// needs a package that is not installed: {one_line(e)}") from e
        except Exception as e:  # each store raises its own exceptions
            if scheme in str(e) and isinstance(e, ValueError):
                raise UserError(f"{key}={name}: {scheme}:// is unknown; use s3://, gs:// or hdfs://") from e
            hint = "; check its credentials" if "redential" in f"{type(e).__name__} {e}" else ""
            raise Unavailable(f"{key}={name}: {scheme}:// cannot be reached: {one_line(e)}{hint}") from e
    if not exists:
        raise UserError(f"{key}={name}: no such folder or file")
    return path


def beside_root(root: str | None, file: str) -> Path:
    """Return the path of a file in the folder data.root, or beside the file that it is."""
    path = resolve_path(root or ".", "data.root")
    return (path.parent if path.is_file() else path) / file


def list_remote_files(pattern: str, key: str) -> list[Path]:
    """Return the remote files that a path, a folder or a glob names, sorted; empty if a glob matches none."""
    folder, rest = divided(pattern)
    path = resolve_path(folder, key)
    if rest:
        return natural_sort({*matching(path, rest)})
    return natural_sort(files_in(path)) if path.is_dir() else [path]


def partitions(file: Path, root: str | None) -> dict[str, str | None]:
    """Return the partition columns of a file: Hive's folders `day=2026-01-01/` below `root`.

    If the file is not below `root`, all folders of its path count.
    """
    parts = file.parent.parts
    if root is not None and not is_remote(root):
        above = Path(root).expanduser()
        if file == above:
            return {}
        parts = file.parent.relative_to(above).parts if file.is_relative_to(above) else parts
    named = (part.partition("=") for part in parts)
    return {name: None if value == NO_VALUE else unquote(value) for name, equals, value in named if name and equals}


def natural_sort(paths: Iterable[Path]) -> list[Path]:
    """Sort paths folder by folder, and numbers in names by value: day_2 comes before day_10."""

    def key(path: Path) -> list[list[tuple[int, str]]]:
        names = (re.split(r"(\d+)", name) for name in path.parts)
        return [[(int(p), p) if p.isdecimal() else (-1, p) for p in parts] for parts in names]

    return sorted(paths, key=key)


class Outputs:
    """The folders under `root` that hold runs, sweeps or prepared data.

    root: the folder of raw files
    prepared: data.prepared
    """

    def __init__(self, root: Path, prepared: str) -> None:
        self._root, self._known = root, {Path(DEFAULT).resolve(), Path(prepared).resolve()}
        self._seen: dict[Path, bool] = {}

    def contains(self, file: Path) -> bool:
        """Return whether a folder between the root and the file holds a run, a sweep or prepared data."""
        for folder in file.parents:
            if folder not in self._seen and self._root in folder.parents:
                self._seen[folder] = is_output(folder) or folder.resolve() in self._known
            if self._seen.get(folder):
                return True
        return False


def is_output(folder: Path) -> bool:
    """Return whether the folder is that of a run, a sweep or prepared data."""
    is_run = (folder / "config.yaml").is_file() and (folder / "checkpoints").is_dir()
    return is_run or any((folder / name).is_file() for name in ("sweep.json", "prepared.json"))


def digests(files: Sequence[Path], home: Path, *, verify: str = "stat") -> dict[Path, str]:
    """Return a digest of each file's content.

    `home` caches the digests of files that look as before. The digest of a remote object is made of its metadata,
    because reading it twice is expensive: its size, and the store's own digest, else its name and time.

    verify: content reads all files, whatever the cache says
    """
    cache_file = home / "contents.json"
    with FileLock(f"{cache_file}.lock"):
        try:
            content = json.loads(cache_file.read_text(encoding="utf-8"))
            cache: dict[str, list[Any]] = {str(name): list(known) for name, known in content.items()}
        except (OSError, ValueError, TypeError, AttributeError):  # missing or damaged: digests are computed again
            cache = {}
        result = {}
        for f in (f for f in files if not isinstance(f, PosixPath)):
            info = f.fs.info(f.path)  # type: ignore[attr-defined]  # a UPath
            own = next((str(info[k]) for k in CONTENT if info.get(k)), None)
            identity = [own] if own else [str(f), *(str(info[k]) for k in CHANGED if info.get(k))]
            result[f] = hashlib.sha256(json.dumps([info["size"], *identity]).encode()).hexdigest()
        looks = {f: _look(f) for f in files if f not in result}
        if verify != "content":
            for f, look in looks.items():
                if (known := cache.get(str(f.resolve()))) and known[:-1] == look:
                    result[f] = known[-1]
        new = [f for f in looks if f not in result]
        result |= dict(zip(new, _read(new, sum(looks[f][0] for f in new)), strict=True))
        for f in new:
            if time.time() - looks[f][1] / 1e9 > SETTLED_SECONDS:
                cache[str(f.resolve())] = [*looks[f], result[f]]
        if new:
            write_text(cache_file, json.dumps(cache))
    return result


def _look(file: Path) -> list[Any]:
    """Return size, times, inode, and a digest of head, middle and tail of a file, to notice that it has changed."""
    stat, sample = file.stat(), xxhash.xxh3_128()
    with file.open("rb", buffering=0) as f:
        for start in (0, max(stat.st_size // 2 - SAMPLE_BYTES // 2, 0), max(stat.st_size - SAMPLE_BYTES, 0)):
            f.seek(start)
            sample.update(f.read(SAMPLE_BYTES))
    return [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino, sample.hexdigest()]


def _read(files: list[Path], total: int) -> list[str]:
    with ThreadPoolExecutor(reading_threads(), thread_name_prefix="digest") as pool:
        if total < PROGRESS_BYTES:
            return list(pool.map(lambda f: _digest(f, lambda _: None), files))
        with bar("hashing files", total, unit="bytes") as shown:
            return list(pool.map(lambda f: _digest(f, shown.advance), files))


def combine(digests: Sequence[str], read_as: object) -> str:
    """Return the digest of several files that are read as one. read_as: how they are read, as JSON."""
    return hashlib.sha256(json.dumps([digests, read_as]).encode()).hexdigest()


def _digest(file: Path, advance: Callable[[float], None]) -> str:
    sha = hashlib.sha256()
    with file.open("rb", buffering=0) as f:
        while data := f.read(1 << 22):
            sha.update(data)
            advance(len(data))
    return sha.hexdigest()
