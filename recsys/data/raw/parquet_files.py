"""Read Parquet files, local and remote."""

from collections.abc import Iterator
from pathlib import Path, PosixPath

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from recsys.base.errors import UserError
from recsys.data.features.blocks import Block, one_line
from recsys.data.raw import arrow_files
from recsys.data.raw.byte_ranges import UNREADABLE, WHOLE, FileRange, Projection, group_ranges, remote_bytes
from recsys.data.raw.raw_format import RawFormat
from recsys.schema.source_schema import SourceConfig


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
        return arrow_files.without_rows(schema, file)

    def ranges(self, source: SourceConfig, file: Path) -> list[FileRange]:
        return group_ranges(_group_rows(file), self.range_rows)

    def expected_rows(self, file: Path, file_range: FileRange) -> float | None:
        return sum(_group_rows(file, file_range))

    def read(
        self, source: SourceConfig, file: Path, names: list[str], file_range: FileRange, projection: Projection
    ) -> Iterator[Block]:
        return arrow_files.blocks_of(source, file, _parquet_batches(source, file, file_range, projection), "Parquet")


def parquet_file(file: Path) -> pq.ParquetFile:
    """Open a local or remote Parquet file."""
    if isinstance(file, PosixPath):
        return pq.ParquetFile(file)
    return pq.ParquetFile(remote_bytes(file), pre_buffer=True)  # fetches a row group's columns in few requests


def _parquet_batches(
    source: SourceConfig, file: Path, file_range: FileRange, projection: Projection
) -> Iterator[pa.RecordBatch]:
    with parquet_file(file) as parquet:
        columns = arrow_files.projected(parquet.schema_arrow.names, projection)
        groups = _groups(parquet, file_range)
        yield from parquet.iter_batches(arrow_files.block_rows(source), row_groups=list(groups), columns=columns)


def _group_rows(file: Path, file_range: FileRange = WHOLE) -> list[int]:
    with parquet_file(file) as parquet:
        return [parquet.metadata.row_group(i).num_rows for i in _groups(parquet, file_range)]


def _groups(parquet: pq.ParquetFile, file_range: FileRange) -> range:
    """Return the numbers of the row groups in a range."""
    return range(parquet.num_row_groups)[file_range.start : file_range.stop]
