"""What files hold, as digests: equal content is prepared once, whatever its name and time."""

import hashlib
import json
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PosixPath

from filelock import FileLock

CONTENT = ("md5Hash", "crc32c", "ETag", "etag", "checksum")  # what stores call what stands for the content
CHANGED = ("LastModified", "last_modified", "updated", "mtime", "modified", "created")
SETTLED_SECONDS = 2.0  # a file that was just written may be written again within its clock's tick


def digests(files: Sequence[Path], home: Path, advance: Callable[[float], None]) -> dict[Path, str]:
    """By file, a digest of its content; `home` remembers those of files whose size and time have not changed.

    Of a remote object, the digest is of what its store says of it: size and its own digest, else name and time:
    reading it twice is dear.
    """
    book = home / "contents.json"
    with FileLock(f"{book}.lock"):
        known = json.loads(book.read_text()) if book.exists() else {}
        found: dict[Path, str] = {}
        unknown: list[tuple[Path, list[int]]] = []
        for file in files:
            if not isinstance(file, PosixPath):
                found[file] = _remote(file)
                advance(file.stat().st_size)
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


def _digest(file: Path, advance: Callable[[float], None]) -> str:
    sha = hashlib.sha256()
    with file.open("rb", buffering=0) as f:
        while piece := f.read(1 << 22):
            sha.update(piece)
            advance(len(piece))
    return sha.hexdigest()


def _remote(file: Path) -> str:
    info = file.fs.info(file.path)  # type: ignore[attr-defined]
    content = next((str(info[k]) for k in CONTENT if info.get(k)), None)
    told = [content] if content else [str(file), *(str(info[k]) for k in CHANGED if info.get(k))]
    return hashlib.sha256(json.dumps([info["size"], *told]).encode()).hexdigest()
