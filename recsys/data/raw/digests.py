"""Digests of the content of raw files.

Files with equal content are prepared once, whatever their names and modification times. A file is not read again while
its size, times, inode and the digest of its head, middle and tail stay the same. data.verify=content reads all files.
"""

import hashlib
import json
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PosixPath
from typing import Any

import xxhash
from filelock import FileLock

from recsys.base.console import bar
from recsys.files.atomic import write_text

PROGRESS_BYTES = 2 << 30  # show a progress bar above this size, which takes longer than a second to read
# metadata keys under which stores report a digest of the content
CONTENT = ("md5Hash", "crc32c", "ETag", "etag", "checksum")
CHANGED = ("LastModified", "last_modified", "updated", "mtime", "modified", "created")
SAMPLE_BYTES = 1 << 16
SETTLED_SECONDS = 2.0  # a file younger than this may change again without a new modification time


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
        result = {f: _remote_digest(f) for f in files if not isinstance(f, PosixPath)}
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
    with ThreadPoolExecutor(max(2, (os.cpu_count() or 1) // 2), thread_name_prefix="digest") as pool:
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


def _remote_digest(file: Path) -> str:
    info = file.fs.info(file.path)  # type: ignore[attr-defined]  # a UPath
    content = next((str(info[k]) for k in CONTENT if info.get(k)), None)
    identity = [content] if content else [str(file), *(str(info[k]) for k in CHANGED if info.get(k))]
    return hashlib.sha256(json.dumps([info["size"], *identity]).encode()).hexdigest()
