"""Write Parquet: prepared rows as files of equal row groups, which the loader reads, and the output of a command."""

from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import polars as pl
import pyarrow.parquet as pq

from recsys.base.append import append
from recsys.base.errors import UserError
from recsys.data.features.blocks import BadRow
from recsys.files.atomic import whole_file, writing
from recsys.files.manifest import Entry, entry_of

ROW_GROUP_ROWS, ROW_GROUP_BYTES = 65_536, 1 << 26
FILE_ROWS = 16 * ROW_GROUP_ROWS  # every read parses the file's footer, which should be short


class PartWriter:
    """Writes NAME-000.parquet, NAME-001.parquet, ... with full row groups, except for the last.

    repeats: whether rows repeat most of the values of the row before, as the lists of earlier rows do
    """

    def __init__(self, folder: Path, name: str = "part", repeats: bool = False) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._name = folder, name
        self._compression: Literal["zstd", "uncompressed"] = "zstd" if repeats else "uncompressed"
        self._waiting: list[pl.DataFrame] = []
        self._rows = 0
        self.bytes = 0  # of rows that wait in memory
        self.files: dict[str, Entry] = {}  # name -> size and digest

    def write(self, frame: pl.DataFrame) -> None:
        if frame.is_empty():
            return
        self._waiting.append(frame)
        self._rows += frame.height
        self.bytes += int(frame.estimated_size())
        while self._rows >= FILE_ROWS:
            self._flush(FILE_ROWS)

    def flush(self) -> None:
        """Write the rows that wait."""
        if self._rows:
            self._flush(self._rows)

    def _flush(self, rows: int) -> None:
        whole = pl.concat(self._waiting)
        file = self._folder / f"{self._name}-{len(self.files):03d}.parquet"
        in_group = max(1, min(ROW_GROUP_ROWS, whole.height * ROW_GROUP_BYTES // max(self.bytes, 1)))
        whole.head(rows).write_parquet(file, compression=self._compression, row_group_size=in_group, statistics=False)
        self.files[file.name] = entry_of(file)
        self._waiting = [whole.slice(rows)] if whole.height > rows else []
        self._rows = whole.height - rows
        self.bytes = sum(int(frame.estimated_size()) for frame in self._waiting)


def bad_rows_file(output: Path) -> Path:
    """Return the file for rows that cannot be read, next to the output."""
    return output.with_name(f"{output.stem}.bad_rows.csv")


def make_parent(output: Path) -> None:
    """Create the folder of an output. Raises UserError if that is impossible."""
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise UserError(f"output={output}: {e.strerror}") from e


class Output:
    """Writes one Parquet file atomically, and the rows that could not be read to `bad_rows`, by default
    NAME.bad_rows.csv next to it. Without a row, no file is written.

    Raises:
        UserError: the file cannot be written.
    """

    def __init__(self, path: Path, bad_rows: Path | None = None) -> None:
        make_parent(path)
        self.bad_rows = bad_rows or bad_rows_file(path)
        self.bad_rows.unlink(missing_ok=True)
        self.bad = 0
        self._path, self._stack = path, ExitStack()
        self._writer: pq.ParquetWriter | None = None

    def __enter__(self) -> "Output":
        return self

    def __exit__(self, *error: Any) -> bool | None:
        return self._stack.__exit__(*error)

    def write(self, frame: pl.DataFrame) -> None:
        table = frame.to_arrow()
        if self._writer is None:
            building = self._stack.enter_context(whole_file(self._path))
            self._writer = self._stack.enter_context(pq.ParquetWriter(building, table.schema))
        self._writer.write_table(table)

    def without_rows(self) -> str:
        """Return why there is no row to write."""
        return (
            f"none of the {self.bad} rows can be read; {self.bad_rows} has the reasons" if self.bad else "holds no rows"
        )

    def keep(self, bad: list[BadRow]) -> None:
        """Append bad rows to their file."""
        self.bad += len(bad)
        if bad:
            append_rows(self.bad_rows, pl.DataFrame([asdict(b) for b in bad]).select("file", "line", "reason", "text"))


def append_rows(path: Path, rows: pl.DataFrame) -> None:
    """Append rows to a CSV file, which begins with the names of their columns. Raises OSError."""
    header = rows.clear().write_csv().encode()
    with writing(path):
        append(path, rows.write_csv(include_header=False).encode(), header=header, sync=False)
