"""The formats of raw files: FORMATS has an object for each value of `data.source.format` that names files."""

import re
from collections.abc import Iterator
from pathlib import Path

import polars as pl

from recsys.data.features.blocks import Block
from recsys.data.raw import nested
from recsys.data.raw.arrow_files import Arrow, Parquet
from recsys.data.raw.byte_ranges import ALL, UNREADABLE, WHOLE, FileRange, Projection, open_bytes
from recsys.data.raw.csv_files import Csv, LibFm, Lists, SplitCsv, SvmLight
from recsys.data.raw.fixed_width import Npy, SplitBinary
from recsys.data.raw.json_lines import Json, JsonLines
from recsys.data.raw.raw_format import RawFormat, check_column_names
from recsys.schema.source_schema import SourceConfig

FORMATS: dict[str, RawFormat] = {
    f.name: f
    for f in (
        *(Csv(), LibFm(), SvmLight(), Lists(), Parquet(), JsonLines(), Json(), Arrow(), Npy()),
        *(SplitBinary(), SplitCsv()),
    )
}
SIDE_FORMATS = {suffix: f.name for f in FORMATS.values() for suffix in f.suffixes}  # formats of side tables, by suffix


def format_of(file: Path) -> str | None:
    """Return the format that the first bytes of a file say: parquet, arrow, json, jsonl, or csv for other text.

    None stands for other bytes, and for a file that cannot be read: its reader says why.
    """
    try:
        with open_bytes(file) as raw:
            first = raw.read(1 << 10)
    except UNREADABLE:
        return None
    starts = {rb"PAR1": "parquet", rb"ARROW1": "arrow", rb"(\xef\xbb\xbf)?\s*\{": "jsonl"}
    starts |= {rb"(\xef\xbb\xbf)?\s*\[\s*[{\]]": "json", rb"[^\0]*\Z": "csv"}
    return next((format_ for start, format_ in starts.items() if re.match(start, first)), None)


def column_names(source: SourceConfig, file: Path) -> list[str]:
    """Return the raw columns of `file` from its header or schema, without reading rows."""
    return list(unexploded_frame(source, file).columns)


def empty_frame(source: SourceConfig, file: Path) -> pl.DataFrame:
    """Return a frame without rows that has the raw columns of `file` and their types."""
    frame = unexploded_frame(source, file)
    return frame if source.explode is None else nested.plain(nested.explode_types(source, frame), file)


def unexploded_frame(source: SourceConfig, file: Path) -> pl.DataFrame:
    """Return a frame like `empty_frame`, with the columns of data.source.explode as they are in the file."""
    frame = FORMATS[source.format].empty_frame(source, file)
    check_column_names(frame.columns, file)
    return frame


def read(
    source: SourceConfig, file: Path, names: list[str], file_range: FileRange = WHOLE, projection: Projection = ALL
) -> Iterator[Block]:
    """Read the raw rows of a range of `file`, see `RawFormat.read`, and make rows of the elements of exploded lists."""
    rows = FORMATS[source.format]
    if source.explode is None:
        return rows.read(source, file, names, file_range, projection)
    every = nested.with_exploded(source, projection, unexploded_frame(source, file).columns)
    blocks = rows.read(source, file, names, file_range, every)
    return nested.explode_blocks(source, blocks, file_range, projection)
