"""One raw file as a stream of frames, in bounded memory: CSV, Parquet, libfm.

Text is UTF-8, plain or .gz; a row is a line: quotes keep separators together, not lines.

Every reader yields `Block`s: the rows that have the right number of fields, as strings (CSV, libfm)
or in the file's own types (Parquet), the line each row came from, and the rows that did not fit.
"""

import codecs
import json
from collections.abc import Iterator
from pathlib import Path, PosixPath

import polars as pl
import polars.selectors as cs
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from recsys.config.schema_data import SourceConfig
from recsys.data.raw import fixed_width as packed
from recsys.data.raw import split_csv as side_by_side
from recsys.data.raw.blocks import (
    LINE,
    NOT_TEXT,
    BadRow,
    Block,
    one_line,
)
from recsys.data.raw.ranges import (
    ALL,
    UNREADABLE,
    WHOLE,
    FileRange,
    Projection,
    open_bytes,
    remote_bytes,
)
from recsys.data.raw.text import parse_options, read_csv
from recsys.errors import UserError

LIST = "list"  # of lists: the column that tells which line a row is of
PIECE_BYTES, PIECE_ROWS = 128 << 20, 1 << 19
BLOCK_ROWS = 250_000


def column_names(source: SourceConfig, file: Path) -> list[str]:
    """The raw columns of `file`, from its header or schema alone, before any row is read."""
    return list(no_rows(source, file).columns)


def no_rows(source: SourceConfig, file: Path) -> pl.DataFrame:
    """The raw columns of `file`, no rows."""
    if source.format in packed.FORMATS:
        return packed.no_rows(source, file)
    if source.format == side_by_side.FORMAT:
        return side_by_side.no_rows(source, file)
    if source.format == "parquet":
        try:
            with parquet_file(file) as parquet:
                schema = parquet.schema_arrow
        except UNREADABLE as e:
            raise UserError(f"{file}: not a Parquet file ({one_line(e)})") from e
        _check_names(schema.names, file)
        frame = pl.from_arrow(schema.empty_table())
        assert isinstance(frame, pl.DataFrame)
        return _plain(frame, file)
    if source.format == "json":
        return _read_json(file).head(0)
    names = list(source.columns) + ([LIST] if source.format == "lists" else [])
    first = _first_line(source, file)
    if source.header and source.format == "csv":
        if not first.strip():
            raise UserError(f"{file}: its first line is empty, not a header; set data.source.header=false")
        try:
            header = pa.BufferReader(first.rstrip(b"\r\n") + b"\n")
            names = pacsv.open_csv(header, parse_options=parse_options(source)).schema.names
        except pa.ArrowInvalid as e:
            raise UserError(f"{file}: its first line is not a header ({one_line(e)})") from e
        _check_names(names, file)
    elif not names:
        raise UserError("data.source.columns: needed where the files have no header")
    return pl.DataFrame(schema=dict.fromkeys(names, pl.String))


def _check_names(names: list[str], file: Path) -> None:
    if twice := [n for n in names if names.count(n) > 1]:
        raise UserError(f"{file}: two columns are named {twice[0]}")
    if LINE in names:
        raise UserError(f"{file}: a column is named {LINE}, which is reserved; rename it")


def _first_line(source: SourceConfig, file: Path) -> bytes:
    """The first line, once it is sure that the file is text."""
    try:
        with open_bytes(file) as lines:
            first = bytes(lines.readline(1 << 20)).removeprefix(codecs.BOM_UTF8)
            head = first + lines.read(1 << 12)
    except UNREADABLE as e:
        raise UserError(f"{file}: cannot be read ({one_line(e)})") from e
    kinds = {
        b"PAR1": "Parquet; set data.source.format=parquet",
        b"\x1f\x8b": "gzip; name it .gz",
        b"PK\x03\x04": "a zip archive; unpack it",
        b"\x28\xb5\x2f\xfd": "zstd; unpack it",
    }
    for magic, kind in kinds.items():
        if head.startswith(magic):
            raise UserError(f"{file}: not {source.format} but {kind}")
    if head.count(0) > len(head) // 100 or head.decode(errors="replace").count(NOT_TEXT) > len(head) // 10:
        raise UserError(f"{file}: not {source.format}: its beginning is not UTF-8 text")
    if source.header and source.format == "csv" and NOT_TEXT in first.decode(errors="replace"):
        raise UserError(f"{file}: its header is not UTF-8 text")
    return first


