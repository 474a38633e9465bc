"""What reading a raw file gives, piece by piece: blocks of rows with their lines, and rows that did not fit."""

import gzip
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa

LINE = "__line__"  # the line (CSV, libfm) or row (Parquet) of a raw row, from 1
NOT_TEXT = "\ufffd"  # stands for bytes that are not UTF-8
UNREADABLE = (pa.ArrowException, OSError, EOFError, zlib.error, UnicodeDecodeError)


@dataclass(frozen=True)
class BadRow:
    file: str
    line: int
    reason: str
    text: str


@dataclass
class Block:
    file: Path
    frame: pl.DataFrame  # raw columns and LINE
    bad: list[BadRow] = field(default_factory=list)
    as_text: Callable[[], "Block"] | None = None  # the same rows as strings, where numbers were parsed at once
    lines: int = 0  # of the file, that it is made of


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


def one_line(e: Exception) -> str:
    first = (str(e).splitlines() or [type(e).__name__])[0][:160]
    return "".join(c if c.isprintable() and c != NOT_TEXT else "?" for c in first)
