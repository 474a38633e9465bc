"""Blocks of raw rows with their line numbers, bad rows, and reserved names of columns. Imports no reader."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl

LABEL = "__label__"  # the label, or the first of several labels
WEIGHT = "__weight__"
POSITION = "__position__"  # Int32, where the row stood in its list
TIME = "__time__"  # the time that a split by time sorts by
KEY = "__key__"  # the value whose rows a split by hash keeps together
GROUP = "__group__"  # the group that the row belongs to
ORDER = "__order__"  # the number or time that sorts the rows of a group
SPLIT = "__split__"  # the split of an arranged row: 0 train, 1 validation, 2 test
IN_SPLIT = "__in_split__"  # 1 for rows in a split, 0 for others, with data.split.rows
PLACE = "__place__"  # the row's position among all rows
ITEM = "__item__"  # in the item table: the value that identifies an item
TARGETS = "__targets__"  # the items that follow a query, as candidates
HISTORY = "__history__"  # the items before a query, as candidates
TIMES = "__times__"  # of training rows, the order of each item of HISTORY
CONDITION = "__where__"  # begins the columns that say for which rows a condition is true
CONTENTS = "__contents__"  # the name of the sample of hashes of training rows
ROW = "__row__"  # PLACE in training rows, null in all others
LINE = "__line__"  # the line (CSV, libfm) or row (Parquet) of a raw row, from 1
ELEMENT = "__element__"  # data.source.explode: the place of a row in the list of its raw row, from 1
LIST = "list"  # format=lists and data.source.explode: the column that identifies the raw row
NOT_TEXT = "\ufffd"  # replaces bytes that are not UTF-8
TEXT_FORMATS = ("csv", "libfm", "svmlight", "lists", "split_csv")  # of which RawFormat.untyped is True
BLANK = " \t"  # spaces around values
EMPTY_LINE = "an empty line"  # the reason of a bad row that side tables ignore


def label_column(place: int, name: str) -> str:
    """Return the column of the label at this place."""
    return f"{LABEL}{name}" if place else LABEL


def prefix_name(levels: int) -> str:
    """Return the name of the feature of the first codes of semantic ids together: semantic_1_2 for 2 levels."""
    return "semantic_" + "_".join(str(i + 1) for i in range(levels))


@dataclass(frozen=True)
class BadRow:
    """A row that cannot be read: its place, the reason, and its text.

    column, problem: the raw column that cannot be read and what is wrong with it, if a single one is the reason
    value: the text of that column
    element: its place in the list of its raw row, 0 if the raw row is not exploded
    """

    file: str
    line: int
    reason: str
    text: str
    column: str = ""
    problem: str = ""
    value: str | None = None
    element: int = 0


@dataclass
class Block:
    """Consecutive rows of one raw file."""

    file: Path
    frame: pl.DataFrame  # raw columns and LINE; with data.source.explode, ELEMENT
    bad: list[BadRow] = field(default_factory=list)
    as_text: Callable[[], "Block"] | None = None  # returns the same rows as strings, if numbers are parsed already
    lines: int = 0  # lines of the file range read so far, this block's included


def numbered(file: Path, frame: pl.DataFrame, first: int) -> Block:
    """Return the rows as a block. first: the number of its first row in the file range"""
    lines = pl.int_range(first, first + frame.height, dtype=pl.Int64).alias(LINE)
    return Block(file, frame.with_columns(lines), lines=first + frame.height - 1)


def set_apart(block: Block, rows: pl.DataFrame, reason: pl.Expr) -> pl.DataFrame:
    """Add the rows that cannot be read to the block's bad rows, and return the other ones.

    Args:
        rows: rows with LINE and their text, in the column "text".
        reason: why a row cannot be read; null if it can.
    """
    judged = rows.with_columns(reason.alias("reason"))
    for line, why, row in judged.filter(pl.col("reason").is_not_null()).select(LINE, "reason", "text").iter_rows():
        block.bad.append(BadRow(str(block.file), line, why, row))
    block.bad.sort(key=lambda b: b.line)
    return judged.filter(pl.col("reason").is_null()).drop("reason")


def one_line(e: Exception) -> str:
    """Return the first line of an exception's message, printable and at most 160 characters long."""
    first = (str(e).splitlines() or [type(e).__name__])[0][:160]
    return "".join(c if c.isprintable() and c != NOT_TEXT else "?" for c in first)
