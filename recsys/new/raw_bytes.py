"""Read pieces of a file, decompressed (its head, lines of its middle and its tail), and make frames of them."""

import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO
from zipfile import BadZipFile

import polars as pl
import pyarrow as pa

from recsys.base.errors import UserError
from recsys.data.raw.byte_ranges import UNREADABLE, is_compressed, open_bytes
from recsys.data.raw.nested import plain
from recsys.files.json_text import parse_json

HEAD = 4 << 20  # bytes
PIECE = 2 << 20
MAX_DECOMPRESSED = 1 << 28
DAMAGED = (
    *(OSError, EOFError, ValueError, KeyError, BadZipFile, zlib.error),
    *(pa.ArrowException, pl.exceptions.PolarsError),
)


@contextmanager
def readable(file: Path) -> Iterator[None]:
    """Turn the errors that libraries raise about a damaged file into a UserError."""
    try:
        yield
    except UserError:
        raise
    except DAMAGED as e:
        is_system = isinstance(e, OSError) and e.strerror and not isinstance(e, pa.ArrowException)
        why = f" ({e.strerror})" if is_system else ""  # type: ignore[union-attr]
        raise UserError(f"{file}: is damaged, or not what its first bytes say{why}; check it, or leave it out") from e


@contextmanager
def opened(file: Path) -> Iterator[BinaryIO]:
    """Open a file as the readers of rows do, decompressed. Raises UserError if it cannot be read."""
    try:
        with open_bytes(file) as raw:
            yield raw
    except UNREADABLE as e:
        why = (e.strerror if isinstance(e, OSError) else None) or "it is damaged, or not all of it is there"
        raise UserError(f"{file}: cannot be read ({why})") from e


def head(file: Path, size: int = HEAD) -> bytes:
    """Return the first bytes of a file, decompressed."""
    with opened(file) as raw:
        return raw.read(size)


def pieces(file: Path, pieces: int = 5, share: float = 1) -> tuple[list[bytes], int]:
    """Return the head of a file and pieces of its middle and its tail, each of whole lines, and the file's size.

    The size of a compressed file is what was decompressed of it. With a smaller share, the pieces are smaller.
    """
    if is_compressed(file):
        return _decompressed_pieces(file, pieces, share)
    size, first, each = file.stat().st_size, int(HEAD * share), int(PIECE * share)
    with file.open("rb") as raw:
        if size <= first + pieces * each:
            return [raw.read()], size
        parts = [_whole_lines(raw.read(first), at_start=True)]
        last = size - each
        for i in range(1, pieces):
            raw.seek(first + (last - first) * i // (pieces - 1))
            parts.append(_whole_lines(raw.read(each), at_end=i == pieces - 1))
    return parts, size


def _decompressed_pieces(file: Path, most: int, share: float) -> tuple[list[bytes], int]:
    """Return the head of a file and evenly spaced pieces of the bytes that are decompressed in a few seconds."""
    with opened(file) as raw:
        parts, samples, every, read_pieces = [raw.read(int(HEAD * share))], list[bytes](), 1, 0
        size = len(parts[0])
        while size < share * MAX_DECOMPRESSED and (piece := raw.read(int(PIECE * share))):
            size += len(piece)
            if read_pieces % every == 0:
                samples.append(piece)
            read_pieces += 1
            if len(samples) > 2 * most:  # keep every second one
                samples, every = samples[::2], 2 * every
        rest = read_pieces == len(samples)  # nothing was left out: the pieces are adjacent
    if rest:
        return [b"".join([*parts, *samples])], size
    return [_whole_lines(parts[0], at_start=True), *map(_whole_lines, samples)], size


def _whole_lines(text: bytes, *, at_start: bool = False, at_end: bool = False) -> bytes:
    """Leave out the lines that a piece begins or ends in, but at the start and at the end of a file."""
    whole = text if at_start else text[text.find(b"\n") + 1 :]
    return whole if at_end else whole[: whole.rfind(b"\n") + 1] or (text if at_start else b"")


@dataclass
class Sample:
    """Rows of raw files, as text or with the types of the file, and the estimated number of rows of all files."""

    frame: pl.DataFrame
    rows: int


def thinned(frame: pl.DataFrame, most: int) -> pl.DataFrame:
    """Return at most so many rows, in four runs from the head to the tail."""
    if frame.height <= most:
        return frame
    run = most // 4
    starts = [round(i * (frame.height - run) / 3) for i in range(4)]
    return pl.concat([frame.slice(s, run) for s in starts])


def json_frame(lines: Sequence[str]) -> pl.DataFrame:
    """Return the rows of JSON lines, without damaged lines."""
    rows = []
    for line in lines:
        try:
            row = parse_json(line)
        except ValueError:  # a damaged line, or one that was cut
            continue
        rows.append(row)
    return _rows_frame(rows)


def json_array(file: Path) -> pl.DataFrame:
    """Return the rows of a JSON array of objects."""
    with opened(file) as raw:
        rows = parse_json(raw.read())
    return plain(_rows_frame(rows), file)


def _rows_frame(rows: Sequence[Any]) -> pl.DataFrame:
    """Return objects as rows, nested fields under their paths: {"user": {"id": 7}} is {"user.id": 7}."""

    def flat(row: dict[str, Any], prefix: str = "") -> dict[str, Any]:
        fields: dict[str, Any] = {}
        for name, value in row.items():
            fields |= flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
        return fields

    objects = [flat(row) for row in rows if isinstance(row, dict)]
    return pl.DataFrame(objects, infer_schema_length=None, strict=False) if objects else pl.DataFrame()
