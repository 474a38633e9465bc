"""Files that a user names: why one cannot be read, which have the same content, and which names files can have."""

import hashlib
import os
import re
import stat
from collections.abc import Sequence
from pathlib import Path

from recsys.base.errors import UserError

LFS = b"version https://git-lfs.github.com/spec/"
POINTER = "is a pointer of Git LFS, not the file itself; run: git lfs pull"
END = 1 << 16  # bytes of both ends of a file that are compared before all of it
SCHEME = re.compile(r"([A-Za-z][\w+.-]*):[/\\]")  # s3:/bucket is what is left of s3://bucket in a path
FORBIDDEN = "/\\*?[]"
MAX_BYTES = 150  # with the suffixes that files get, less than the 255 bytes of a file's name


def on_file_system(name: str, hint: str = "mount the store, or copy from or to it") -> str:
    """Return a name of a file or folder that the operating system must be able to open.

    Raises ValueError for a URL, of which a path would be a local folder `s3:`, and for a path of Windows.
    """
    found = SCHEME.match(name)
    if found is None and "://" not in name:
        return name
    if found is not None and found[1].lower() == "file":
        raise ValueError(f"is a URL; write the path itself: {re.sub('^/*', '/', name[5:])}")
    if found is not None and len(found[1]) == 1:
        raise ValueError("is a path of Windows; name one of this machine")
    raise ValueError(f"must be on a file system, not on an object store; {hint}")


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


def name_problem(name: str) -> str | None:
    """Return why files and folders cannot have this name, as the predicate of a sentence; None if they can.

    >>> name_problem("clicks"), name_problem("a/b")
    (None, 'contains /')
    """
    if not name or name != name.strip():
        return "is empty, or begins or ends with a space"
    if forbidden := [c for c in name if c in FORBIDDEN]:
        return f"contains {forbidden[0]}"
    if not name.isprintable():
        return "contains a character that cannot be printed"
    size = len(name.encode(errors="replace"))
    return f"has {size} bytes, more than {MAX_BYTES}" if size > MAX_BYTES else None


def check_name(name: str, key: str, example: str) -> None:
    """Raise UserError for a name that cannot be the name of a folder. key: the config key that holds it"""
    if problem := name_problem(name) or ("begins with a dot" if name.startswith(".") else None):
        raise UserError(f"{key}={shown_name(name)}: {problem}; choose a plain name, such as {example}")


def shown_name(name: str) -> str:
    """Return a name for a message, on one line and cut if it is long."""
    return repr(name if len(name) <= 40 else f"{name[:40]}...")


def file_url(file: Path, *, globs: bool = True) -> str:
    """Return a URL on the machines' own file system, whatever Spark's default is.

    globs: whether Spark takes the URL for a glob, as it does when it reads, so that special characters are escaped
    """
    return "file://" + "".join(f"\\{c}" if globs and c in "\\{}[]*?^" else c for c in str(file.absolute()))