def read(
    source: SourceConfig, file: Path, names: list[str], piece: FileRange = WHOLE, wanted: Projection = ALL
) -> Iterator[Block]:
    """The raw rows of `file`, whose columns are `names` where it does not name them itself.

    Lines (and rows of Parquet) count from 1 at the piece's beginning.
    """
    if source.format == "json":
        frame = _read_json(file)
        return iter([Block(file, frame.with_row_index(LINE, 1).cast({LINE: pl.Int64}), lines=frame.height)])
    readers = {"csv": read_csv, "parquet": _read_parquet, "libfm": _read_libfm, "lists": _read_lists}
    readers[side_by_side.FORMAT] = side_by_side.read
    readers |= dict.fromkeys(packed.FORMATS, packed.read)
    return readers[source.format](source, file, names, piece, wanted)


def pieces(source: SourceConfig, file: Path) -> list[FileRange]:
    """`file` cut into pieces of about PIECE_BYTES or PIECE_ROWS; whole where it can be read in one go alone (.gz)."""
    if source.format == "parquet":
        with parquet_file(file) as parquet:
            sizes = [parquet.metadata.row_group(i).num_rows for i in range(parquet.metadata.num_row_groups)]
        cuts, rows = [0], 0
        for i, n in enumerate(sizes):
            if rows and rows + n > PIECE_ROWS:
                cuts, rows = [*cuts, i], 0
            rows += n
        return [FileRange(a, b) for a, b in zip(cuts, [*cuts[1:], len(sizes)], strict=True)]
    if source.format in packed.FORMATS:
        n = packed.rows(source, file)
        return [FileRange(a, min(a + PIECE_ROWS, n)) for a in range(0, max(n, 1), PIECE_ROWS)]
    size = file.stat().st_size
    if file.suffix == ".gz" or len(source.parts.get(str(file), [])) > 1:
        return [WHOLE]
    starts = range(0, max(size, 1), PIECE_BYTES)
    return [FileRange(start, min(start + PIECE_BYTES, size)) for start in starts]


def files_in(source: SourceConfig, file: Path) -> list[Path]:
    """The files that a raw file is made of: nearly always itself."""
    if source.format in packed.FORMATS:
        return packed.files(source, file)
    return [Path(f) for part in source.parts.get(str(file), []) for f in part.files] or [file]


def parquet_file(file: Path) -> pq.ParquetFile:
    if isinstance(file, PosixPath):
        return pq.ParquetFile(file)
    return pq.ParquetFile(remote_bytes(file), pre_buffer=True)  # all that is read of a group in few requests


def _read_parquet(
    _source: SourceConfig, file: Path, _names: list[str], piece: FileRange, wanted: Projection
) -> Iterator[Block]:
    row = 1
    try:
        with parquet_file(file) as parquet:
            groups = list(range(parquet.num_row_groups))[piece.start : piece.stop]
            columns = None if wanted.columns is None else [c for c in parquet.schema_arrow.names if c in wanted.columns]
            for batch in parquet.iter_batches(batch_size=BLOCK_ROWS, row_groups=groups, columns=columns):
                frame = pl.from_arrow(pa.Table.from_batches([batch]))
                assert isinstance(frame, pl.DataFrame)
                frame = _plain(frame, file)
                lines = pl.int_range(row, row + frame.height, dtype=pl.Int64).alias(LINE)
                row += frame.height
                yield Block(file, frame.with_columns(lines), lines=row - 1)
    except UNREADABLE as e:
        raise UserError(f"{file}: cannot be read as Parquet from row {row} on: {one_line(e)}") from e


