"""Columns of one raw file that lie in several files, in rows of equal bytes: NVIDIA's split binary, arrays of NumPy.

A raw file is named by one of its files (the label's); pieces of it are rows, which are looked up without reading those
before them, so that memory and what is read again do not depend on how many rows there are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PosixPath

import numpy as np
import polars as pl

from recsys.config.schema_data import SourceConfig
from recsys.data.raw.blocks import LINE, Block, one_line
from recsys.data.raw.ranges import FileRange, Projection
from recsys.errors import UserError

FORMATS = ("split_binary", "npy")
BLOCK_ROWS = 1 << 17


@dataclass(frozen=True)
class Stretch:
    """Rows that follow each other in one file, from byte `offset` on."""

    file: Path
    offset: int
    rows: int


@dataclass(frozen=True)
class Part:
    """Some of the columns: rows of `dtype`, one field a column, in the stretches one after the other."""

    columns: tuple[str, ...]
    dtype: np.dtype
    stretches: tuple[Stretch, ...]

    @property
    def rows(self) -> int:
        return sum(s.rows for s in self.stretches)

    def read(self, start: int, stop: int) -> np.ndarray:
        """Rows [start, stop), over the ends of files."""
        found, first = [], 0
        for s in self.stretches:
            a, b = max(start - first, 0), min(stop - first, s.rows)
            if a < b:
                at = s.offset + a * self.dtype.itemsize
                found.append(np.fromfile(s.file, self.dtype, count=b - a, offset=at))
            first += s.rows
        return found[0] if len(found) == 1 else np.concatenate(found)


def parts(source: SourceConfig, file: Path) -> list[Part]:
    """All parts of a raw file. Raises UserError where they are missing or do not fit together."""
    found = _arrays(source, file) if source.format == "npy" else _binaries(source, file)
    first = found[0]
    for part in found[1:]:
        if part.rows != first.rows:
            name, of = part.stretches[0].file, first.stretches[0].file
            raise UserError(f"{name}: {part.rows} rows, but {of} has {first.rows}; they must be of the same rows")
    return found


def files(source: SourceConfig, file: Path) -> list[Path]:
    """The files that a raw file is made of."""
    return [s.file for part in parts(source, file) for s in part.stretches]


def no_rows(source: SourceConfig, file: Path) -> pl.DataFrame:
    """Its columns and their types."""
    return _frame(parts(source, file), 0, 0)


def rows(source: SourceConfig, file: Path) -> int:
    return parts(source, file)[0].rows


def read(source: SourceConfig, file: Path, _names: list[str], piece: FileRange, wanted: Projection) -> Iterator[Block]:
    """The rows of a piece, which is rows [start, stop); files without a column that is wanted are not read."""
    found = parts(source, file)
    stop = found[0].rows if piece.stop is None else piece.stop
    if wanted.columns is not None:
        found = [p for p in found if wanted.columns & set(p.columns)] or found[:1]
    for a in range(piece.start, stop, BLOCK_ROWS):
        b = min(a + BLOCK_ROWS, stop)
        try:
            frame = _frame(found, a, b)
        except OSError as e:
            raise UserError(f"{file}: rows from {a + 1} on cannot be read ({one_line(e)})") from e
        lines = pl.int_range(a - piece.start + 1, b - piece.start + 1, dtype=pl.Int64).alias(LINE)
        yield Block(file, frame.with_columns(lines), lines=b - piece.start)


def _frame(found: list[Part], start: int, stop: int) -> pl.DataFrame:
    columns: list[pl.Series] = []
    for part in found:
        read = part.read(start, stop) if stop > start else np.empty(0, part.dtype)
        columns += [_series(c, read[f"f{i}"]) for i, c in enumerate(part.columns)]
    return pl.DataFrame(columns)


def _series(name: str, values: np.ndarray) -> pl.Series:
    if values.dtype == np.float16:  # every one of which is a float32
        values = values.astype(np.float32)
    return pl.Series(name, np.ascontiguousarray(values, values.dtype.newbyteorder("=")))


def row_type(dtypes: list[np.dtype]) -> np.dtype:
    """Of a row. A byte of Boolean is read as the number that it is, so that 2 is no label."""
    plain = [np.dtype(np.uint8) if d == np.bool_ else d for d in dtypes]
    return np.dtype([(f"f{i}", d) for i, d in enumerate(plain)])


def _binaries(source: SourceConfig, file: Path) -> list[Part]:
    found = []
    for c in source.parts[str(file)]:
        dtype = row_type([np.dtype(d).newbyteorder("<") for d in c.dtypes])
        stretches = []
        for name in c.files:
            size = _size(Path(name), ", ".join(c.columns))
            if size % dtype.itemsize:
                told = ", ".join(dict.fromkeys(c.dtypes))
                raise UserError(
                    f"{name}: {size} bytes are no whole number of rows, which take {dtype.itemsize} "
                    f"({len(c.columns)} of {told}); see its dtypes in the feature specification"
                )
            stretches.append(Stretch(Path(name), 0, size // dtype.itemsize))
        found.append(Part(tuple(c.columns), dtype, tuple(stretches)))
    return found


def _size(file: Path, holds: str) -> int:
    if not file.is_file():
        raise UserError(f"{file}: no such file; it should hold {holds}")
    if not isinstance(file, PosixPath):
        raise UserError(f"{file}: is remote; rows of bytes are read from a local disk, so copy the folder to one")
    return file.stat().st_size


def _arrays(source: SourceConfig, file: Path) -> list[Part]:
    templates = [a.file for a in source.arrays.values()]
    before, _, after = templates[0].partition("{}")
    if not (file.name.startswith(before) and file.name.endswith(after) and len(file.name) >= len(before + after)):
        raise UserError(f"{file}: is not named as data.source.arrays has it, {templates[0]}")
    shared = file.name[len(before) : len(file.name) - len(after)]
    arrays = source.arrays.values()
    return [_array(file.parent / a.file.replace("{}", shared), list(a.columns)) for a in arrays]


def _array(file: Path, columns: list[str]) -> Part:
    _size(file, ", ".join(columns[:3]) + (", ..." if len(columns) > 3 else ""))
    try:
        array = np.load(file, mmap_mode="r", allow_pickle=False)
        assert isinstance(array, np.memmap)
    except (ValueError, OSError, EOFError, AssertionError) as e:
        raise UserError(f"{file}: not a NumPy array of numbers, or cut short ({one_line(e)})") from e
    wide = array.shape[1] if array.ndim == 2 else 1
    if array.ndim not in (1, 2) or wide != len(columns) or array.dtype.kind not in "biuf":
        told = f"{'x'.join(map(str, array.shape))} of {array.dtype}"
        raise UserError(f"{file}: holds {told}, not rows of {len(columns)} numbers ({columns[0]}, ...)")
    if not array.flags.c_contiguous:
        raise UserError(f"{file}: lies column by column (Fortran order); save np.ascontiguousarray(it) instead")
    return Part(tuple(columns), row_type([array.dtype] * wide), (Stretch(file, array.offset, array.shape[0]),))
