"""One raw file as a stream of frames, in bounded memory: CSV, Parquet, libfm.

Text is UTF-8, plain or .gz; a row is a line: quotes keep separators together, not lines.

Every reader yields `Block`s: the rows that have the right number of fields, as strings (CSV, libfm)
or in the file's own types (Parquet), the line each row came from, and the rows that did not fit.
"""

import codecs
import gzip
import os
import zlib
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import polars.selectors as cs
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from recsys.data.blocks import LINE, NOT_TEXT, BadRow, Block, one_line
from recsys.errors import UserError
from recsys.schema import SourceConfig

BLOCK_BYTES = 16 << 20
LINE_BYTES = 64 << 20  # the longest line, which tells a file of no lines
READERS = 4  # threads that parse blocks, each of which takes several times its bytes
BLOCK_ROWS = 250_000
UNREADABLE = (pa.ArrowException, OSError, EOFError, zlib.error, UnicodeDecodeError)


def column_names(source: SourceConfig, file: Path) -> list[str]:
    """The raw columns of `file`, from its header or schema alone, before any row is read."""
    return list(no_rows(source, file).columns)


def no_rows(source: SourceConfig, file: Path) -> pl.DataFrame:
    """The raw columns of `file`, no rows."""
    if source.format == "parquet":
        try:
            schema = pq.read_schema(file)
        except UNREADABLE as e:
            raise UserError(f"{file}: not a Parquet file ({one_line(e)})") from e
        _check_names(schema.names, file)
        frame = pl.from_arrow(schema.empty_table())
        assert isinstance(frame, pl.DataFrame)
        return _plain(frame, file)
    names = list(source.columns)
    first = _first_line(source, file)
    if source.header and source.format == "csv":
        if not first.strip():
            raise UserError(f"{file}: its first line is empty, not a header; set data.source.header=false")
        try:
            header = pa.BufferReader(first.rstrip(b"\r\n") + b"\n")
            names = pacsv.open_csv(header, parse_options=_parse_options(source)).schema.names
        except pa.ArrowInvalid as e:
            raise UserError(f"{file}: its first line is not a header ({one_line(e)})") from e
        _check_names(names, file)
    elif not names:
        raise UserError("data.source.columns: needed where the files have no header")
    return pl.DataFrame(schema=dict.fromkeys(names, pl.String))


def _check_names(names: list[str], file: Path) -> None:
    if twice := [n for n in names if names.count(n) > 1]:
        raise UserError(f"{file}: two columns are named {twice[0]}")
    if LINE in names:
        raise UserError(f"{file}: a column is named {LINE}, which is reserved; rename it")


def _first_line(source: SourceConfig, file: Path) -> bytes:
    """The first line, once it is sure that the file is text."""
    try:
        with _open(file) as lines:
            first = bytes(lines.readline(1 << 20)).removeprefix(codecs.BOM_UTF8)
            head = first + lines.read(1 << 12)
    except UNREADABLE as e:
        raise UserError(f"{file}: cannot be read ({one_line(e)})") from e
    kinds = {
        b"PAR1": "Parquet; set data.source.format=parquet",
        b"\x1f\x8b": "gzip; name it .gz",
        b"PK\x03\x04": "a zip archive; unpack it",
        b"\x28\xb5\x2f\xfd": "zstd; unpack it",
    }
    for magic, kind in kinds.items():
        if head.startswith(magic):
            raise UserError(f"{file}: not {source.format} but {kind}")
    if head.count(0) > len(head) // 100 or head.decode(errors="replace").count(NOT_TEXT) > len(head) // 10:
        raise UserError(f"{file}: not {source.format}: its beginning is not UTF-8 text")
    if source.header and source.format == "csv" and NOT_TEXT in first.decode(errors="replace"):
        raise UserError(f"{file}: its header is not UTF-8 text")
    return first


def read(source: SourceConfig, file: Path, names: list[str]) -> Iterator[Block]:
    """The raw rows of `file`, whose columns are `names` where it does not name them itself."""
    readers = {"csv": _read_csv, "parquet": _read_parquet, "libfm": _read_libfm}
    return readers[source.format](source, file, names)


