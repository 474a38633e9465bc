"""What is read of a raw file: which piece, which columns."""

import gzip
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

UNREADABLE = (pa.ArrowException, OSError, EOFError, zlib.error, UnicodeDecodeError)


@dataclass(frozen=True)
class Wanted:
    """What is read of the rows: the columns, where the format can leave out others; those that are only numbers."""

    columns: frozenset[str] | None = None
    numbers: frozenset[str] = frozenset()


ALL = Wanted()


@dataclass(frozen=True)
class Piece:
    """What is read of a file: bytes [start, stop) of text (the lines that begin there), row groups of Parquet."""

    start: int = 0
    stop: int | None = None


WHOLE = Piece()


def open_bytes(file: Path) -> Any:
    raw = file.open("rb")
    return gzip.open(raw) if file.suffix == ".gz" else raw
