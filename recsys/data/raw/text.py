"""Read CSV as blocks of rows: bytes are cut at line ends and parsed by a few threads."""

import codecs
import re
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import BinaryIO, TypeVar

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.csv as pacsv

from recsys.base.cores import threads_of
from recsys.base.errors import UserError
from recsys.data.features.blocks import EMPTY_LINE, LINE, NOT_TEXT, BadRow, Block, one_line
from recsys.data.raw.byte_ranges import UNREADABLE, FileRange, Projection, open_bytes
from recsys.data.raw.dialect import (
    BREAK,
    LINE_BYTES,
    TRAILING,
    UNIT,
    Head,
    delimiter,
    is_ascii_compatible,
    one_separator,
    parse_options,
    read_head,
    rows_only,
    without_breaks,
    without_carriages,
)
from recsys.schema.source_schema import SourceConfig

BLOCK_BYTES = 16 << 20
ESCAPED = ", with a backslash before a quote"  # ends the reason of a bad row
WIDE_COLUMNS = 500  # rows of twice as many columns are read in blocks of twice the size, up to four times
# number of blocks parsed at the same time, each by several threads of polars
READERS = min(max(threads_of() // 4, 1), 4)

Item = TypeVar("Item")
Result = TypeVar("Result")


def read_csv(
    source: SourceConfig, file: Path, names: list[str], file_range: FileRange, projection: Projection
) -> Iterator[Block]:
    """Yield blocks of whole lines in order, parsed by a few threads.

    Args:
        names: names of all columns of the file, in order.
        file_range: bytes of text; the lines that begin there are read.
        projection: its `numbers` are parsed as numbers; all columns are read.
    """
    head = replace(read_head(source if source.header else replace(source, columns=names), file), names=names)
    with open_bytes(file) as raw:
        text = _Utf8Reader(_RangeReader(raw, file_range), source.encoding)

        def parts() -> Iterator[CsvLines]:
            line = 1
            # more for wide rows, since each block takes a time for each column
            for lines in _blocks(source, text, BLOCK_BYTES * min(max(len(names) // WIDE_COLUMNS, 1), 4)):
                part = CsvLines(source, file, head, lines, line, text.replaced)
                yield part
                line += part.line_ends

        try:
            yield from in_order(lambda part: part.parse(projection.numbers), parts(), READERS, "csv")
        except UNREADABLE as e:
            raise UserError(
                f"{file}: cannot be read as CSV with separator {source.separator!r} and "
                f"{len(names)} columns: {one_line(e)}"
            ) from e


def _count(text: bytes, byte: bytes) -> int:
    """Count a byte. NumPy takes a third of the time of bytes.count, and lets other threads run meanwhile."""
    return int(np.count_nonzero(np.frombuffer(text, np.uint8) == byte[0]))


def in_order(
    function: Callable[[Item], Result], items: Iterable[Item], threads: int, name: str
) -> Generator[Result, None, None]:
    """Yield function(item) for every item, in order. As many results as there are threads wait for the caller.

    name: of the threads
    """
    with ThreadPoolExecutor(threads, thread_name_prefix=name) as pool:
        waiting: deque[Future[Result]] = deque()
        try:
            for item in items:
                waiting.append(pool.submit(function, item))
                if len(waiting) > threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def _blocks(source: SourceConfig, text: "_Utf8Reader", size: int) -> Iterator[bytes]:
    """Yield the bytes in blocks of whole lines, about `size` bytes each; a row is a line."""
    rest = b""
    while data := text.read(size):
        if source.line_breaks_in_quotes:
            whole, rest = without_breaks(source, rest + data, at_end=False)
            if whole:
                yield whole
            if len(rest) > LINE_BYTES:
                raise EOFError(f"a quote is not closed within {LINE_BYTES >> 20} MiB, from {rest[:60]!r} on")
            continue
        end = data.rfind(b"\n") + 1
        if end:
            yield b"".join((rest, memoryview(data)[:end]))  # one copy, not two
            rest = data[end:]
        else:
            rest += data
            if len(rest) > LINE_BYTES:
                raise EOFError(f"a line of more than {LINE_BYTES >> 20} MiB")
    if rest:
        yield without_breaks(source, rest, at_end=True)[0] if source.line_breaks_in_quotes else rest


@dataclass(frozen=True)
class CsvLines:
    """Whole lines of a CSV file."""

    source: SourceConfig
    file: Path
    head: Head
    text: bytes
    line: int  # the number of the first line
    replaced: bool  # some bytes were not valid in the file's encoding

    @cached_property
    def line_ends(self) -> int:
        """The number of line ends of the file in the text, whose rows are lines."""
        breaks = _count(self.text, BREAK.encode()) if self.source.line_breaks_in_quotes else 0
        return _count(self.text, b"\n") + breaks

    def parse(self, numbers: frozenset[str] = frozenset()) -> Block:
        """Parse the lines. The columns `numbers` become Float64 if the fast path applies, else strings."""
        text = without_carriages(self.text)
        names = [*self.head.names, TRAILING] if self.head.trailing else self.head.names
        # the fast path refuses blank lines, so they are looked for only after it: a search takes time
        rows, line_numbers = rows_only(self.source, self.head.header, text, blanks=False)
        block = self._parse_fast(one_separator(self.source, rows), names, numbers) if rows else None
        if block is None:
            rows, line_numbers = rows_only(self.source, self.head.header, text)
            rows = one_separator(self.source, rows)
            empty = pl.DataFrame(schema=dict.fromkeys(names, pl.String) | {LINE: pl.Int64})
            block = _parse(self.source, self.file, names, rows, self.replaced) if rows else Block(self.file, empty)
        if self.head.trailing:
            block.frame = block.frame.drop(TRAILING)
        # turn the numbers of rows, from 1, into numbers of lines of the file range
        place = block.frame[LINE].to_numpy()
        places = place if line_numbers is None else line_numbers[place - 1]
        line = pl.Series(LINE, places + (self.line - 1), dtype=pl.Int64)
        block.frame.replace_column(block.frame.get_column_index(LINE), line)  # quicker than with_columns
        for i, bad in enumerate(block.bad):
            at = bad.line if line_numbers is None else int(line_numbers[bad.line - 1])
            shown = bad.text if len(self.source.separator) == 1 else bad.text.replace(UNIT, self.source.separator)
            block.bad[i] = replace(bad, line=at + self.line - 1, text=shown)
        if self.source.line_breaks_in_quotes and BREAK.encode() in text:
            self._restore_breaks(block, text)
        block.lines = self.line - 1 + self.line_ends + (not self.text.endswith(b"\n"))
        return block

    def _restore_breaks(self, block: Block, text: bytes) -> None:
        """Put the line breaks back into the values, and count them in the numbers of lines."""
        ends = np.frombuffer(text, np.uint8)
        before = np.concatenate([[0], np.cumsum(ends == ord(BREAK))[ends == ord("\n")]])  # breaks before each line
        place = block.frame[LINE].to_numpy()
        block.frame = block.frame.with_columns(
            pl.col(pl.String).str.replace_all(BREAK, "\n", literal=True),
            pl.Series(LINE, place + before[place - self.line], dtype=pl.Int64),
        )
        for i, bad in enumerate(block.bad):
            line = bad.line + int(before[bad.line - self.line])
            block.bad[i] = replace(bad, line=line, text=bad.text.replace(BREAK, "\n"))

    def _parse_fast(self, text: bytes, names: list[str], numbers: frozenset[str]) -> Block | None:
        """Parse lines with the same number of fields and no quotes, as in most files, much faster than `_parse`.

        Return None if that is not possible. Polars fills a line that is too short with nulls and rejects one that is
        too long. So if the number of separators is right and no line is rejected, no line is too short.
        """
        source = self.source
        separator, quote = delimiter(source).encode(), source.quote
        if self.replaced or len(names) < 2 or len(separator) != 1:
            return None
        if any(mark is not None and mark.encode() in text for mark in (quote, source.escape)):
            return None
        lines = _count(text, b"\n") + (not text.endswith(b"\n"))
        if _count(text, separator) != lines * (len(names) - 1):
            return None
        if source.decimal != "." or source.thousands is not None:
            numbers = frozenset()
        spaced = b" " in text  # most text of numbers has none; a search for two bytes takes 20 times as long
        if numbers and spaced and (text[:1] == b" " or b"\n " in text or separator + b" " in text):
            numbers = frozenset()  # polars' CSV reader takes ' 7' for a number, its cast does not
        schema = {n: pl.Float64 if n in numbers else pl.String for n in names}
        missing = list(source.null_values) if numbers else None
        for types in (schema, dict.fromkeys(names, pl.String)):
            try:
                frame = pl.read_csv(
                    text,
                    schema=types,
                    separator=delimiter(source),
                    quote_char=None,
                    has_header=False,
                    null_values=missing if types is schema else None,
                )
            except pl.exceptions.PolarsError:
                continue
            if frame.height != lines:
                return None
            break
        else:
            return None
        if all(c.null_count() for c in frame) and frame.select(pl.all_horizontal(pl.all().is_null()).any()).item():
            return None  # an empty row, which `_parse` reports
        frame = frame.with_columns(pl.int_range(1, 1 + lines, dtype=pl.Int64).alias(LINE))
        return Block(self.file, frame, as_text=self.parse if types is schema and numbers else None)


def _parse(source: SourceConfig, file: Path, names: list[str], data: bytes, replaced: bool) -> Block:
    """Parse whole lines, numbered from 1; lines that are not rows become bad rows."""
    wide: list[tuple[int, str, str]] = []  # rows of the wrong width: number, reason, text

    def skip(row: pacsv.InvalidRow) -> str:
        why = f"{row.actual_columns} fields, not {row.expected_columns}"
        why += ESCAPED if source.quote and source.escape is None and f"\\{source.quote}" in row.text else ""
        wide.append((row.number or 0, why, row.text))
        return "skip"

    table = pacsv.read_csv(
        pa.BufferReader(data),
        read_options=pacsv.ReadOptions(block_size=len(data) + 1, column_names=names, use_threads=False),
        parse_options=parse_options(source, skip),
        convert_options=pacsv.ConvertOptions(
            check_utf8=False,  # _Utf8Reader checked it
            column_types={name: pa.string() for name in names},
            strings_can_be_null=True,
            null_values=[""],
            quoted_strings_can_be_null=False,
        ),
    )
    frame = pl.DataFrame(table)
    empty = frame.select(pl.all_horizontal(pl.all().is_null())).to_series().to_numpy()
    breaks, garbled = np.zeros(frame.height, np.int64), np.zeros(frame.height, bool)
    if source.quote is not None and source.quote.encode() in data:
        for name in names:
            if frame[name].str.contains("\n", literal=True).any():
                breaks += frame[name].str.count_matches("\n", literal=True).fill_null(0).to_numpy()
    if replaced:
        for name in names:
            garbled |= frame[name].str.contains(NOT_TEXT, literal=True).fill_null(False).to_numpy()
    skipped = np.array([n for n, _, _ in wide], np.int64)
    numbers = np.concatenate([np.setdiff1d(np.arange(1, frame.height + len(wide) + 1), skipped), skipped])
    inner = np.concatenate([breaks, np.array([t.strip("\r\n").count("\n") for _, _, t in wide], np.int64)])
    if inner.any() and (block := _parse_without_open_quotes(source, file, names, data, replaced)) is not None:
        return block
    if inner.any():  # a row's line is its number plus the line breaks within the rows before it
        order = np.argsort(numbers)
        before = np.empty_like(numbers)
        before[order] = np.cumsum(inner[order]) - inner[order]
        numbers += before
    after = zip(numbers[frame.height :], wide, strict=True)
    bad = [BadRow(str(file), int(n), why, text) for n, (_, why, text) in after]
    frame = frame.with_columns(pl.Series(LINE, numbers[: frame.height], dtype=pl.Int64))
    lost = np.zeros(frame.height, bool)
    not_text = f"not {source.encoding.upper()} text"
    checks = ((breaks > 0, "a quoted field spans several lines"), (garbled, not_text), (empty, EMPTY_LINE))
    for mask, why in checks:
        for values in frame.filter(pl.Series(mask & ~lost)).iter_rows() if mask.any() else ():
            bad.append(BadRow(str(file), values[-1], why, "\t".join(v for v in values[:-1] if v is not None)))
        lost |= mask
    bad.sort(key=lambda b: b.line)
    return Block(file, frame.filter(pl.Series(~lost)) if lost.any() else frame, bad)


def _parse_without_open_quotes(
    source: SourceConfig, file: Path, names: list[str], data: bytes, replaced: bool
) -> Block | None:
    """Parse like `_parse`, but turn lines that open a quote without closing it into bad rows.

    They would otherwise swallow the following lines.

    Return None if there are no such lines.
    """
    lines = data.split(b"\n")
    quote = (source.quote or "").encode()
    escaped = re.compile(re.escape((source.escape or "").encode()) + rb".")
    bare = [escaped.sub(b"", text) for text in lines] if source.escape else lines
    left_open = {number: text for number, text in enumerate(lines, 1) if bare[number - 1].count(quote) % 2}
    if not left_open:
        return None
    closed = b"\n".join(b"" if number in left_open else text for number, text in enumerate(lines, 1))
    block = _parse(source, file, names, closed, replaced)
    for i, bad in enumerate(block.bad):
        if bad.line in left_open:
            text = left_open[bad.line].decode(errors="replace").rstrip("\r")
            block.bad[i] = BadRow(bad.file, bad.line, "a quote is not closed", text)
    return block


class _RangeReader:
    """Reads the lines that begin within a range of a file."""

    def __init__(self, raw: BinaryIO, file_range: FileRange) -> None:
        self._raw, at, self.at_start = raw, 0, not file_range.start
        if file_range.start:  # a line that begins before the range belongs to the previous one
            raw.seek(file_range.start - 1)
            at = file_range.start - 1 + len(_rest_of_line(raw))
        self._left = None if file_range.stop is None else max(file_range.stop - at, 0)
        self._ends = self._left == 0  # whether the bytes read so far end at the end of a line

    def read(self, size: int) -> bytes:
        if self._left is None:
            return self._raw.read(size)
        if self._left > 0:
            data = self._raw.read(min(size, self._left))
            self._left = self._left - len(data) if data else 0
            self._ends = not data or (self._left == 0 and data.endswith(b"\n"))
            return data
        if self._ends:
            return b""
        self._ends = True
        return _rest_of_line(self._raw)


def _rest_of_line(raw: BinaryIO) -> bytes:
    line = raw.readline(LINE_BYTES)
    if len(line) == LINE_BYTES and not line.endswith(b"\n"):
        raise EOFError(f"a line of more than {LINE_BYTES >> 20} MiB")
    return line


class _Utf8Reader:
    """Reads text as valid UTF-8: invalid bytes become NOT_TEXT and set `replaced`."""

    closed = False

    def __init__(self, raw: _RangeReader, encoding: str) -> None:
        self._raw, self._decoder, self._rest = raw, codecs.getincrementaldecoder(encoding)("replace"), b""
        self._ascii = is_ascii_compatible(encoding)
        self._first = raw.at_start
        self.replaced = False

    def read(self, size: int) -> bytes:
        while not self._rest:
            data = self._raw.read(size)
            if self._ascii and data.isascii() and not self._decoder.getstate()[0]:  # usual, and quick to check
                self._rest = data
            else:
                text = self._decoder.decode(data, final=not data)
                self.replaced |= NOT_TEXT in text
                self._rest = text.removeprefix("\ufeff" if self._first else "").encode()
            self._first = False
            if not data:
                break
        data, self._rest = self._rest[:size], self._rest[size:]
        return data
