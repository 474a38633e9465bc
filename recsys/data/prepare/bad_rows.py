"""Count the rows that cannot be read, write them to one file, and stop if there are too many."""

from pathlib import Path

import polars as pl

from recsys.console import say
from recsys.data.prepare.chunks import Chunk, ParsedChunk
from recsys.data.transforms.columns import ResolvedData
from recsys.errors import UserError

EARLY_STOP_ROWS = 100_000


class BadRows:
    """Counts bad rows and appends them to a CSV file.

    Raises:
        UserError: (`add`, `report`) the share of bad rows is above data.max_bad_rows.
    """

    def __init__(self, data: ResolvedData, file: Path) -> None:
        self._data, self._file = data, file
        self._good, self.bad, self._first = 0, 0, ""
        self._lines: tuple[Path | None, int] = (None, 0)  # the current file and its lines in the chunks so far
        file.unlink(missing_ok=True)

    def add(self, chunk: Chunk, parsed: ParsedChunk) -> None:
        """Add a chunk's rows. Chunks must come in order."""
        before = self._lines[1] if self._lines[0] == chunk.file else 0
        self._lines = (chunk.file, before + parsed.info["lines"])
        self._good, self.bad = self._good + parsed.rows, self.bad + parsed.info["bad"]
        for frame in parsed.bad():
            rows = frame.select(pl.lit(str(chunk.file)).alias("file"), pl.col("line") + before, "reason", "text")
            file, line, reason, _ = rows.row(0)
            self._first = self._first or f"{file} line {line}: {reason}"
            with self._file.open("ab") as f:
                rows.write_csv(f, include_header=f.tell() == 0)
        if self._good + self.bad >= EARLY_STOP_ROWS:
            self._check()

    def _check(self) -> None:
        all_rows = self._good + self.bad
        if self.bad > self._data.max_bad_rows * all_rows:
            raise UserError(
                f"data={self._data.name}: {self.bad} of {all_rows} rows cannot be read (first: {self._first}), more "
                f"than data.max_bad_rows={self._data.max_bad_rows}; they are listed in {self._file}"
            )

    def report(self) -> None:
        """Print how many rows are bad."""
        self._check()
        if self.bad:
            all_rows = self._good + self.bad
            first = f"first: {self._first}"
            say(f"{self.bad} of {all_rows} rows could not be read ({first}); they are listed in {self._file}")
