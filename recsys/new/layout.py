"""Recognise the format of a file from its first bytes, and the columns that it has."""

import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from recsys.base.errors import UserError
from recsys.data.raw import json_lines
from recsys.data.raw.dialect import MAGIC, check_line_ends
from recsys.data.raw.formats import FORMATS
from recsys.files.input_files import problem_of
from recsys.files.json_text import parse_json
from recsys.new import quoted, raw_bytes
from recsys.new.find_dialect import Dialect, dialect_of
from recsys.new.find_encoding import encoding_of
from recsys.new.text_rows import json_array, json_frame, lines_frame

ARROW_AND_POLARS = (pa.ArrowException, pl.exceptions.PolarsError)
DAMAGED = (OSError, EOFError, ValueError, KeyError, BadZipFile, zlib.error, *ARROW_AND_POLARS)
FIRST_BYTES = 1 << 20
# bytes that no text holds; some separate values, or the values of lists
CONTROL = bytes(set(range(32)) - {*range(1, 6), *b"\t\n\v\f\r", *range(0x1C, 0x20)})


def _is_workbook(_: Path, first: bytes) -> bool:
    return first.startswith(b"PK") and (b"xl/" in first or b"[Content_Types].xml" in first[:1000])


def _is_pickle(file: Path, first: bytes) -> bool:
    return first[:1] == b"\x80" and first[1:2] in (b"\2", b"\3", b"\4", b"\5") and file.suffix != ".parquet"


def _is_tfrecord(_: Path, first: bytes) -> bool:
    """Return True for a length of 8 bytes, its checksum, and a message tf.train.Example."""
    return 12 < int.from_bytes(first[:8], "little") < 1 << 24 and first[12:13] == b"\n"


FOREIGN: dict[Callable[[Path, bytes], bool], str] = {
    _is_workbook: "is an Excel workbook; save its sheet as CSV, or write Parquet: polars.read_excel(FILE)",
    _is_pickle: "is a pickle, which runs code when it is read; if you trust it: pandas.read_pickle(FILE).to_parquet()",
    _is_tfrecord: "holds TFRecords; write them as Parquet, for example from tensorflow_datasets or tf.data",
}


class OtherRows(UserError):
    """Text whose rows have to be converted before they can be read."""


@dataclass
class Layout:
    """How a file is read.

    format: the format, in the words of `source.format`, or text if no separator divides its lines
    columns: the names of its columns
    dialect: how its text is read; None for files that are not text
    """

    format: str
    columns: list[str]
    dialect: Dialect | None = None

    @property
    def typed(self) -> bool:
        """Whether the columns have types, not only text."""
        return self.format in FORMATS and not FORMATS[self.format].untyped

    @property
    def maps_keys(self) -> bool:
        """Whether the file is one JSON object {key: value, ...}, which can only be a side table."""
        return self.format == "json" and self.dialect is not None


@contextmanager
def readable(file: Path) -> Iterator[None]:
    """Turn the errors that libraries raise about a damaged file into a UserError."""
    try:
        yield
    except UserError:
        raise
    except DAMAGED as e:
        why = (
            f" ({e.strerror})" if isinstance(e, OSError) and e.strerror and not isinstance(e, pa.ArrowException) else ""
        )
        raise UserError(f"{file}: is damaged, or not what its first bytes say{why}; check it, or leave it out") from e


def layout_of(file: Path, header: bool | None = None) -> Layout:
    """Return the format of a file by its first bytes. Raises UserError if it is of no known format.

    header: whether the first line of text names the columns; None to look at it
    """
    if problem := problem_of(file):
        raise UserError(f"{file}: {problem}")
    with readable(file):
        return _layout(file, header)


