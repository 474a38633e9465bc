"""Recognise the format of a file from its first bytes, and the columns that it has."""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow.parquet as pq

from recsys.base.errors import UserError
from recsys.data.raw.dialect import MAGIC, check_line_ends
from recsys.files.input_files import problem_of
from recsys.new import layouts, raw_bytes
from recsys.new.find_dialect import dialect_of
from recsys.new.find_encoding import encoding_of
from recsys.new.find_separator import plain_quotes, quoting_of
from recsys.new.raw_bytes import readable
from recsys.new.sample_frames import json_array

FIRST_BYTES = 1 << 20
# bytes that no text holds; some separate values, or the values of lists
CONTROL = bytes(set(range(32)) - {*range(1, 6), *b"\t\n\v\f\r", *range(0x1C, 0x20)})
FOREIGN: dict[Callable[[Path, bytes], bool], str] = {
    lambda _, first: first.startswith(b"PK") and (b"xl/" in first or b"[Content_Types].xml" in first[:1000]): (
        "is an Excel workbook; save its sheet as CSV, or write Parquet: polars.read_excel(FILE)"
    ),
    lambda file, first: (
        first[:1] == b"\x80" and first[1:2] in (b"\2", b"\3", b"\4", b"\5") and file.suffix != ".parquet"
    ): ("is a pickle, which runs code when it is read; if you trust it: pandas.read_pickle(FILE).to_parquet()"),
    # a length of 8 bytes, its checksum, and a message tf.train.Example
    lambda _, first: 12 < int.from_bytes(first[:8], "little") < 1 << 24 and first[12:13] == b"\n": (
        "holds TFRecords; write them as Parquet, for example from tensorflow_datasets or tf.data"
    ),
}


def layout_of(file: Path, header: bool | None = None) -> layouts.Layout:
    """Return the format of a file by its first bytes. Raises UserError if it is of no known format.

    header: whether the first line of text names the columns; None to look at it
    """
    if problem := problem_of(file):
        raise UserError(f"{file}: {problem}")
    with readable(file):
        if file.suffix == ".npz":
            with np.load(file, allow_pickle=False) as arrays:
                return layouts.NpzLayout(columns=list(arrays.files))
        first = raw_bytes.head(file, FIRST_BYTES)
        if first.startswith(b"PAR1"):
            return layouts.ParquetLayout(columns=pq.read_schema(file).names)
        if first.startswith(b"ARROW1"):
            with file.open("rb") as f:  # not by its name, in which brackets are globs for polars
                return layouts.ArrowLayout(columns=list(pl.read_ipc_schema(f)))
        if first.startswith(b"\x93NUMPY"):
            return layouts.NpyLayout(columns=[file.stem])
        kinds = {f"holds {kind}" for magic, kind in MAGIC.items() if first.startswith(magic)}
        for what in (*(hint for is_foreign, hint in FOREIGN.items() if is_foreign(file, first)), *kinds):
            raise UserError(f"{file}: {what}")
        return _text_layout(file, first, header)


def _text_layout(file: Path, first: bytes, header: bool | None) -> layouts.Layout:
    """Return the layout of a text file. Raises OtherRows if its rows have to be converted first."""
    encoding, why = encoding_of(first)
    control = len(first) - len(first.translate(None, CONTROL))
    if not encoding.startswith("utf-16") and control > len(first) // 100:
        raise UserError(f"{file}: is neither text nor Parquet, Arrow or NumPy; convert it to one of them")
    text = first.decode(encoding, errors="replace").removeprefix("\ufeff")
    if not text.strip():
        raise UserError(f"{file}: has no text")
    check_line_ends(text, file)
    escape, broken_by = quoting_of(text)
    text = plain_quotes(text, broken_by or ",", escape=escape, line_breaks=broken_by is not None)
    lines = text.splitlines() if "\n" not in text else [line.rstrip("\r") for line in text.split("\n")]
    second = text[1:].lstrip()[:1] if first[:1] == b"[" else ""
    if second == "[":
        raise UserError(f"{file}: is one JSON array of arrays; write one object a line (JSON lines)")
    if second in ("{", "]"):
        return layouts.JsonArrayLayout(columns=json_array(file).columns)
    if lines[0].strip() == "{":
        rows = re.search(r'"([\w-]+)":\s*\[\s*\{', text)
        hint = f"write each row on a line, such as jq -c '.{rows[1] if rows else 'ROWS'}[]' FILE > rows.jsonl"
        raise layouts.OtherRows(f"{file}: holds JSON objects over several lines; {hint}")
    try:
        layout = dialect_of(lines[:-1] if len(first) == FIRST_BYTES else lines, encoding, header)
        layout.reasons |= {"encoding": why} if why else {}
        if layout.is_csv and layout.quote == '"':
            layout.escape, layout.line_breaks = escape, layout.separator == broken_by
        return layout.completed(lines, file)
    except layouts.OtherRows as e:
        e.args = (f"{file}: {e}",)
        raise
