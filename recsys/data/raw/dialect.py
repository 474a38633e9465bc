"""Dialects of text files: encodings, separators, comments, headers, and text that stands for missing values.

A file's own dialect is translated into one that parsers read: UTF-8, lines that end with a line feed, separators of
one character, and nothing but rows.
"""

import codecs
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv

from recsys.base import interrupts
from recsys.base.errors import UserError
from recsys.data.features.blocks import BLANK, NOT_TEXT, one_line
from recsys.data.raw.byte_ranges import UNREADABLE, open_bytes
from recsys.schema.source_schema import SourceConfig, TextConfig

if interrupts.installed():  # Arrow's own handlers lose a signal that comes while it finishes reading a block
    pa.enable_signal_handlers(False)

LINE_BYTES = 64 << 20  # the longest line allowed; a file with a longer one is not text
HEAD_BYTES, HEAD_LINES = 1 << 20, 10_000  # read at the beginning of a file
SPACES = "\\s+"  # the separator that stands for any run of spaces and TABs
BREAK = "\x1e"  # takes the place of line breaks within quotes: ASCII's record separator
UNIT = "\x1f"  # takes the place of separators of several characters: ASCII's unit separator
TRAILING = "__trailing__"  # the name of the empty last column of lines that end with a separator
EXCEL = re.compile(rb"\Asep=[^\n]\r?\n")  # the first line that Excel writes to name the separator
MAGIC = {
    b"PAR1": "Parquet; set data.source.format=parquet",
    b"ARROW1": "Arrow IPC; set data.source.format=arrow",
    b"\x1f\x8b": "gzip; rename it to .gz",
    b"PK\x03\x04": "a zip archive; rename it to .zip",
    b"\x28\xb5\x2f\xfd": "zstd; rename it to .zst",
    b"BZh": "bzip2; rename it to .bz2",
    b"\xfd7zXZ": "xz; rename it to .xz",
}


@dataclass(frozen=True)
class Head:
    """The beginning of a text file.

    names: the columns
    header: the header line; lines equal to it are not rows, because files are often concatenated with their headers
    fields: the number of fields of the first row
    trailing: lines end with a separator, and so with an empty field that has no name
    """

    names: list[str]
    header: bytes | None
    fields: int
    trailing: bool


def is_ascii_compatible(encoding: str) -> bool:
    """Return whether bytes below 128 are ASCII in this encoding, so that a file can be cut at line feeds."""
    return "\n0".encode(encoding) == b"\n0"


def check_line_ends(text: str, file: Path) -> None:
    """Raise UserError if the lines of a file end in carriage returns alone, by the text at its beginning."""
    if "\n" not in text and "\r" in text:
        raise UserError(f"{file}: its lines end in carriage returns alone; run: tr '\\r' '\\n' < {file} > NEW")


def without_carriages(text: bytes) -> bytes:
    """Return lines that end in line feeds alone. Carriage returns within lines become spaces."""
    text = text.replace(b"\r\n", b"\n") if b"\r" in text else text
    return re.sub(rb"\r+(?=\n|\Z)", b"", text).replace(b"\r", b" ") if b"\r" in text else text


def delimiter(source: TextConfig) -> str:
    """Return the character that separates the fields of lines that `one_separator` returns."""
    return source.separator if len(source.separator) == 1 else UNIT


def one_separator(source: TextConfig, lines: bytes) -> bytes:
    """Return the lines with each separator replaced by `delimiter`; separators within quotes stay."""
    separator = source.separator.encode()
    if len(source.separator) == 1:
        return lines
    if source.separator == SPACES:
        lines = re.sub(rb"(?m)^[ \t]+|[ \t]+$", b"", lines)
    quote = (source.quote or "").encode()
    if not (quote and quote in lines):
        return re.sub(rb"[ \t]+", b"\x1f", lines) if source.separator == SPACES else lines.replace(separator, b"\x1f")
    pattern = rb"[ \t]+" if source.separator == SPACES else re.escape(separator)
    either = re.compile(_quoted(source, b"\n") + b"|" + pattern)
    return either.sub(lambda m: m[0] if m[0][:1] == quote else b"\x1f", lines)


