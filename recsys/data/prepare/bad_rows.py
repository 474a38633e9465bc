"""Count the rows that cannot be read, write them to one file, and stop if there are too many."""

import re
from collections import Counter
from pathlib import Path

import polars as pl

from recsys.console import say
from recsys.data.prepare.chunks import Chunk, ParsedChunk
from recsys.data.raw import sources
from recsys.data.raw.blocks import BadRow
from recsys.data.raw.formats import first_range
from recsys.data.raw.ranges import FileRange
from recsys.data.raw.text import ESCAPED
from recsys.data.transforms import parse_rows
from recsys.data.transforms.columns import ResolvedData
from recsys.errors import UserError

EARLY_STOP_ROWS = 100_000
FIRST_ROWS_OF = ("csv", "jsonl", "libfm", "lists")  # formats of which the first rows are read at once
FIRST_BYTES, SMALL_BYTES, FEWEST_ROWS = 1 << 18, 8 << 20, 20
MOST_BAD = 0.5  # the share of bad rows above which the config does not fit the file
MOST_REASONS = 2  # shown in a message
QUOTES = (
    "if quoted values hold line breaks, set data.source.line_breaks_in_quotes=true; if quotes are part of the text, "
    "data.source.quote=null"
)
HINTS = {  # the end of a reason -> what may help
    "is neither 0 nor 1": "data.label.positive=[TEXT] names the texts that are 1, data.label.at_least=N a threshold",
    "is not a number": "if that means a missing value, add it to data.source.null_values",
    "is not a time": "convert it by data.derive",
    "is neither a number nor a time": "convert it by data.derive",
    "not UTF-8 text": "data.source.encoding names another encoding, such as latin-1",
    "a quote is not closed": QUOTES,
    "a quoted field spans several lines": QUOTES,
    ESCAPED: "data.source.escape='\\' reads \\\" as a quote within a value",
}

COMMA = re.compile(r"\s*[+-]?[\d.' ]*\d,\d+\s*$|\s*[+-]?\d{1,3}(,\d{3})+(\.\d+)?\s*$")  # 1.234,5 or 1,234.5


class Reasons:
    """Counts rows by the reason why they cannot be read, with an example of each."""

    def __init__(self) -> None:
        self._rows: Counter[str] = Counter()
        self._first: dict[str, tuple[str | None, str]] = {}  # value and place of the first row of each reason

    def add(self, reason: str, rows: int, file: str, line: int, value: str | None) -> None:
        """Add rows. file, line, value: the place of the first one, and the text that cannot be read"""
        self._rows[reason] += rows
        self._first.setdefault(reason, (value, f"{file} line {line}"))

    def __str__(self) -> str:
        """Return the most frequent reasons in one line."""
        texts, most = [], self._rows.most_common(MOST_REASONS)
        for reason, rows in most:
            hint = next((f"; {hint}" for end, hint in HINTS.items() if reason.endswith(end)), "")
            value, place = self._first[reason]
            example = place if value is None else f"{value[:40]!r}, {place}"
            if reason.endswith("is not a number") and COMMA.match(value or ""):
                hint = "; data.source.decimal and data.source.thousands name the marks of numbers"
            texts.append(f"{rows:,} {_rows(rows)}: {reason} (such as {example}){hint}")
        if others := sum(self._rows.values()) - sum(rows for _, rows in most):
            texts.append(f"{others:,} {_rows(others)} for other reasons")
        return "; ".join(texts)


def _rows(n: int) -> str:
    return "row" if n == 1 else "rows"


def check_first_rows(data: ResolvedData, file: Path) -> None:
    """Read the beginning of a text file.

    Raises:
        UserError: most of its rows cannot be read, so that the config does not fit the file.
    """
    sides = [sources.side_file(data, join) for join in data.source.joins]
    if data.source.format not in FIRST_ROWS_OF or any(f.stat().st_size > SMALL_BYTES for f in sides):
        return
    good, bad = parse_first_block(data, file, first_range(data.source, file, FIRST_BYTES))
    reasons, rows = Reasons(), good + len(bad)
    for b in bad:
        reasons.add(b.reason, 1, b.file, b.line, b.value)
    if rows >= FEWEST_ROWS and len(bad) > MOST_BAD * rows:
        raise UserError(f"data={data.name}: {len(bad):,} of the first {rows:,} rows cannot be read: {reasons}")


def parse_first_block(data: ResolvedData, file: Path, file_range: FileRange) -> tuple[int, list[BadRow]]:
    """Parse the first block of a range of a file. Return the number of good rows, and the bad rows."""
    for block in sources.read_blocks(data, file, file_range):
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
            with self._file.open("ab") as f:
                rows.write_csv(f, include_header=f.tell() == 0)
            first = frame.group_by("reason", maintain_order=True).agg(pl.len(), pl.first("line", "value"))
            for reason, n, line, value in first.iter_rows():
                self._reasons.add(reason, n, str(chunk.file), line + before, value)
        if self._good + self.bad >= EARLY_STOP_ROWS:
            self._check()

    def _check(self) -> None:
        all_rows = self._good + self.bad
        if self.bad > self._data.max_bad_rows * all_rows:
            raise UserError(
                f"data={self._data.name}: {self.bad:,} of {all_rows:,} rows cannot be read, more than "
                f"data.max_bad_rows={self._data.max_bad_rows}: {self._reasons}; they are listed in {self._file}"
            )

    def report(self) -> None:
        """Print how many rows are bad."""
        self._check()
        if self.bad:
            all_rows = self._good + self.bad
            say(
                f"{self.bad:,} of {all_rows:,} rows could not be read: {self._reasons}; they are listed in {self._file}"
            )
