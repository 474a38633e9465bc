"""Parts of a raw file to read (FileRange), columns to read (Projection), and functions that open a file."""

import gzip
import io
import zlib
from dataclasses import dataclass
from pathlib import Path, PosixPath
from typing import BinaryIO, cast

import pyarrow as pa

READ_AHEAD = 1 << 20  # stores read 5 MB and more ahead, too much for reading a header
UNREADABLE = (pa.ArrowException, OSError, EOFError, zlib.error, UnicodeDecodeError)


@dataclass(frozen=True)
class Projection:
    """The columns to read.

    columns: the columns to read, None for all; formats that cannot skip columns read all of them
    numbers: the columns that are only used as numbers, so that they need not be read as text
    """

    columns: frozenset[str] | None = None
    numbers: frozenset[str] = frozenset()


ALL = Projection()


@dataclass(frozen=True)
class FileRange:
    """A part [start, stop) of a file: bytes of text (the lines that begin there), row groups of Parquet, or rows."""

    start: int = 0
    stop: int | None = None


WHOLE = FileRange()


def open_bytes(file: Path) -> BinaryIO:
    """Open a local or remote file, decompressed if its name ends in .gz."""
    raw = file.open("rb") if isinstance(file, PosixPath) else remote_bytes(file)
    return cast(BinaryIO, gzip.open(raw) if file.suffix == ".gz" else raw)


def remote_bytes(file: Path) -> io.BufferedReader:
    """Open an object in a remote store; its bytes are fetched as they are read."""
    return io.BufferedReader(file.open("rb", block_size=READ_AHEAD), READ_AHEAD)  # type: ignore[call-overload,no-any-return]
