"""Rows that cannot be read: counted, kept in one file, and too many of them stop the command."""

from pathlib import Path

import polars as pl

from recsys.config.schema_data import DataConfig
from recsys.console import say
from recsys.data.prepare.chunks import Chunk, ParsedChunk
from recsys.errors import UserError

EARLY_STOP_ROWS = 100_000


class BadRows:
    """Counts bad rows, keeps them in one file; stops where their share is too large."""

    def __init__(self, data: DataConfig, file: Path) -> None:
        self._data, self._file = data, file
        self._good, self.bad, self._first = 0, 0, ""
        self._lines: tuple[Path | None, int] = (None, 0)
        file.unlink(missing_ok=True)

    def add(self, chunk: Chunk, done: ParsedChunk) -> None:
        before = self._lines[1] if self._lines[0] == chunk.file else 0  # in the chunks of the file before this one
        self._lines = (chunk.file, before + done.info["lines"])
        self._good, self.bad = self._good + done.rows, self.bad + done.info["bad"]
        for frame in done.bad():
            told = frame.select(pl.lit(str(chunk.file)).alias("file"), pl.col("line") + before, "reason", "text")
            file, line, reason, _ = told.row(0)
            self._first = self._first or f"{file} line {line}: {reason}"
            with self._file.open("ab") as f:
                told.write_csv(f, include_header=f.tell() == 0)
        if self._good + self.bad >= EARLY_STOP_ROWS:
            self._check()

    def _check(self) -> None:
        all_rows = self._good + self.bad
        if self.bad > self._data.max_bad_rows * all_rows:
            raise UserError(
                f"data={self._data.name}: {self.bad} of {all_rows} rows cannot be read (first: {self._first}), more "
                f"than data.max_bad_rows={self._data.max_bad_rows}; they lie in {self._file}"
            )

    def tell(self) -> None:
        self._check()
        if self.bad:
            all_rows = self._good + self.bad
            say(f"{self.bad} of {all_rows} rows could not be read (first: {self._first}) and lie in {self._file}")
