"""Read rows of the row groups of Parquet files, and keep some of them in memory."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from recsys.files.manifest import UNREADABLE, BackgroundCheck, DamagedFile


@dataclass(frozen=True)
class RowGroup:
    """A row group of a Parquet file."""

    file: Path
    first: int  # its first row within the file
    rows: int
    bytes: int = 0  # of its values, not compressed


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
        sizes = [(g.num_rows, g.total_byte_size) for g in map(meta.row_group, range(meta.num_row_groups))]
    except (pa.ArrowException, OSError, ValueError) as e:
        if isinstance(e, OSError) and e.errno is not None:  # of the disk; Arrow's own has none
            raise
        raise DamagedFile(file, UNREADABLE) from None
    first = 0
    for rows, n_bytes in sizes:
        yield RowGroup(file, first, rows, n_bytes)
        first += rows


class RowGroups:
    """Reads rows of row groups.

    Args:
        keep_bytes: bytes of decoded row groups above which a call keeps no more of them in memory.
        check: checks files that cannot be read.
    """

    def __init__(self, columns: Sequence[str], keep_bytes: int, check: BackgroundCheck | None) -> None:
        self._columns, self._keep_bytes, self._check = columns, keep_bytes, check
        self.kept: dict[RowGroup, pl.DataFrame] = {}
        self._kept_bytes = 0

    def read(self, groups: list[RowGroup], start: int, stop: int, keep: bool) -> pl.DataFrame:
        """Read the rows [start, stop) of the concatenation of row groups.

        keep: keep their row groups in memory while `keep_bytes` allow it
        """
        parts = list(segments(groups, start, stop))
        if not parts:  # a rank without rows takes as many steps as the others
            parts = [(groups[0], 0, 0)]
        if keep and self._kept_bytes < self._keep_bytes:
            new = [g for g, _, _ in parts if g not in self.kept]
            for group, frame in zip(new, self._decode([(g, 0, g.rows) for g in new]), strict=True):
                self.kept[group] = frame
                self._kept_bytes += int(frame.estimated_size())
        kept = [self.kept.get(g) for g, _, _ in parts]  # once: what is read ahead may be kept meanwhile
        decoded = iter(self._decode([part for part, whole in zip(parts, kept, strict=True) if whole is None]))
        frames = [
            next(decoded) if whole is None else whole.slice(a, b - a)
            for (_, a, b), whole in zip(parts, kept, strict=True)
        ]
        return pl.concat(frames, rechunk=False)

    def _decode(self, parts: Sequence[tuple[RowGroup, int, int]]) -> list[pl.DataFrame]:
        """Read the rows from first to stop of row groups, decoded by all of polars' threads."""
        scans = [
            pl.scan_parquet(g.file, glob=False).select(self._columns).slice(g.first + a, b - a) for g, a, b in parts
        ]
        # common-subplan elimination would share the scans of one file by reading all of it
        separate = pl.QueryOptFlags(comm_subplan_elim=False)
        try:
            return pl.collect_all(scans, optimizations=separate)
        except pl.exceptions.PolarsError:
            if self._check is not None:
                self._check.check_now(g.file for g, _, _ in parts)
            raise
