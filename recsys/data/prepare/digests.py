"""Digests of the content of files.

Files with equal content are prepared once, whatever their names and modification times.
"""

import hashlib
import json
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PosixPath

from filelock import FileLock

from recsys.atomic import write_text
from recsys.console import bar

PROGRESS_BYTES = 2 << 30  # show a progress bar above this size, which takes longer than a second to read
# metadata keys under which stores report a digest of the content
CONTENT = ("md5Hash", "crc32c", "ETag", "etag", "checksum")
CHANGED = ("LastModified", "last_modified", "updated", "mtime", "modified", "created")
SETTLED_SECONDS = 2.0  # a file younger than this may change again without a new modification time


def digests(files: Sequence[Path], home: Path) -> dict[Path, str]:
    """Return a digest of each file's content.

    `home` caches the digests of files whose size and time have not changed. The digest of a remote object is made of
    its metadata, because reading it twice is expensive: its size, and the store's own digest, else its name and time.
    """
    cache_file = home / "contents.json"
    with FileLock(f"{cache_file}.lock"):
        cache = json.loads(cache_file.read_text()) if cache_file.exists() else {}
        result = {f: _remote_digest(f) for f in files if not isinstance(f, PosixPath)}
        stats = {f: (f.stat().st_size, f.stat().st_mtime_ns) for f in files if f not in result}
        cached = {f: cache.get(str(f.resolve()), [0, 0, ""]) for f in stats}
        result |= {f: c[2] for f, c in cached.items() if tuple(c[:2]) == stats[f] and c[2]}
        new = [f for f in stats if f not in result]
        result |= dict(zip(new, _read(new, sum(stats[f][0] for f in new)), strict=True))
        for f in new:
            if time.time() - stats[f][1] / 1e9 > SETTLED_SECONDS:
                cache[str(f.resolve())] = [*stats[f], result[f]]
        if new:
            write_text(cache_file, json.dumps(cache))
    return result


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
