"""What files hold, as digests: equal content is prepared once, whatever its name and time."""

import hashlib
import json
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PosixPath

from filelock import FileLock

SETTLED_SECONDS = 2.0  # a file that was just written may be written again within its clock's tick


def digests(files: Sequence[Path], home: Path, advance: Callable[[float], None]) -> dict[Path, str]:
    """By file, a digest of its content; `home` remembers those of files whose size and time have not changed.

    Of a remote object, the digest is of what its store says of it (size, time, ETag): reading it twice is dear.
    """
    book = home / "contents.json"
    with FileLock(f"{book}.lock"):
        known = json.loads(book.read_text()) if book.exists() else {}
        found: dict[Path, str] = {}
        unknown: list[tuple[Path, list[int]]] = []
        for file in files:
            if not isinstance(file, PosixPath):
                found[file] = _remote(file)
                continue
            stat = file.stat()
            told = known.get(str(file.resolve()))
            if told and told[:2] == [stat.st_size, stat.st_mtime_ns]:
                found[file] = told[2]
                advance(stat.st_size)
            else:
                unknown.append((file, [stat.st_size, stat.st_mtime_ns]))
        with ThreadPoolExecutor(max(2, (os.cpu_count() or 1) // 2), thread_name_prefix="digest") as pool:
            for (file, stat_), digest in zip(unknown, pool.map(lambda u: _digest(u[0], advance), unknown), strict=True):
                found[file] = digest
                if time.time() - stat_[1] / 1e9 > SETTLED_SECONDS:
                    known[str(file.resolve())] = [*stat_, digest]
        if unknown:
            building = book.with_name(f".{book.name}")
            building.write_text(json.dumps(known))
            building.replace(book)
    return found


def together(digests: Sequence[str], read_as: object) -> str:
    """The digest of several files as one, in their order, of which something is to be read."""
    return hashlib.sha256(json.dumps([digests, read_as]).encode()).hexdigest()


def _digest(file: Path, advance: Callable[[float], None]) -> str:
    sha = hashlib.sha256()
    with file.open("rb", buffering=0) as f:
        while piece := f.read(1 << 22):
            sha.update(piece)
            advance(len(piece))
    return sha.hexdigest()


def _remote(file: Path) -> str:
    info = {k: str(v) for k, v in file.fs.info(file.path).items()}  # type: ignore[attr-defined]
    return hashlib.sha256(json.dumps(info, sort_keys=True).encode()).hexdigest()