class _Utf8:
    """A file's bytes as valid UTF-8: bytes that are none become NOT_TEXT, and `replaced` tells so."""

    closed = False

    def __init__(self, raw: Any) -> None:
        self._raw, self._decoder, self._rest = raw, codecs.getincrementaldecoder("utf-8")("replace"), b""
        self.replaced = False

    def read(self, size: int) -> bytes:
        while not self._rest:
            piece = self._raw.read(size)
            if piece.isascii() and not self._decoder.getstate()[0]:  # nearly always, and quick to tell
                self._rest = piece
            else:
                text = self._decoder.decode(piece, final=not piece)
                self.replaced |= NOT_TEXT in text
                self._rest = text.encode()
            if not piece:
                break
        done, self._rest = self._rest[:size], self._rest[size:]
        return done


def _open(file: Path) -> Any:
    return gzip.open(file, "rb") if file.suffix == ".gz" else file.open("rb")


def _parse_options(source: SourceConfig, handler: Any = None) -> pacsv.ParseOptions:
    return pacsv.ParseOptions(
        delimiter=source.separator,
        quote_char=source.quote or False,
        newlines_in_values=False,
        ignore_empty_lines=False,
        invalid_row_handler=handler,
    )


def _read_csv(source: SourceConfig, file: Path, names: list[str]) -> Iterator[Block]:
    """Pieces of whole lines, parsed by a few threads and handed out in order."""
    workers = min(os.cpu_count() or 1, READERS)
    waiting: deque[Future[Block]] = deque()
    line = 1
    with _open(file) as raw, ThreadPoolExecutor(workers, thread_name_prefix="csv") as pool:
        text = _Utf8(raw)
        try:
            for piece in _pieces(text):
                if line == 1 and source.header:
                    piece = piece[piece.find(b"\n") + 1 or len(piece) :]
                    line = 2
                if piece:
                    waiting.append(pool.submit(_parse, source, file, names, piece, line, text.replaced))
                line += piece.count(b"\n")
                if len(waiting) > workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        except UNREADABLE as e:
            raise UserError(
                f"{file}: cannot be read as CSV with separator {source.separator!r} and "
                f"{len(names)} columns: {one_line(e)}"
            ) from e
        finally:
            for future in waiting:
                future.cancel()


def _pieces(text: "_Utf8") -> Iterator[bytes]:
    """The file's bytes in pieces of whole lines, about BLOCK_BYTES each."""
    rest = b""
    while piece := text.read(BLOCK_BYTES):
        end = piece.rfind(b"\n") + 1
        if end:
            yield rest + piece[:end]
            rest = piece[end:]
        else:
            rest += piece
            if len(rest) > LINE_BYTES:
                raise EOFError(f"a line of more than {LINE_BYTES >> 20} MiB")
    if rest:
        yield rest


def _parse(source: SourceConfig, file: Path, names: list[str], piece: bytes, line: int, replaced: bool) -> Block:
    """The rows of whole lines, `line` being the number of the first; set aside are those that are no rows."""
    wide: list[tuple[int, str, str]] = []  # rows of the wrong width: number, reason, text

    def skip(row: pacsv.InvalidRow) -> str:
        wide.append((row.number or 0, f"{row.actual_columns} fields, not {row.expected_columns}", row.text))
        return "skip"

    table = pacsv.read_csv(
        pa.BufferReader(piece),
        read_options=pacsv.ReadOptions(block_size=len(piece) + 1, column_names=names, use_threads=False),
        parse_options=_parse_options(source, skip),
        convert_options=pacsv.ConvertOptions(
            check_utf8=False,  # _Utf8 did
            column_types={name: pa.string() for name in names},
            strings_can_be_null=True,
            null_values=[""],
            quoted_strings_can_be_null=False,
        ),
    )
    frame = pl.from_arrow(table)
    assert isinstance(frame, pl.DataFrame)
    empty = frame.select(pl.all_horizontal(pl.all().is_null())).to_series().to_numpy()
    breaks, garbled = np.zeros(frame.height, np.int64), np.zeros(frame.height, bool)
    if source.quote is not None and source.quote.encode() in piece:
        for name in names:
            if frame[name].str.contains("\n", literal=True).any():
                breaks += frame[name].str.count_matches("\n", literal=True).fill_null(0).to_numpy()
    if replaced:
        for name in names:
            garbled |= frame[name].str.contains(NOT_TEXT, literal=True).fill_null(False).to_numpy()
    taken = np.array([n for n, _, _ in wide], np.int64)
    numbers = np.concatenate([np.setdiff1d(np.arange(1, frame.height + len(wide) + 1), taken), taken])
    inner = np.concatenate([breaks, np.array([t.strip("\r\n").count("\n") for _, _, t in wide], np.int64)])
    if inner.any():  # a row's line is its number and the line breaks within rows before it
        order = np.argsort(numbers)
        before = np.empty_like(numbers)
        before[order] = np.cumsum(inner[order]) - inner[order]
        numbers += before
    numbers += line - 1
    after = zip(numbers[frame.height :], wide, strict=True)
    bad = [BadRow(str(file), int(n), why, text) for n, (_, why, text) in after]
    frame = frame.with_columns(pl.Series(LINE, numbers[: frame.height], dtype=pl.Int64))
    lost = np.zeros(frame.height, bool)
    checks = ((breaks > 0, "a quoted field goes on over lines"), (garbled, "not UTF-8 text"), (empty, "an empty line"))
    for mask, why in checks:
        for values in frame.filter(pl.Series(mask & ~lost)).iter_rows() if mask.any() else ():
            bad.append(BadRow(str(file), values[-1], why, "\t".join(v for v in values[:-1] if v is not None)))
        lost |= mask
    bad.sort(key=lambda b: b.line)
    return Block(file, frame.filter(pl.Series(~lost)) if lost.any() else frame, bad)


