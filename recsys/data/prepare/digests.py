"""What files hold, as digests: equal content is prepared once, whatever its name and time."""

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

SHOWN_BYTES = 2 << 30  # that take longer than a second
CONTENT = ("md5Hash", "crc32c", "ETag", "etag", "checksum")  # what stores call what stands for the content
CHANGED = ("LastModified", "last_modified", "updated", "mtime", "modified", "created")
SETTLED_SECONDS = 2.0  # a file that was just written may be written again within its clock's tick


def digests(files: Sequence[Path], home: Path) -> dict[Path, str]:
    """By file, a digest of its content; `home` remembers those of files whose size and time have not changed.

    Of a remote object, the digest is of what its store says of it: size and its own digest, else name and time:
    reading it twice is dear.
    """
    book = home / "contents.json"
    with FileLock(f"{book}.lock"):
        known = json.loads(book.read_text()) if book.exists() else {}
        found = {f: _remote(f) for f in files if not isinstance(f, PosixPath)}
        stats = {f: (f.stat().st_size, f.stat().st_mtime_ns) for f in files if f not in found}
        told = {f: known.get(str(f.resolve()), [0, 0, ""]) for f in stats}
        found |= {f: t[2] for f, t in told.items() if tuple(t[:2]) == stats[f] and t[2]}
        new = [f for f in stats if f not in found]
        found |= dict(zip(new, _read(new, sum(stats[f][0] for f in new)), strict=True))
        for f in new:
            if time.time() - stats[f][1] / 1e9 > SETTLED_SECONDS:
                known[str(f.resolve())] = [*stats[f], found[f]]
        if new:
            write_text(book, json.dumps(known))
    return found


def _read(files: list[Path], total: int) -> list[str]:
    with ThreadPoolExecutor(max(2, (os.cpu_count() or 1) // 2), thread_name_prefix="digest") as pool:
        if total < SHOWN_BYTES:
            return list(pool.map(lambda f: _digest(f, lambda _: None), files))
        with bar("digesting", total, unit="bytes") as shown:
            return list(pool.map(lambda f: _digest(f, shown.advance), files))


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
    info = file.fs.info(file.path)  # type: ignore[attr-defined]
    content = next((str(info[k]) for k in CONTENT if info.get(k)), None)
    told = [content] if content else [str(file), *(str(info[k]) for k in CHANGED if info.get(k))]
    return hashlib.sha256(json.dumps([info["size"], *told]).encode()).hexdigest()
