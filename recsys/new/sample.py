"""Read a sample of rows from the head, the middle and the tail of raw files, as training reads them."""

import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import polars as pl
import pyarrow as pa

from recsys.base.errors import UserError
from recsys.data.features.blocks import LINE, LIST
from recsys.data.raw.byte_ranges import UNREADABLE, WHOLE, FileRange, open_bytes
from recsys.data.raw.formats import FORMATS, column_names, read
from recsys.data.raw.nested import plain
from recsys.data.raw.raw_files import partitions
from recsys.data.raw.raw_format import TextFormat
from recsys.new.layouts import Layout

MAX_ROWS, MAX_CELLS = 200_000, 20_000_000  # of a sample
MAX_FILES = 64
PIECES, PIECE = 5, 2 << 20  # of text that is read, and their bytes
PACKED = 4  # bytes of text in a byte of a compressed file, about
DAMAGED = (
    *(*UNREADABLE, ValueError, KeyError, BadZipFile, zlib.error),
    *(pa.ArrowException, pl.exceptions.PolarsError),
)


@dataclass
class Sample:
    """Rows of raw files, as text or with the types of the file, and the estimated number of rows of all files."""

    frame: pl.DataFrame
    rows: int


@contextmanager
def readable(file: Path) -> Iterator[None]:
    """Turn the errors that libraries raise about a damaged file into a UserError."""
    try:
        yield
    except UserError:
        raise
    except DAMAGED as e:
        raise UserError(f"{file}: is damaged, or cannot be read as what its first bytes say; check it") from e


def head(file: Path, size: int) -> bytes:
    """Return the first bytes of a file, decompressed."""
    with readable(file), open_bytes(file) as raw:
        return raw.read(size)


def read_sample(files: Sequence[Path], layout: Layout) -> Sample:
    """Read rows of some of the files, evenly: the first, the last, and one of each of equal parts of those between.

    The place within a part is random, so that no period of the files, such as 24 files a day, can hide values.
    """
    some = list(files)
    if len(files) > MAX_FILES:
        bounds = np.linspace(1, len(files) - 1, MAX_FILES - 1).astype(int)
        places = np.random.default_rng(0).integers(bounds[:-1], bounds[1:])
        some = [files[0], *(files[i] for i in places), files[-1]]
    most = max(min(MAX_ROWS, MAX_CELLS // max(len(layout.columns), 1)) // len(some), 100)
    frames, rows = [], 0.0
    for f in some:
        with readable(f):
            part, rows_of_file = _rows_of(f, layout, most)
        folders = [(n, v) for n, v in partitions(f, None).items() if n not in part.columns]
        frames.append(part.with_columns(pl.lit(v, pl.String).alias(name) for name, v in folders))
        rows += rows_of_file
    frame = pl.concat(frames, how="diagonal_relaxed")
    return Sample(plain(frame, files[0]), round(rows * len(files) / len(some)))


def _rows_of(file: Path, layout: Layout, most: int) -> tuple[pl.DataFrame, float]:
    """Return about so many rows of a file, and the estimated number of all."""
    source, rows_format = layout.source(), FORMATS[layout.format]
    size, ranges = file.stat().st_size, [WHOLE]
    is_cut = isinstance(rows_format, TextFormat) and rows_format.can_be_cut(source, file)
    if is_cut and size > PIECES * PIECE:
        starts = [(size - PIECE) * i // (PIECES - 1) for i in range(PIECES)]
        ranges = [FileRange(start, start + PIECE) for start in starts]
    elif len(groups := rows_format.ranges(source, file)) > 1 and not is_cut:
        ranges = [groups[0], groups[len(groups) // 2], groups[-1]]
    frames = []
    for part in ranges:
        rows, blocks = 0, read(source, file, column_names(source, file), part)
        for block in takewhile(lambda _: rows < 4 * most // len(ranges), blocks):  # noqa: B023
            rows += block.frame.height
            frames.append(block.frame.drop(LINE))
    frame = pl.concat(frames) if frames else pl.DataFrame(schema=layout.columns)
    total = frame.height * (size / (PIECE * PIECES) if is_cut and len(ranges) > 1 else 1)
    if not is_cut and (known := rows_format.expected_rows(file, WHOLE)) is not None:
        total = known
    elif isinstance(rows_format, TextFormat) and not is_cut and frame.height > most:
        total = max(frame.height, frame.height * PACKED * size / max(frame.estimated_size(), 1))
    frame = frame.drop(LIST, strict=False)
    if layout.strip:
        frame = frame.with_columns(pl.all().str.strip_chars().replace("", None))
    return _thinned(frame, most), total


def _thinned(frame: pl.DataFrame, most: int) -> pl.DataFrame:
    """Return at most so many rows, in four runs from the head to the tail."""
    if frame.height <= most:
        return frame
    run = most // 4
    starts = [round(i * (frame.height - run) / 3) for i in range(4)]
    return pl.concat([frame.slice(s, run) for s in starts])