def _quoted(source: TextConfig, never: bytes = b"") -> bytes:
    """Return the pattern of a quoted value. never: characters that it cannot hold"""
    quote, escape = (re.escape((c or "").encode()) for c in (source.quote, source.escape))
    escaped = escape + rb"[\s\S]|" if escape else b""
    return quote + rb"(?:[^" + quote + escape + never + rb"]++|" + escaped + quote + quote + rb")*+" + quote


def without_breaks(source: TextConfig, text: bytes, *, at_end: bool) -> tuple[bytes, bytes]:
    """Replace the line breaks within quoted values by BREAK, so that a row is a line.

    A value is quoted if the quotes stand at its ends, so that a stray quote within a value swallows nothing.

    Args:
        text: the text from the beginning of a row on.
        at_end: the file ends with this text.

    Returns:
        Whole rows, and the rest: the beginning of a row that is not complete.
    """
    if not at_end:
        text, rest = text[: (end := text.rfind(b"\n") + 1)], text[end:]
    else:
        rest = b""
    quote = (source.quote or "").encode()
    if not quote or quote not in text:
        return text, rest
    separator = rb"[ \t]" if source.separator == SPACES else re.escape(source.separator.encode())
    begin, end_ = rb"(?m:^|(?<=" + separator + rb"))", rb"(?=" + separator + rb"|\r?\n|\Z)"
    open_ = _quoted(source)[: -len(re.escape(quote))] + rb"\Z"
    cut: int | None = None
    parts, at = list[bytes](), 0
    for match in re.finditer(begin + rb"(?:" + _quoted(source) + end_ + b"|(?P<open>" + open_ + b"))", text):
        if match["open"] is not None:
            cut = None if at_end else match.start()
        elif b"\n" in match[0]:
            broken = match[0].replace(b"\r\n", b"\n").replace(b"\n", BREAK.encode())
            parts += [text[at : match.start()], broken]
            at = match.end()
    whole = b"".join([*parts, text[at:cut]])
    if cut is None:
        return whole, rest
    begins = whole.rfind(b"\n") + 1
    return whole[:begins], whole[begins:].replace(BREAK.encode(), b"\n") + text[cut:] + rest


def rows_only(
    source: TextConfig, header: bytes | None, lines: bytes, *, blanks: bool = True
) -> tuple[bytes, np.ndarray | None]:
    """Return the lines that are rows, and the number of each from 1; None if all lines are rows.

    Blank lines, comments and headers are not rows.

    blanks: look for blank lines; without, they are found only if there is a comment or a header
    """
    blank = b"" if source.separator in (" ", "\t") else b" "
    if EXCEL.match(lines):
        rows, places = rows_only(source, header, EXCEL.sub(b"", lines), blanks=blanks)
        every = np.arange(1, rows.count(b"\n") + (not rows.endswith(b"\n")) + 1)
        return rows, 1 + (every if places is None else places)
    comment = source.comment.encode() if source.comment else None
    starts = [*([b"\n"] if blanks else []), *filter(None, [comment, header])]
    if not any(lines.startswith(s) or b"\n" + s in lines for s in starts):
        spaces = blanks and blank and (lines.startswith(b" ") or b"\n " in lines)
        if not (spaces and re.search(rb"(?m)^ +$", lines)):
            return lines, None
    kept, numbers = [], []
    for number, line in enumerate(lines.split(b"\n"), start=1):
        if line.strip(blank) and line != header and not (comment and line.startswith(comment)):
            kept.append(line)
            numbers.append(number)
    return b"\n".join(kept) + b"\n" if kept else b"", np.array(numbers, np.int64)


