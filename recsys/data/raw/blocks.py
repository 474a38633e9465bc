"""What readers give: rows with their lines, and those that cannot be read. Imports no reader, as serving needs none."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl

LINE = "__line__"  # the line (CSV, libfm) or row (Parquet) of a raw row, from 1
NOT_TEXT = "\ufffd"  # stands for bytes that are not UTF-8


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


def one_line(e: Exception) -> str:
    first = (str(e).splitlines() or [type(e).__name__])[0][:160]
    return "".join(c if c.isprintable() and c != NOT_TEXT else "?" for c in first)
