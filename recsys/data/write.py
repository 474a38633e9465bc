"""Prepared rows -> Parquet files of equal row groups, the unit that the loader reads."""

from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

ROW_GROUP_ROWS = 65_536
FILE_ROWS = 16 * ROW_GROUP_ROWS  # each slice read parses its file's footer, so that it should be short


class PartWriter:
    """Writes part-00000.parquet, part-00001.parquet, ... each of whole row groups but the last."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._waiting: list[pa.Table] = []
        self._rows = self._file_rows = self._files = 0
        self._writer: pq.ParquetWriter | None = None

    def write(self, frame: pl.DataFrame) -> None:
        table = frame.to_arrow()
        if frame.height == 0 and self._files:
            return
        self._waiting.append(table)
        self._rows += table.num_rows
        if self._rows >= ROW_GROUP_ROWS:
            self._flush(self._rows - self._rows % ROW_GROUP_ROWS)

    def close(self) -> None:
        if self._rows or (self._files == 0 and self._waiting):
            self._flush(self._rows)
        if self._writer is not None:
            self._writer.close()

    def _flush(self, rows: int) -> None:
        table = pa.concat_tables(self._waiting)
        for start in range(0, rows, ROW_GROUP_ROWS) or (0,):
            if self._writer is not None and self._file_rows >= FILE_ROWS:
                self._writer.close()
                self._writer = None
            if self._writer is None:
                path = self._folder / f"part-{self._files:05d}.parquet"
                self._writer = pq.ParquetWriter(path, table.schema, compression="lz4", use_dictionary=True)
                self._files, self._file_rows = self._files + 1, 0
            group = table.slice(start, min(ROW_GROUP_ROWS, rows - start))
            self._writer.write_table(group, row_group_size=ROW_GROUP_ROWS)
            self._file_rows += group.num_rows
        self._waiting = [table.slice(rows)] if table.num_rows > rows else []
        self._rows = table.num_rows - rows
