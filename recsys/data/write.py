"""Prepared rows -> Parquet files of equal row groups, the unit that the loader reads."""

from pathlib import Path

import polars as pl

ROW_GROUP_ROWS = 65_536
FILE_ROWS = 16 * ROW_GROUP_ROWS  # each slice read parses its file's footer, so that it should be short


class PartWriter:
    """Writes NAME-000.parquet, NAME-001.parquet, ... each of whole row groups but the last."""

    def __init__(self, folder: Path, name: str = "part") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._name = folder, name
        self._waiting: list[pl.DataFrame] = []
        self._rows = 0
        self.files: list[str] = []

    def write(self, frame: pl.DataFrame) -> None:
        if frame.is_empty():
            return
        self._waiting.append(frame)
        self._rows += frame.height
        while self._rows >= FILE_ROWS:
            self._flush(FILE_ROWS)

    def close(self) -> None:
        if self._rows:
            self._flush(self._rows)

    def _flush(self, rows: int) -> None:
        whole = pl.concat(self._waiting)
        file = self._folder / f"{self._name}-{len(self.files):03d}.parquet"
        whole.head(rows).rechunk().write_parquet(
            file, compression="lz4", row_group_size=ROW_GROUP_ROWS, statistics=False
        )
        self.files.append(file.name)
        self._waiting = [whole.slice(rows)] if whole.height > rows else []
        self._rows = whole.height - rows
