"""Read Parquet, and Arrow IPC files (Feather) and streams."""

from collections.abc import Iterable, Iterator
from pathlib import Path, PosixPath

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from recsys.base.errors import UserError
from recsys.data.features.blocks import Block, numbered, one_line
from recsys.data.raw import nested
from recsys.data.raw.byte_ranges import UNREADABLE, WHOLE, FileRange, Projection, group_ranges, remote_bytes
from recsys.data.raw.raw_format import RawFormat, check_column_names
from recsys.schema.source_schema import SourceConfig

BLOCK_ROWS = 250_000


def polars_frame(table: pa.Table) -> pl.DataFrame:
    """Return the rows of a table. Decimals of 256 bits, which polars has no type for, become floats."""
    if any(pa.types.is_decimal256(f.type) for f in table.schema):
        types = (f.with_type(pa.float64()) if pa.types.is_decimal256(f.type) else f for f in table.schema)
        table = table.cast(pa.schema(types))
    frame = pl.from_arrow(table)
    assert isinstance(frame, pl.DataFrame)
    return frame


def without_rows(schema: pa.Schema, file: Path) -> pl.DataFrame:
    """Return a frame without rows of a file with this schema."""
    check_column_names(schema.names, file)
    return nested.plain(polars_frame(schema.empty_table()), file)


def block_rows(source: SourceConfig) -> int:
    """Return the number of rows to read at once: fewer if each becomes several."""
    return BLOCK_ROWS if source.explode is None else BLOCK_ROWS >> 4


def blocks_of(source: SourceConfig, file: Path, batches: Iterator[pa.RecordBatch], kind: str) -> Iterator[Block]:
    """Yield the rows of batches of a file. Raises UserError that names the row if they cannot be read; kind: of file"""
    row = 1
    try:
        for batch in batches:
            for part in polars_frame(pa.Table.from_batches([batch])).iter_slices(block_rows(source)):
                yield numbered(file, nested.plain(part, file), row)
                row += part.height
    except UNREADABLE as e:
        raise UserError(f"{file}: cannot be read as {kind} from row {row} on: {one_line(e)}") from e


def projected(names: list[str], projection: Projection) -> list[str]:
    """Return the columns to read, at least one. A projection may name fields of a column by their path."""
    if projection.columns is None:
        return names
    wanted = {
        ".".join(parts[:n]) for c in projection.columns for parts in [c.split(".")] for n in range(1, len(parts) + 1)
    }
    return [n for n in names if n in wanted] or names[:1]


def _opened(file: Path) -> pa.ipc.RecordBatchFileReader | pa.ipc.RecordBatchStreamReader:
    """Open an Arrow file, or a stream, which cannot be read from the middle."""
    source = pa.memory_map(str(file)) if isinstance(file, PosixPath) else remote_bytes(file)
    try:
        return pa.ipc.open_file(source)
    except pa.ArrowInvalid:
        source.seek(0)
        return pa.ipc.open_stream(source)


class Arrow(RawFormat):
    """Arrow IPC files (Feather) and streams, which are read as a whole, batch by batch."""

    name = "arrow"
    suffixes = (".arrow", ".feather")
    names_columns = explodes = True

    def empty_frame(self, source: SourceConfig, file: Path) -> pl.DataFrame:
        try:
            with _opened(file) as reader:
                return without_rows(reader.schema, file)
        except UNREADABLE as e:
            raise UserError(f"{file}: not an Arrow IPC file ({one_line(e)})") from e

    def read(
        self, source: SourceConfig, file: Path, names: list[str], file_range: FileRange, projection: Projection
    ) -> Iterator[Block]:
        return blocks_of(source, file, _batches(file, projection), "Arrow IPC")


def _batches(file: Path, projection: Projection) -> Iterator[pa.RecordBatch]:
    with _opened(file) as reader:
        names = projected(reader.schema.names, projection)
        if isinstance(reader, pa.ipc.RecordBatchFileReader):
            batches: Iterable[pa.RecordBatch] = map(reader.get_batch, range(reader.num_record_batches))
        else:
            batches = reader
        for batch in batches:
            yield batch.select(names)


class Parquet(RawFormat):
    """Parquet files, whose ranges are row groups."""

    name = "parquet"
    suffixes = (".parquet",)
    names_columns = explodes = True

    def empty_frame(self, source: SourceConfig, file: Path) -> pl.DataFrame:
        try:
            with parquet_file(file) as parquet:
                schema = parquet.schema_arrow
        except UNREADABLE as e:
            raise UserError(f"{file}: not a Parquet file ({one_line(e)})") from e
        return without_rows(schema, file)

    def ranges(self, source: SourceConfig, file: Path) -> list[FileRange]:
        return group_ranges(_group_rows(file), self.range_rows)

    def expected_rows(self, file: Path, file_range: FileRange) -> float | None:
        return sum(_group_rows(file, file_range))

    def read(
        self, source: SourceConfig, file: Path, names: list[str], file_range: FileRange, projection: Projection
    ) -> Iterator[Block]:
        return blocks_of(source, file, _parquet_batches(source, file, file_range, projection), "Parquet")


def parquet_file(file: Path) -> pq.ParquetFile:
    """Open a local or remote Parquet file."""
    if isinstance(file, PosixPath):
        return pq.ParquetFile(file)
    return pq.ParquetFile(remote_bytes(file), pre_buffer=True)  # fetches a row group's columns in few requests


def _parquet_batches(
    source: SourceConfig, file: Path, file_range: FileRange, projection: Projection
) -> Iterator[pa.RecordBatch]:
    with parquet_file(file) as parquet:
        columns = projected(parquet.schema_arrow.names, projection)
        groups = _groups(parquet, file_range)
        yield from parquet.iter_batches(block_rows(source), row_groups=list(groups), columns=columns)


def _group_rows(file: Path, file_range: FileRange = WHOLE) -> list[int]:
    with parquet_file(file) as parquet:
        return [parquet.metadata.row_group(i).num_rows for i in _groups(parquet, file_range)]


def _groups(parquet: pq.ParquetFile, file_range: FileRange) -> range:
    """Return the numbers of the row groups in a range."""
    return range(parquet.num_row_groups)[file_range.start : file_range.stop]
