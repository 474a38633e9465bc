"""Parts of a raw file to read (FileRange), columns to read (Projection), and functions that open a file."""

import bz2
import gzip
import io
import lzma
import zipfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path, PosixPath
from typing import BinaryIO, cast

import pyarrow as pa

from recsys.base.errors import UserError

READ_AHEAD = 1 << 20  # stores read 5 MB and more ahead, too much for reading a header
UNREADABLE = (pa.ArrowException, OSError, EOFError, zlib.error, lzma.LZMAError, zipfile.BadZipFile, UnicodeDecodeError)


@dataclass(frozen=True)
class Projection:
    """The columns to read.

    columns: the columns to read, None for all; formats that cannot skip columns read all of them
    numbers: the columns that are only used as numbers, so that they need not be read as text
    """

    columns: frozenset[str] | None = None
    numbers: frozenset[str] = frozenset()


ALL = Projection()


@dataclass(frozen=True)
class FileRange:
    """A part [start, stop) of a file: bytes of text (the lines that begin there), row groups of Parquet, or rows."""

    start: int = 0
    stop: int | None = None


WHOLE = FileRange()


def group_ranges(sizes: Sequence[int], rows: int) -> list[FileRange]:
    """Cut groups of rows, such as Parquet's row groups, into ranges of about this many rows. sizes: their rows

    >>> group_ranges([400, 400, 400], rows=800)
    [FileRange(start=0, stop=2), FileRange(start=2, stop=3)]
    """
    cuts, total = [0], 0
    for i, n in enumerate(sizes):
        if total and total + n > rows:
            cuts, total = [*cuts, i], 0
        total += n
    return [FileRange(a, b) for a, b in zip(cuts, [*cuts[1:], len(sizes)], strict=True)]


def open_bytes(file: Path) -> BinaryIO:
    """Open a local or remote file, decompressed if its name ends in .gz, .bz2, .xz, .zst or .zip."""
    raw = file.open("rb") if isinstance(file, PosixPath) else remote_bytes(file)
    decompress = _DECOMPRESS.get(file.suffix.lower())
    return cast(BinaryIO, raw if decompress is None else decompress(raw, file))


def is_compressed(file: Path) -> bool:
    """Return whether `open_bytes` decompresses the file, so that it can be read only from its beginning."""
    return file.suffix.lower() in _DECOMPRESS


def _unzip(raw: BinaryIO, file: Path) -> BinaryIO:
    """Open the only file in a zip archive."""
    archive = zipfile.ZipFile(raw)
    names = [i.filename for i in archive.infolist() if not i.is_dir() and not i.filename.startswith("__MACOSX/")]
    if len(names) != 1:
        shown = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
        raise UserError(
            f"{file}: holds {len(names)} files ({shown}), not one; unpack it and set data.root to its folder"
        )
    return cast(BinaryIO, archive.open(names[0]))


_DECOMPRESS: dict[str, Callable[[BinaryIO, Path], object]] = {
    ".gz": lambda raw, _: gzip.GzipFile(fileobj=raw),
    ".bz2": lambda raw, _: bz2.BZ2File(raw),
    ".xz": lambda raw, _: lzma.LZMAFile(raw),  # noqa: SIM115
    ".zst": lambda raw, _: io.BufferedReader(pa.CompressedInputStream(pa.PythonFile(raw, "r"), "zstd"), READ_AHEAD),
    ".zip": _unzip,
}


def remote_bytes(file: Path) -> io.BufferedReader:
    """Open an object in a remote store; its bytes are fetched as they are read."""
    return io.BufferedReader(file.open("rb", block_size=READ_AHEAD), READ_AHEAD)  # type: ignore[call-overload,no-any-return]
