"""Files that a user names: whether one can be read or written, and whether a name can be part of a path."""

import hashlib
import os
import stat
import tempfile
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path, PurePath

from recsys.base.errors import UserError
from recsys.files.run_files import CONFIG, OWN

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


def check_output(
    output: Path,
    suffixes: tuple[str, ...] = (),
    *,
    key: str = "output",
    inputs: Iterable[Path] = (),
    root: str | None = None,
    files: Sequence[str] = ("**",),
) -> None:
    """Check that writing to `output` overwrites nothing that the user needs.

    Args:
        suffixes: the suffixes of the files that the command can write; empty if it writes a folder.
        key: the config key of the path.
        inputs: files that the command reads.
        root: data.root, whose files are the raw data. If the command runs in it or below it, what no glob of `files`
            matches may be written there.
        files: data.source.files, globs below data.root.

    Raises:
        UserError: the path names another kind of file, an input, a place under data.root, a file of a run, or a
            place where nothing can be written.
    """
    kinds = " or ".join(suffixes)
    if suffixes and output.is_dir():
        raise UserError(f"{key}={output}: is a folder; name a {kinds} file")
    if suffixes and output.suffix not in suffixes:
        raise UserError(f"{key}={output}: must end in {kinds}")
    if output.exists() and not output.is_file() and not output.is_dir():
        raise UserError(f"{key}={output}: is a named pipe, a device or a socket; name a file")
    if not suffixes and output.is_file():
        raise UserError(f"{key}={output}: is a file; name a folder")
    if above := next((p for p in output.parents if p.is_file()), None):
        raise UserError(f"{key}={output}: {above} is a file, not a folder")
    # one of the inputs, also through links
    if any(output.resolve() == f.resolve() or (output.exists() and f.exists() and output.samefile(f)) for f in inputs):
        raise UserError(f"{key}={output}: is one of the inputs; name another file")
    if root is not None and "://" not in root and _is_raw(output, Path(root), files, bool(suffixes)):
        raise UserError(f"{key}={output}: lies in data.root={root}, the folder of the raw data; name another place")
    nearest = next(p for p in output.absolute().parents if p.is_dir())
    try:
        tempfile.TemporaryFile(dir=nearest).close()
    except OSError as e:
        raise UserError(f"{key}={output}: {nearest} cannot be written ({e.strerror}); name another place") from e
    folder = output if not suffixes else output.parent
    if (folder / CONFIG).exists() and (not suffixes or any(fnmatchcase(output.name, pattern) for pattern in OWN)):
        raise UserError(f"{key}={output}: belongs to the run in {folder}; name another place")


def _is_raw(output: Path, root: Path, globs: Sequence[str], is_file: bool) -> bool:
    """Return whether an output lies below data.root, where it, or a file in it, could be read as data."""
    if not _within(output, root):
        return False
    if not _within(Path(), root):
        return True
    parts = output.resolve().relative_to(root.resolve()).parts
    return not parts or any(_reaches(parts, PurePath(glob).parts, is_file) for glob in globs)


def _reaches(parts: Sequence[str], pattern: Sequence[str], is_file: bool) -> bool:
    """Return whether a glob matches a path or what may lie below it. A folder with a = stands for its files."""
    if "**" in pattern:
        return True
    if not all(fnmatchcase(part, p) for part, p in zip(parts, pattern, strict=False)):
        return False
    if len(parts) < len(pattern):
        return not is_file
    return (is_file and len(parts) == len(pattern)) or "=" in parts[len(pattern) - 1]


def _within(path: Path, folder: Path) -> bool:
    return path.resolve() == folder.resolve() or folder.resolve() in path.resolve().parents


FORBIDDEN = "/\\*?[]"
MOST_BYTES = 150  # with the suffixes that files get, less than the 255 bytes of a file's name


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
    return f"has {size} bytes, more than {MOST_BYTES}" if size > MOST_BYTES else None


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
