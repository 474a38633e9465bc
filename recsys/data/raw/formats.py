"""Read a raw file as a stream of blocks, in bounded memory: CSV, Parquet, Arrow, JSON lines, libfm, lists, arrays.

Text may be compressed (.gz, .bz2, .xz, .zst, .zip). A row is one line, unless data.source.line_breaks_in_quotes is set.

Every reader yields `Block`s: the rows with the right number of fields, as strings (CSV, libfm, lists) or in the
file's own types (Parquet), the line of each row, and the bad rows.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path, PosixPath

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from recsys.data.raw import arrow_files, fixed_width, json_lines, nested, slots, split_csv, svmlight
from recsys.data.raw.blocks import ELEMENT, LINE, LIST, Block, numbered, one_line, set_apart
from recsys.data.raw.byte_ranges import (
    ALL,
    UNREADABLE,
    WHOLE,
    FileRange,
    Projection,
    group_ranges,
    is_compressed,
    open_bytes,
    remote_bytes,
)
from recsys.data.raw.dialect import SPACES, is_ascii_compatible, read_head, whole_lines
from recsys.data.raw.text import read_csv
from recsys.errors import UserError
from recsys.schema.data_schema import SourceConfig

Reader = Callable[[SourceConfig, Path, list[str], FileRange, Projection], Iterator[Block]]
RANGE_BYTES, RANGE_ROWS = 128 << 20, 1 << 19
KEYED = {"svmlight": svmlight, "slots": slots}  # formats whose lines are key:value


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
    if source.format in fixed_width.FORMATS:
        return fixed_width.empty_frame(source, file)
    if source.format == split_csv.FORMAT:
        return split_csv.empty_frame(source, file)
    if source.format == "parquet":
        try:
            with parquet_file(file) as parquet:
                schema = parquet.schema_arrow
        except UNREADABLE as e:
            raise UserError(f"{file}: not a Parquet file ({one_line(e)})") from e
        return _without_rows(schema, file)
    if source.format == "arrow":
        return _without_rows(arrow_files.arrow_schema(file), file)
    if source.format in WHOLE_FILES:
        return _checked(WHOLE_FILES[source.format](source, file).frame.drop(LINE), file).head(0)
    if source.format == "jsonl":
        return _checked(json_lines.empty_frame(source, file), file)
    if source.format in KEYED:
        return _checked(KEYED[source.format].empty_frame(source, file), file)
    if source.format == "csv":
        names = read_head(source, file).names
        _check_names(names, file)
    else:
        names = list(source.columns) + ([LIST] if source.format == "lists" else [])
        if not names:
            raise UserError("data.source.columns: missing; files without a header need it")
        read_head(replace(source, header=False), file)
    return pl.DataFrame(schema=dict.fromkeys(names, pl.String))


def _without_rows(schema: pa.Schema, file: Path) -> pl.DataFrame:
    _check_names(schema.names, file)
    frame = pl.from_arrow(schema.empty_table())
    assert isinstance(frame, pl.DataFrame)
    return _checked(nested.plain(frame, file), file)


def _checked(frame: pl.DataFrame, file: Path) -> pl.DataFrame:
    _check_names(frame.columns, file)
    return frame


def _check_names(names: list[str], file: Path) -> None:
    if twice := repeated(names):
        raise UserError(f"{file}: two columns are named {twice[0]}; rename one")
    for name in (LINE, ELEMENT):
        if name in names:
            raise UserError(f"{file}: a column is named {name}, which is reserved; rename it")


def repeated(names: list[str]) -> list[str]:
    """Return the names that occur more than once."""
    return [name for name, count in Counter(names).items() if count > 1]


def read(
    source: SourceConfig,
    file: Path,
    names: list[str],
    file_range: FileRange = WHOLE,
    projection: Projection = ALL,
) -> Iterator[Block]:
    """Read the raw rows of a range of `file`.

    Lines (Parquet: rows) count from 1 at the beginning of the range.

    Args:
        source: the format and its options.
        file: the raw file.
        names: the columns of a file that does not name them itself.
        file_range: the part of the file to read.
        projection: the columns to read.
    """
    if source.explode is None:
        return _read_rows(source, file, names, file_range, projection)
    every = nested.with_exploded(source, projection, unexploded_frame(source, file).columns)
    blocks = _read_rows(source, file, names, file_range, every)
    return nested.explode_blocks(source, blocks, file_range, projection)


def _read_rows(
    source: SourceConfig, file: Path, names: list[str], file_range: FileRange, projection: Projection
) -> Iterator[Block]:
    if source.format in WHOLE_FILES:
        return iter([WHOLE_FILES[source.format](source, file)])
    readers: dict[str, Reader] = {"csv": read_csv, "libfm": _read_libfm, "lists": _read_lists, "jsonl": json_lines.read}
    readers |= {name: module.read for name, module in KEYED.items()}
    readers |= {
        "parquet": _read_parquet,
        "arrow": _read_arrow,
        split_csv.FORMAT: split_csv.read,
    }
    readers |= dict.fromkeys(fixed_width.FORMATS, fixed_width.read)
    return readers[source.format](source, file, names, file_range, projection)


def file_ranges(source: SourceConfig, file: Path) -> list[FileRange]:
    """Cut `file` into ranges of about RANGE_BYTES or RANGE_ROWS; a compressed file cannot be cut."""
    if source.format == "parquet":
        with parquet_file(file) as parquet:
            sizes = [parquet.metadata.row_group(i).num_rows for i in range(parquet.metadata.num_row_groups)]
        return group_ranges(sizes, RANGE_ROWS)
    if source.format in fixed_width.FORMATS:
        n = fixed_width.count_rows(source, file)
        return [FileRange(a, min(a + RANGE_ROWS, n)) for a in range(0, max(n, 1), RANGE_ROWS)]
    if source.format == "arrow":
        return arrow_files.arrow_ranges(file, RANGE_ROWS)
    size = file.stat().st_size
    if not _can_be_cut(source, file):
        return [WHOLE]
    starts = range(0, max(size, 1), RANGE_BYTES)
    return [FileRange(start, min(start + RANGE_BYTES, size)) for start in starts]


def _can_be_cut(source: SourceConfig, file: Path) -> bool:
    """Return whether a file of text can be read from the middle."""
    if source.format in WHOLE_FILES or is_compressed(file) or len(source.parts.get(str(file), [])) > 1:
        return False
    return is_ascii_compatible(source.encoding) and not (source.format == "csv" and source.line_breaks_in_quotes)


def first_range(source: SourceConfig, file: Path, size: int) -> FileRange:
    """Return the first bytes of a file of text; all of it if it cannot be cut."""
    return FileRange(0, size) if _can_be_cut(source, file) else WHOLE


def files_in(source: SourceConfig, file: Path) -> list[Path]:
    """Return the files that make up a raw file: usually itself."""
    if source.format in fixed_width.FORMATS:
        return fixed_width.files(source, file)
    return [Path(f) for part in source.parts.get(str(file), []) for f in part.files] or [file]


def parquet_file(file: Path) -> pq.ParquetFile:
    """Open a local or remote Parquet file."""
    if isinstance(file, PosixPath):
        return pq.ParquetFile(file)
    return pq.ParquetFile(remote_bytes(file), pre_buffer=True)  # fetches a row group's columns in few requests


def _read_parquet(
    source: SourceConfig, file: Path, names: list[str], file_range: FileRange, projection: Projection
) -> Iterator[Block]:
    row = 1
    try:
        with parquet_file(file) as parquet:
            groups = list(range(parquet.num_row_groups))[file_range.start : file_range.stop]
            names = parquet.schema_arrow.names
            columns = arrow_files.projected(names, projection)
            rows = arrow_files.block_rows(source)
            for batch in parquet.iter_batches(batch_size=rows, row_groups=groups, columns=columns):
                frame = pl.from_arrow(pa.Table.from_batches([batch]))
                assert isinstance(frame, pl.DataFrame)
                yield numbered(file, nested.plain(frame, file), row)
                row += frame.height
    except UNREADABLE as e:
        raise UserError(f"{file}: cannot be read as Parquet from row {row} on: {one_line(e)}") from e


def _read_arrow(
    source: SourceConfig, file: Path, names: list[str], file_range: FileRange, projection: Projection
) -> Iterator[Block]:
    for block in arrow_files.read_arrow(source, file, names, file_range, projection):
        block.frame = nested.plain(block.frame, file)
        yield block


def _read_libfm(
    source: SourceConfig, file: Path, names: list[str], file_range: FileRange, _: Projection
) -> Iterator[Block]:
    """Read lines 'label index:value index:value ...'; the i-th index becomes the i-th column's id, as a string."""
    lines = whole_lines(source)
    for block in read_csv(lines, file, ["text"], file_range, ALL):
        fields = block.frame.select(LINE, "text", parts=pl.col("text").str.strip_chars(" ").str.split(" "))
        ids = pl.col("parts").list.eval(pl.element().str.extract(r"^([^:]+):", 1))
        wide = pl.col("parts").list.len() != len(names)
        odd = ids.list.slice(1).list.eval(pl.element().is_null()).list.any()
        reason = (
            pl.when(wide)
            .then(pl.format("{} fields, not {}", pl.col("parts").list.len(), len(names)))
            .when(odd)
            .then(pl.lit("a field is not index:value"))
        )
        block.frame = set_apart(block, fields.with_columns(ids=ids), reason).select(
            pl.col("parts").list.get(0).alias(names[0]),
            *(pl.col("ids").list.get(i).alias(name) for i, name in enumerate(names[1:], start=1)),
            LINE,
        )
        yield block


