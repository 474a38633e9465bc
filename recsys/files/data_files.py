"""Which files of a folder are data: the rule of all that read the folders and globs of users."""

import os
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path

MAGIC = "*?["


def is_data(parts: Iterable[str], pattern: str = "") -> bool:
    """Return whether a path is data: no file or folder in it is .name or _name, as _SUCCESS and _temporary are.

    Args:
        parts: the names of the path, below the folder that the user named.
        pattern: the glob that matched it; what it names counts, as `_*.csv` names _a.csv.
    """
    given = [p for p in pattern.split("/") if p.startswith((".", "_"))]
    hidden = (p for p in parts if p.startswith((".", "_")) and p not in (".", ".."))
    return all(any(fnmatchcase(part, p) for p in given) for part in hidden)


def files_in(folder: Path) -> list[Path]:
    """Return the files of data in a folder and in those within it, sorted."""
    return sorted(p for p in folder.rglob("*") if is_data(p.relative_to(folder).parts) and p.is_file())


def matching(root: Path, pattern: str) -> Iterator[Path]:
    """Yield the files of data that a path or a glob below `root` names, some perhaps twice.

    A folder counts with all its files if the pattern names it, if its name ends as the pattern does (Spark writes a
    folder x.parquet), and if it is a partition (`day=2026-01-01`). `**` at the end are the files of all folders. Links
    to nothing and pipes are yielded, too, so that they can be refused.
    """
    named = root / pattern
    if named.is_file():
        yield named
        return
    if pattern.rpartition("/")[2] == "**":  # folders alone before Python 3.13
        pattern += "/*"
    ending = pattern.rpartition(".")[2] if "." in pattern else None
    for path in [named] if pattern and named.is_dir() else root.glob(pattern):
        if not is_data(path.relative_to(root).parts, pattern):
            continue
        if not path.is_dir():
            yield path
        elif path == named or "=" in path.name or (ending is not None and path.name.endswith(f".{ending}")):
            yield from files_in(path)


def named_by(pattern: str) -> list[Path]:
    """Return the files of data that a path, a folder or a glob on this machine names, sorted; none for nothing."""
    path = Path(pattern)
    if path.is_dir():
        return files_in(path)
    folder, rest = divided(pattern)
    return [path] if os.path.lexists(path) or not rest else sorted({*matching(Path(folder), rest)})


def divided(pattern: str) -> tuple[str, str]:
    """Return the folder before the first wildcard of a pattern, and the rest.

    >>> divided("logs/2026/day_*/*.csv"), divided("*.csv"), divided("a.csv")
    (('logs/2026', 'day_*/*.csv'), ('', '*.csv'), ('a.csv', ''))
    """
    parts = pattern.split("/")
    start = 3 if "://" in pattern else 0
    first = next((i for i, part in enumerate(parts) if i >= start and any(c in part for c in MAGIC)), len(parts))
    folder = "/".join(parts[:first])
    return folder or ("/" if pattern.startswith("/") else ""), "/".join(parts[first:])
