"""The row groups of Parquet files, as one sequence of rows."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from recsys.files.manifest import UNREADABLE, DamagedFile


@dataclass(frozen=True)
class RowGroup:
    """A row group of a Parquet file."""

    file: Path
    first: int  # its first row within the file
    rows: int


def segments(groups: list[RowGroup], start: int, stop: int) -> Iterator[tuple[RowGroup, int, int]]:
    """Yield the row groups that hold rows [start, stop) of their concatenation, with first and stop within each."""
    at = 0
    for group in groups:
        a, b = max(start - at, 0), min(stop - at, group.rows)
        if a < b:
            yield group, a, b
        at += group.rows
        if at >= stop:
            return


def row_groups(file: Path) -> Iterator[RowGroup]:
    """Yield the row groups of a file. Raises DamagedFile if it is not a Parquet file."""
    try:
        meta = pq.read_metadata(file)
        sizes = [meta.row_group(i).num_rows for i in range(meta.num_row_groups)]
    except (pa.ArrowException, OSError, ValueError) as e:
        if isinstance(e, OSError) and e.errno is not None:  # of the disk; Arrow's own has none
            raise
        raise DamagedFile(file, UNREADABLE) from None
    first = 0
    for rows in sizes:
        yield RowGroup(file, first, rows)
        first += rows