def _read_lists(
    source: SourceConfig, file: Path, names: list[str], file_range: FileRange, _: Projection
) -> Iterator[Block]:
    """Read lines 'user item item ...' as one row per item, in order, with the leading columns and LIST."""
    lines = whole_lines(source)
    *before, item, _list = names
    between = " " if source.separator == SPACES else source.separator
    for block in read_csv(lines, file, ["text"], file_range, ALL):
        text = pl.col("text").str.strip_chars()
        if source.separator == SPACES:
            text = text.str.replace_all(SPACES, " ")
        parts = block.frame.select(LINE, "text", parts=text.str.split(between)).with_columns(
            pl.col("parts").list.eval(pl.element().filter(pl.element() != ""))
        )
        n = pl.col("parts").list.len()
        short = pl.when(n <= len(before)).then(pl.format(f"{{}} fields, not {len(before) + 1} or more", n))
        rows = set_apart(block, parts, short).with_columns(
            *(pl.col("parts").list.get(i).alias(name) for i, name in enumerate(before)),
            pl.col("parts").list.slice(len(before)).alias(item),
            pl.concat_str(pl.lit(f"{file}:{file_range.start}:"), pl.col(LINE)).alias(LIST),
        )
        block.frame = rows.explode(item).select(*before, item, LIST, LINE)
        yield block


def _read_npz(source: SourceConfig, file: Path) -> Block:
    return numbered(file, arrow_files.read_npz(source, file), 1)


# formats whose files are read whole
WHOLE_FILES: dict[str, Callable[[SourceConfig, Path], Block]] = {"json": json_lines.read_whole, "npz": _read_npz}


def drop_missing_labels(source: SourceConfig, labels: list[str], file: Path, names: list[str]) -> list[str]:
    """Return the columns of a file without a header.

    Drop the columns that rows to be predicted may lack, labels and weight, if the first line has as many fields less.
    """
    head = read_head(source, file)
    rest = [n for n in names if n not in labels]
    return rest if head.fields - head.trailing == len(rest) else names
