"""Files that a user names: why one cannot be read, and which of them have the same content."""

import hashlib
import os
import stat
from collections.abc import Sequence
from pathlib import Path

LFS = b"version https://git-lfs.github.com/spec/"
POINTER = "is a pointer of Git LFS, not the file itself; run: git lfs pull"
END = 1 << 16  # bytes of both ends of a file that are compared before all of it


def problem_of(path: str | Path, *, opens: bool = True) -> str | None:
    """Return why a path cannot be read as a file, such as 'no such file'; None if it can.

    A named pipe is not opened, which would wait for its writer.

    opens: whether to look into the file. Not into one of SQLite: closing it releases the locks of this process
    """
    if not str(path).isprintable() and any("\ud800" <= c <= "\udfff" for c in str(path)):
        return "has a name that is not UTF-8; rename it"
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        gone = os.path.islink(path)
        return f"is a link to {os.readlink(path)}, which does not exist" if gone else "no such file"
    except (OSError, ValueError) as e:  # ValueError: of a zero byte
        return f"cannot be read ({getattr(e, 'strerror', None) or e})"
    if stat.S_ISDIR(mode):
        return "is a folder"
    if stat.S_ISFIFO(mode):
        return "is a named pipe; write what comes out of it to a file first"
    if not stat.S_ISREG(mode):
        return "is a device or a socket, not a file"
    if not opens:
        return None
    try:
        return POINTER if is_pointer(path) else None
    except OSError as e:
        return f"cannot be read ({e.strerror})"


def is_pointer(path: str | Path) -> bool:
    """Return whether a file stands for one that Git LFS has not fetched."""
    with open(path, "rb") as file:
        return file.read(len(LFS)) == LFS


def copies_of(paths: Sequence[str]) -> dict[str, str]:
    """Return the files that have the content of an earlier one, as links and copies have: path -> the earlier path."""
    groups = [list(paths)]
    for key in (os.path.getsize, _ends, _whole):  # few files are read
        found: dict[tuple[int, object], list[str]] = {}
        for i, group in enumerate(groups):
            for path in group:
                found.setdefault((i, key(path)), []).append(path)
        groups = [same for same in found.values() if len(same) > 1]
    return {path: first for first, *others in groups for path in others}


def _ends(path: str) -> bytes:
    with open(path, "rb") as file:
        first = file.read(END)
        file.seek(max(0, os.path.getsize(path) - END))
        return hashlib.sha256(first + file.read(END)).digest()


def _whole(path: str) -> bytes:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").digest()