def _layout(file: Path, header: bool | None) -> Layout:
    if file.suffix == ".npz":
        with np.load(file, allow_pickle=False) as arrays:
            return Layout("npz", list(arrays.files))
    first = raw_bytes.head(file, FIRST_BYTES)
    if first.startswith(b"PAR1"):
        return Layout("parquet", pq.read_schema(file).names)
    if first.startswith(b"ARROW1"):
        with file.open("rb") as f:  # not by its name, in which brackets are globs for polars
            return Layout("arrow", list(pl.read_ipc_schema(f)))
    if first.startswith(b"\x93NUMPY"):
        return Layout("npy", [file.stem])
    for is_foreign, hint in FOREIGN.items():
        if is_foreign(file, first):
            raise UserError(f"{file}: {hint}")
    for magic, kind in MAGIC.items():
        if first.startswith(magic):
            raise UserError(f"{file}: holds {kind}")
    encoding, why = encoding_of(first)
    control = len(first) - len(first.translate(None, CONTROL))
    if not encoding.startswith("utf-16") and control > len(first) // 100:
        raise UserError(f"{file}: is neither text nor Parquet, Arrow or NumPy; convert it to one of them")
    text = first.decode(encoding, errors="replace").removeprefix("\ufeff")
    if not text.strip():
        raise UserError(f"{file}: has no text")
    check_line_ends(text, file)
    escape, broken_by = _quoting(text)
    text = quoted.plain(text, broken_by or ",", escape=escape, line_breaks=broken_by is not None)
    lines = text.splitlines() if "\n" not in text else [line.rstrip("\r") for line in text.split("\n")]
    second = text[1:].lstrip()[:1] if first[:1] == b"[" else ""
    if second == "[":
        raise UserError(f"{file}: is one JSON array of arrays; write one object a line (JSON lines)")
    if second in ("{", "]"):
        return Layout("json", json_array(file).columns)
    if lines[0].strip() == "{":
        rows = re.search(r'"([\w-]+)":\s*\[\s*\{', text)
        hint = f"write each row on a line, such as jq -c '.{rows[1] if rows else 'ROWS'}[]' FILE > rows.jsonl"
        raise OtherRows(f"{file}: holds JSON objects over several lines; {hint}")
    dialect = dialect_of(lines[:-1] if len(first) == FIRST_BYTES else lines, encoding, header)
    if why:
        dialect.reasons["encoding"] = why
    if dialect.format == "csv" and dialect.quote == '"':
        dialect.escape, dialect.line_breaks = escape, dialect.separator == broken_by
    return _text_layout(file, lines, dialect)


def _text_layout(file: Path, lines: list[str], dialect: Dialect) -> Layout:
    """Return the layout of a text file. Raises OtherRows if its rows have to be converted before they can be read."""
    if dialect.format in ("svmlight", "lists") and _are_counted(lines[:200]):
        hint = f"remove it: cut -d ' ' -f 2- {file} > NEW"
        raise OtherRows(f"{file}: each line begins with the number of the values that follow; {hint}")
    if dialect.title:
        raise OtherRows(f"{file}: {dialect.title}")
    if dialect.format == "jsonl" and not _parses(lines[0]):
        if not _is_json(lines[0]) and (what := json_lines.python_objects(lines[0], file)) is not None:
            raise OtherRows(f"{file}: {what}")
        return Layout("json", ["key", "value"], dialect)
    if dialect.format == "jsonl":
        return Layout("jsonl", list(json_frame(lines[:200]).columns), dialect)
    if dialect.format in ("svmlight", "slots"):
        return Layout(dialect.format, list(lines_frame(lines[:200], dialect).columns), dialect)
    if dialect.format == "csv" and dialect.width < 2:
        return Layout("text", [], dialect)
    return Layout(dialect.format, list(dialect.columns), dialect)


def _are_counted(lines: Sequence[str]) -> bool:
    """Return True if the first number of each line is the number of values after it."""
    parts = [line.split() for line in lines if line.strip()]
    return len(parts) > 1 and all(p[0] == str(len(p) - 1) for p in parts) and len({len(p) for p in parts}) > 1


def _quoting(text: str) -> tuple[bool, str | None]:
    """Return whether backslashes escape quotes within values, and the separator of values that hold line breaks."""
    if '"' not in text or text.lstrip()[:1] in ("{", "["):
        return False, None
    escape = quoted.escapes(text)
    return escape, quoted.broken_by(quoted.plain(text, ",", escape=escape, line_breaks=False))


def _is_json(line: str) -> bool:
    try:
        parse_json(line)
    except ValueError:
        return False
    return True


def _parses(line: str) -> bool:
    try:
        value = parse_json(line)
    except ValueError:
        return False
    return isinstance(value, dict) and not (len(value) > 100 and all(isinstance(v, list) for v in value.values()))