def _plain(frame: pl.DataFrame, file: Path) -> pl.DataFrame:
    """Categories and bytes as the text that they are."""
    coded = cs.categorical() | cs.enum() | cs.binary()
    try:
        return frame.with_columns(coded.cast(pl.String))
    except pl.exceptions.PolarsError as e:
        names = ", ".join(frame.select(cs.binary()).columns)
        raise UserError(f"{file}: {names}: bytes that are not UTF-8 text") from e


def _read_libfm(
    _source: SourceConfig, file: Path, names: list[str], piece: FileRange, _: Projection
) -> Iterator[Block]:
    """'label index:value index:value ...': the i-th index is the i-th column's id, as a string."""
    lines = SourceConfig(separator="\x01", quote=None, header=False)
    for block in read_csv(lines, file, ["text"], piece, ALL):
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
        fields = fields.with_columns(ids.alias("ids"), reason.alias("reason"))
        for row in fields.filter(pl.col("reason").is_not_null()).iter_rows(named=True):
            block.bad.append(BadRow(str(file), row[LINE], row["reason"], row["text"]))
        block.bad.sort(key=lambda b: b.line)
        block.frame = fields.filter(pl.col("reason").is_null()).select(
            pl.col("parts").list.get(0).alias(names[0]),
            *(pl.col("ids").list.get(i).alias(name) for i, name in enumerate(names[1:], start=1)),
            LINE,
        )
        yield block


def _read_lists(source: SourceConfig, file: Path, names: list[str], piece: FileRange, _: Projection) -> Iterator[Block]:
    """'user item item ...': a row an item, in order, with what stands before the items and which LIST it is of."""
    lines = SourceConfig(separator="\x01", quote=None, header=False)
    *before, item, _list = names
    for block in read_csv(lines, file, ["text"], piece, ALL):
        parts = block.frame.select(
            LINE, parts=pl.col("text").str.strip_chars().str.split(source.separator)
        ).with_columns(pl.col("parts").list.eval(pl.element().filter(pl.element() != "")))
        short = pl.col("parts").list.len() <= len(before)
        for line, values in parts.filter(short).iter_rows():
            reason = f"{len(values)} fields, not {len(before) + 1} or more"
            block.bad.append(BadRow(str(file), line, reason, source.separator.join(values)))
        block.bad.sort(key=lambda b: b.line)
        rows = parts.filter(~short).with_columns(
            *(pl.col("parts").list.get(i).alias(name) for i, name in enumerate(before)),
            pl.col("parts").list.slice(len(before)).alias(item),
            pl.concat_str(pl.lit(f"{file}:{piece.start}:"), pl.col(LINE)).alias(LIST),
        )
        block.frame = rows.explode(item).select(*before, item, LIST, LINE)
        yield block


def _read_json(file: Path) -> pl.DataFrame:
    """{key: value, ...} as the columns `key` (text) and `value`: text, or lists of it."""
    try:
        with open_bytes(file) as raw:
            found = json.load(raw)
    except (ValueError, *UNREADABLE) as e:
        raise UserError(f"{file}: not JSON ({one_line(e)})") from e
    if not isinstance(found, dict) or any(isinstance(v, dict) for v in found.values()):
        raise UserError(f"{file}: not one JSON object of values or lists by key")
    lists = any(isinstance(v, list) for v in found.values())
    as_list = [[str(x) for x in (v if isinstance(v, list) else [v]) if x is not None] for v in found.values()]
    values = as_list if lists else [v[0] if v else None for v in as_list]
    dtype = pl.List(pl.String) if lists else pl.String
    return pl.DataFrame({"key": list(found), "value": values}, schema={"key": pl.String, "value": dtype})


def without_label(source: SourceConfig, label: str, file: Path, names: list[str]) -> list[str]:
    """The columns of a header-less file that may lack the label, told by its first line's fields."""
    with open_bytes(file) as lines:
        fields = lines.readline().decode(errors="replace").rstrip("\r\n").split(source.separator)
    rest = [n for n in names if n != label]
    return rest if len(fields) == len(rest) else names