def read_head(source: SourceConfig, file: Path) -> Head:
    """Return the columns of a text file without reading its rows.

    Raises:
        UserError: the file is not text, or has no header although the config says so.
    """
    lines = [line for line in head_lines(source, file) if line]
    names, header = list(source.columns), None
    if source.header:
        if not lines:
            raise UserError(
                f"{file}: has no header, only empty lines; set data.source.header=false and name its columns"
            )
        header = lines.pop(0)
        if not names:
            try:
                line = pa.BufferReader(one_separator(source, header) + b"\n")
                given = pacsv.open_csv(line, parse_options=parse_options(source)).schema.names
            except pa.ArrowInvalid as e:
                raise UserError(f"{file}: its first line is not a header ({one_line(e)})") from e
            names = [n.replace(BREAK, " ").strip(BLANK) for n in given]
            names = names[:-1] if len(names) > 1 and not names[-1] else names
    elif not names:
        raise UserError("data.source.columns: missing; files without a header need it")
    fields = _fields(source, lines[0]) if lines else []
    return Head(names, header, len(fields), len(fields) == len(names) + 1 and not fields[-1])


def head_lines(source: SourceConfig, file: Path) -> list[bytes]:
    """Return the first lines that are rows or the header, as UTF-8."""
    data = b""
    try:
        with open_bytes(file) as raw:
            while data.count(b"\n") < 3 and len(data) < LINE_BYTES and (more := raw.read(HEAD_BYTES)):
                data += more
    except UNREADABLE as e:
        raise UserError(f"{file}: cannot be read ({one_line(e)})") from e
    for magic, kind in MAGIC.items():
        if data.startswith(magic):
            raise UserError(f"{file}: not {source.format} but {kind}")
    text = codecs.getincrementaldecoder(source.encoding)("replace").decode(data).removeprefix("\ufeff")
    if source.line_breaks_in_quotes:
        text = without_breaks(source, text.encode(), at_end=True)[0].decode()
    start = text[: 1 << 12]
    if start.count("\0") > len(start) // 100 or start.count(NOT_TEXT) > len(start) // 4:
        hint = "" if source.encoding != "utf-8" else "; if it is text, set data.source.encoding, such as utf-16"
        raise UserError(f"{file}: not {source.format}: it does not begin with {source.encoding.upper()} text{hint}")
    if source.format == "csv" and re.match(r'\s*\{\s*"', start):
        raise UserError(f"{file}: not csv but JSON; set data.source.format=jsonl")
    check_line_ends(text, file)
    lines, _ = rows_only(source, None, without_carriages(text.encode()))
    first, *rest = lines.split(b"\n")
    if source.header and source.format == "csv" and NOT_TEXT in first.decode():
        hint = "; set data.source.encoding, such as latin-1" if source.encoding == "utf-8" else ""
        raise UserError(f"{file}: its header is not {source.encoding.upper()} text{hint}")
    return [first, *rest]


def parse_options(source: TextConfig, handler: Callable[[pacsv.InvalidRow], str] | None = None) -> pacsv.ParseOptions:
    """Return pyarrow's options for lines that `one_separator` returns. handler: called with rows of another width."""
    return pacsv.ParseOptions(
        delimiter=delimiter(source),
        quote_char=source.quote or False,
        escape_char=source.escape or False,
        newlines_in_values=False,
        ignore_empty_lines=False,
        invalid_row_handler=handler,
    )


def _fields(source: SourceConfig, line: bytes) -> list[str]:
    """Return the fields of a line."""
    line = one_separator(source, line)
    try:
        table = pacsv.read_csv(
            pa.BufferReader(line + b"\n"),
            pacsv.ReadOptions(autogenerate_column_names=True, use_threads=False),
            parse_options(source),
            pacsv.ConvertOptions(strings_can_be_null=False, null_values=[]),
        )
        return [f"{column[0]}" for column in table]
    except pa.ArrowInvalid:
        return line.decode(errors="replace").split(delimiter(source))


def first_lines(source: SourceConfig, file: Path) -> list[bytes]:
    """Return up to HEAD_LINES of the first lines of a file, each of which is one value."""
    lines = head_lines(whole_lines(source), file)
    return lines[: max(min(len(lines) - 1, HEAD_LINES), 1)]  # the last one may be cut


def whole_lines(source: SourceConfig) -> SourceConfig:
    """Return the config that reads each line as one value."""
    return SourceConfig(
        format=source.format,
        separator="\x01",
        quote=None,
        header=False,
        encoding=source.encoding,
        comment=source.comment,
    )
