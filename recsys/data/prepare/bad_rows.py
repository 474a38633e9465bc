"""Judge the rows that were read: list those that cannot be read, and compare units of times; stop if they are wrong."""

from pathlib import Path

import polars as pl

from recsys.base.console import say
from recsys.base.errors import UserError
from recsys.data.features import parse_rows
from recsys.data.features.blocks import BadRow
from recsys.data.features.resolved_data import ResolvedData
from recsys.data.features.value_types import unit_of_time
from recsys.data.prepare.chunks import Chunk, ParsedChunk
from recsys.data.prepare.writer import append_rows
from recsys.data.raw import read_sources
from recsys.data.raw.byte_ranges import FileRange
from recsys.data.raw.formats import FORMATS
from recsys.data.raw.reasons import Reasons, judge

EARLY_STOP_ROWS = 100_000
FIRST_BYTES, SMALL_BYTES, MIN_ROWS = 1 << 18, 8 << 20, 20
MAX_BAD = 0.5  # the share of bad rows above which the config does not fit the file


def check_first_rows(data: ResolvedData, file: Path) -> None:
    """Read the beginning of a text file.

    Raises:
        UserError: most of its rows cannot be read, so that the config does not fit the file.
    """
    sides = [read_sources.side_file(data, join) for join in data.source.joins]
    rows_format = FORMATS[data.source.format]
    if not rows_format.has_head or any(f.stat().st_size > SMALL_BYTES for f in sides):
        return
    good, bad = parse_first_block(data, file, rows_format.head(data.source, file, FIRST_BYTES))
    reasons, rows = Reasons(bad, lambda b: f"{b.file} line {b.line}"), good + len(bad)
    if rows >= MIN_ROWS and len(bad) > MAX_BAD * rows:
        raise UserError(f"data={data.name}: {len(bad):,} of the first {rows:,} rows cannot be read: {reasons}")


def parse_first_block(data: ResolvedData, file: Path, file_range: FileRange) -> tuple[int, list[BadRow]]:
    """Parse the first block of a range of a file. Return the number of good rows, and the bad rows."""
    for block in read_sources.read_blocks(data, file, file_range):
        good, bad = parse_rows(data, block)
        return good.height, bad
    return 0, []


class BadRows:
    """Counts bad rows and appends them to a CSV file.

    Raises:
        UserError: (`add`, `report`) the share of bad rows is above data.max_bad_rows.
    """

    def __init__(self, data: ResolvedData, file: Path) -> None:
        self._data, self._file = data, file
        self._good, self.bad, self._reasons = 0, 0, Reasons()
        self._lines: tuple[Path | None, int] = (None, 0)  # the current file and its lines in the chunks so far
        file.unlink(missing_ok=True)

    def add(self, chunk: Chunk, parsed: ParsedChunk) -> None:
        """Add a chunk's rows. Chunks must come in order."""
        before = self._lines[1] if self._lines[0] == chunk.file else 0
        self._lines = (chunk.file, before + parsed.info["lines"])
        self._good, self.bad = self._good + parsed.rows, self.bad + parsed.info["bad"]
        for frame in parsed.bad():
            rows = frame.select(pl.lit(str(chunk.file)).alias("file"), pl.col("line") + before, "reason", "text")
            append_rows(self._file, rows)
            first = frame.group_by("reason", maintain_order=True).agg(pl.len(), pl.first("line", "value"))
            for reason, n, line, value in first.iter_rows():
                self._reasons.add(reason, n, f"{chunk.file} line {line + before}", value)
        if self._good + self.bad >= EARLY_STOP_ROWS:
            self._check()

    def _check(self) -> str | None:
        where, listed = f"data={self._data.name}", f"; they are listed in {self._file}"
        return judge(where, self._data, self._good + self.bad, self.bad, self._reasons, listed)

    def report(self) -> None:
        """Print how many rows are bad."""
        if (line := self._check()) is not None:
            say(line)


class TimeUnits:
    """The units of the columns by which rows are split and ordered in time.

    Raises:
        UserError: (`add`) a file holds numbers since 1970 in another unit than a file before it. Times are seconds.
    """

    def __init__(self, data: ResolvedData) -> None:
        self._columns = data.moments
        self._first: dict[str, tuple[str, str]] = {}  # the unit of each column, and the first file that has it

    def add(self, chunk: Chunk, parsed: ParsedChunk) -> None:
        """Compare the units of a chunk's times with those of the chunks before it."""
        medians = parsed.info.get("medians", {})  # older chunks have none
        for name, value in ((n, x) for n in medians for x in medians[n] if x is not None):
            if (unit := unit_of_time(value)) is None:
                continue
            what = f"{chunk.file} holds {'times or ' * (unit == 'seconds')}{unit} since 1970, such as {value:.0f}"
            other, first = self._first.setdefault(name, (unit, what))
            if other != unit:
                raise UserError(f"column {self._columns[name]}: {first}, and {what}; write all of them in one unit")
