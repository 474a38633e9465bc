"""What is read of a raw file: which piece, which columns."""

import gzip
import io
import zlib
from dataclasses import dataclass
from pathlib import Path, PosixPath
from typing import Any

import pyarrow as pa

READ_AHEAD = 1 << 20  # stores' own are 5 MB and more, which a look at a header does not need
UNREADABLE = (pa.ArrowException, OSError, EOFError, zlib.error, UnicodeDecodeError)


@dataclass(frozen=True)
class Projection:
    """What is read of the rows: the columns, where the format can leave out others; those that are only numbers."""

    columns: frozenset[str] | None = None
    numbers: frozenset[str] = frozenset()


ALL = Projection()


@dataclass(frozen=True)
class FileRange:
    """What is read of a file: bytes [start, stop) of text (the lines that begin there), row groups of Parquet."""

    start: int = 0
    stop: int | None = None


WHOLE = FileRange()


def open_bytes(file: Path) -> Any:
    raw = file.open("rb") if isinstance(file, PosixPath) else remote_bytes(file)
    return gzip.open(raw) if file.suffix == ".gz" else raw


def remote_bytes(file: Path) -> io.BufferedReader:
    """An object of a store, which is fetched as it is read."""
    return io.BufferedReader(file.open("rb", block_size=READ_AHEAD), READ_AHEAD)  # type: ignore[call-overload,no-any-return]