def _read_parquet(_source: SourceConfig, file: Path, _names: list[str]) -> Iterator[Block]:
    row = 1
    try:
        with pq.ParquetFile(file) as parquet:
            for batch in parquet.iter_batches(batch_size=BLOCK_ROWS):
                frame = pl.from_arrow(pa.Table.from_batches([batch]))
                assert isinstance(frame, pl.DataFrame)
                frame = _plain(frame, file)
                yield Block(file, frame.with_columns(pl.int_range(row, row + frame.height).alias(LINE)))
                row += frame.height
    except UNREADABLE as e:
        raise UserError(f"{file}: cannot be read as Parquet from row {row} on: {one_line(e)}") from e


def _plain(frame: pl.DataFrame, file: Path) -> pl.DataFrame:
    """Categories and bytes as the text that they are."""
    coded = cs.categorical() | cs.enum() | cs.binary()
    try:
        return frame.with_columns(coded.cast(pl.String))
    except pl.exceptions.PolarsError as e:
        names = ", ".join(frame.select(cs.binary()).columns)
        raise UserError(f"{file}: {names}: bytes that are not UTF-8 text") from e


def _read_libfm(_source: SourceConfig, file: Path, names: list[str]) -> Iterator[Block]:
    """'label index:value index:value ...': the i-th index is the i-th column's id, as a string."""
    lines = SourceConfig(separator="\x01", quote=None, header=False)
    for block in _read_csv(lines, file, ["text"]):
        fields = block.frame.select(LINE, "text", parts=pl.col("text").str.strip_chars(" ").str.split(" "))
        ids = pl.col("parts").list.eval(pl.element().str.extract(r"^([^:]+):", 1))
        wide = pl.col("parts").list.len() != len(names)
        odd = ids.list.slice(1).list.eval(pl.element().is_null()).list.any()
        reason = (
            pl.when(wide)
            .then(pl.format("{} fields, not {}", pl.col("parts").list.len(), len(names)))
            .when(odd)
            .then(pl.lit("a field is not index:value"))
        )
        fields = fields.with_columns(ids.alias("ids"), reason.alias("reason"))
        for row in fields.filter(pl.col("reason").is_not_null()).iter_rows(named=True):
            block.bad.append(BadRow(str(file), row[LINE], row["reason"], row["text"]))
        block.bad.sort(key=lambda b: b.line)
        block.frame = fields.filter(pl.col("reason").is_null()).select(
            pl.col("parts").list.get(0).alias(names[0]),
            *(pl.col("ids").list.get(i).alias(name) for i, name in enumerate(names[1:], start=1)),
            LINE,
        )
        yield block


def without_label(source: SourceConfig, label: str, file: Path, names: list[str]) -> list[str]:
    """The columns of a header-less file that may lack the label, told by its first line's fields."""
    with _open(file) as lines:
        fields = lines.readline().decode(errors="replace").rstrip("\r\n").split(source.separator)
    rest = [n for n in names if n != label]
    return rest if len(fields) == len(rest) else names
