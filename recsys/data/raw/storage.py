"""Find raw files: local paths, or fsspec paths (s3://, gs://, hdfs://, ...), which are used in the same way."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import cast
from urllib.parse import unquote

from recsys.base.errors import UserError
from recsys.base.extras import check_extra
from recsys.data.features.blocks import one_line

EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs"}
MAGIC = "*?["
NO_VALUE = "__HIVE_DEFAULT_PARTITION__"  # the folder of rows whose partition column is null


def is_remote(name: str) -> bool:
    """Return whether a path is on a remote store, such as s3://."""
    return "://" in name and not name.startswith("file://")


def check_remote(name: str | None, key: str) -> None:
    """Raise UserError if `key=name` is on a remote store whose extra is not installed."""
    if name is not None and (extra := EXTRAS.get(name.partition("://")[0])) and "://" in name:
        check_extra(extra, f"{key}={name}")


def resolve_path(name: str, key: str) -> Path:
    """Return the local or remote path that the config sets by `key=name`.

    Raises:
        UserError: the path does not exist, or its store cannot be reached.
    """
    if not is_remote(name):
        path = Path(name.removeprefix("file://")).expanduser()
        exists = path.exists()
    else:
        from upath import UPath

        scheme = name.partition("://")[0]
        check_remote(name, key)
        try:
            remote = UPath(name)
            remote.fs.invalidate_cache()  # the folder may have changed since this process last listed it
            path, exists = cast(Path, remote), remote.exists()
        except ImportError as e:
            raise UserError(f"{key}={name}: {scheme}:// needs a package that is not installed: {one_line(e)}") from e
        except Exception as e:  # each store raises its own exceptions
            if scheme in str(e) and isinstance(e, ValueError):
                raise UserError(f"{key}={name}: {scheme}:// is unknown; use s3://, gs:// or hdfs://") from e
            hint = "; check its credentials" if "redential" in f"{type(e).__name__} {e}" else ""
            raise UserError(f"{key}={name}: {scheme}:// cannot be reached: {one_line(e)}{hint}") from e
    if not exists:
        raise UserError(f"{key}={name}: no such folder or file")
    return path


def list_remote_files(pattern: str, key: str) -> list[Path]:
    """Return the remote files that a path, a folder or a glob names, sorted; empty if a glob matches none."""
    parts = pattern.split("/")
    first = next((i for i, part in enumerate(parts) if i > 2 and any(c in part for c in MAGIC)), None)
    if first is None:
        path = resolve_path(pattern, key)
        return natural_sort(p for p in path.iterdir() if p.is_file()) if path.is_dir() else [path]
    base = resolve_path("/".join(parts[:first]), key)
    return natural_sort(p for p in base.glob("/".join(parts[first:])) if p.is_file())


def partitions(file: Path, root: str | None) -> dict[str, str | None]:
    """Return the partition columns of a file: Hive's folders `day=2026-01-01/` below `root`.

    If the file is not below `root`, all folders of its path count.
    """
    parts = file.parent.parts
    if root is not None and not is_remote(root):
        above = Path(root).expanduser()
        if file == above:
            return {}
        parts = file.parent.relative_to(above).parts if file.is_relative_to(above) else parts
    named = (part.partition("=") for part in parts)
    return {name: None if value == NO_VALUE else unquote(value) for name, equals, value in named if name and equals}


def natural_sort(paths: Iterable[Path]) -> list[Path]:
    """Sort paths folder by folder, and numbers in names by value: day_2 comes before day_10."""
    return sorted(paths, key=lambda p: [_natural_key(part) for part in p.parts])


def _natural_key(name: str) -> list[tuple[int, str]]:
    return [(int(p), p) if p.isdecimal() else (-1, p) for p in re.split(r"(\d+)", name)]
