"""Where raw files lie: paths of this machine, or fsspec's, used alike, of s3://, gs://, hdfs:// and others."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from recsys.data.raw.blocks import one_line
from recsys.errors import UserError

EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs"}
MAGIC = "*?["


def is_remote(name: str) -> bool:
    return "://" in name and not name.startswith("file://")


def place(name: str, where: str) -> Path:
    """The path that `where=name` gives. Raises UserError where its store cannot be asked, or it is not there."""
    if not is_remote(name):
        path = Path(name.removeprefix("file://")).expanduser()
        there = path.exists()
    else:
        path, there = _asked(name, where)
    if not there:
        raise UserError(f"{where}={name}: no such folder or file")
    return path


def _asked(name: str, where: str) -> tuple[Path, bool]:
    from upath import UPath

    scheme = name.partition("://")[0]
    try:
        path: Any = UPath(name)
        path.fs.invalidate_cache()  # it may have changed since this process last looked
        return path, path.exists()
    except ImportError as e:
        extra = f"pip install recsys[{EXTRAS[scheme]}] (in a checkout: uv sync --extra {EXTRAS[scheme]})"
        raise UserError(f"{where}={name}: {scheme}:// needs {extra if scheme in EXTRAS else one_line(e)}") from e
    except Exception as e:  # each store has its own
        if scheme in str(e) and isinstance(e, ValueError):
            raise UserError(f"{where}={name}: no store is known as {scheme}://; s3://, gs://, hdfs:// are") from e
        hint = "; see its credentials" if "redential" in f"{type(e).__name__} {e}" else ""
        raise UserError(f"{where}={name}: {scheme}:// does not answer: {one_line(e)}{hint}") from e


def matching(pattern: str, where: str) -> list[Path]:
    """The remote files of a path, a folder or a glob, sorted; none where a glob matches none."""
    parts = pattern.split("/")
    first = next((i for i, part in enumerate(parts) if i > 2 and any(c in part for c in MAGIC)), None)
    if first is None:
        path = place(pattern, where)
        return in_order(p for p in path.iterdir() if p.is_file()) if path.is_dir() else [path]
    base = place("/".join(parts[:first]), where)
    return in_order(p for p in base.glob("/".join(parts[first:])) if p.is_file())


def in_order(paths: Iterable[Path]) -> list[Path]:
    """Folder by folder, and numbers in names by what they say, so that day_10 comes after day_2."""
    return sorted(paths, key=lambda p: [_natural(part) for part in p.parts])


def _natural(name: str) -> list[tuple[int, str]]:
    return [(int(p), p) if p.isdecimal() else (-1, p) for p in re.split(r"(\d+)", name)]
