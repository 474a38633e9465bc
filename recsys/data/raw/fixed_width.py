"""Read rows of fixed width whose columns are in several files: NVIDIA's split binary and NumPy arrays.

Together, these files are one raw file, which is named by one of them (the label's). A file range counts rows. Any row
can be read without those before it, so memory does not depend on the number of rows, and nothing is read twice.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PosixPath

import numpy as np
import polars as pl

from recsys.base.errors import UserError
from recsys.data.features.blocks import LINE, Block, one_line
from recsys.data.raw.byte_ranges import FileRange, Projection
from recsys.data.raw.raw_format import RawFormat
from recsys.schema.source_schema import SourceConfig

BLOCK_ROWS = 1 << 17


@dataclass(frozen=True)
class FixedPart:
    """Some of the columns, in arrays of one file each: (rows,) with a field per column, or (rows, columns)."""

    columns: tuple[str, ...]
    arrays: dict[Path, np.ndarray]

    @property
    def rows(self) -> int:
        return sum(map(len, self.arrays.values()))

    def read(self, start: int, stop: int) -> list[pl.Series]:
        """Read the columns of rows [start, stop), across files."""
        pieces, first = [], 0
        for array in self.arrays.values():
            pieces.append(np.array(array[max(start - first, 0) : max(stop - first, 0)]))
            first += len(array)
        rows, columns = np.concatenate(pieces), []
        for i, name in enumerate(self.columns):
            column = rows[rows.dtype.names[i]] if rows.dtype.names else rows[:, i]
            if column.dtype == np.float16:  # polars has no float16; float32 holds every value exactly
                column = column.astype(np.float32)
            if column.dtype == np.bool_:  # so that a byte of 2 is not taken for a valid label
                column = column.view(np.uint8)
            columns.append(pl.Series(name, np.ascontiguousarray(column, column.dtype.newbyteorder("="))))
        return columns


class FixedWidth(RawFormat):
    """Rows of fixed width, of which any can be read without those before it. A file range counts rows."""

    @abstractmethod
    def find_parts(self, source: SourceConfig, file: Path) -> list[FixedPart]:
        """Return all parts of a raw file. Raises UserError if one is missing."""

    def _parts(self, source: SourceConfig, file: Path) -> list[FixedPart]:
        """Return all parts of a raw file. Raises UserError if two of them differ in their number of rows."""
        parts = self.find_parts(source, file)
        first = parts[0]
        for part in parts[1:]:
            if part.rows != first.rows:
                name, other = next(iter(part.arrays)), next(iter(first.arrays))
                raise UserError(f"{name}: {part.rows} rows, but {other} has {first.rows}; both must hold the same rows")
        return parts

    def files(self, source: SourceConfig, file: Path) -> list[Path]:
        return [f for part in self._parts(source, file) for f in part.arrays]

    def empty_frame(self, source: SourceConfig, file: Path) -> pl.DataFrame:
        return pl.DataFrame([c for part in self._parts(source, file) for c in part.read(0, 0)])

    def ranges(self, source: SourceConfig, file: Path) -> list[FileRange]:
        n = self._parts(source, file)[0].rows
        return [FileRange(a, min(a + self.range_rows, n)) for a in range(0, max(n, 1), self.range_rows)]

    def expected_rows(self, file: Path, file_range: FileRange) -> float | None:
        return (file_range.stop or 0) - file_range.start

    def read(
        self, source: SourceConfig, file: Path, names: list[str], file_range: FileRange, projection: Projection
    ) -> Iterator[Block]:
        parts = self._parts(source, file)
        stop = parts[0].rows if file_range.stop is None else file_range.stop
        if projection.columns is not None:
            parts = [p for p in parts if projection.columns & set(p.columns)] or parts[:1]
        for a in range(file_range.start, stop, BLOCK_ROWS):
            b = min(a + BLOCK_ROWS, stop)
            frame = pl.DataFrame([c for part in parts for c in part.read(a, b)])
            lines = pl.int_range(a - file_range.start + 1, b - file_range.start + 1, dtype=pl.Int64).alias(LINE)
            yield Block(file, frame.with_columns(lines), lines=b - file_range.start)


class SplitBinary(FixedWidth):
    """NVIDIA's binary files that each hold some columns, as `data.spec` describes them."""

    name = "split_binary"
    needs_spec = True

    def find_parts(self, source: SourceConfig, file: Path) -> list[FixedPart]:
        parts = []
        for c in source.parts[str(file)]:
            dtype, arrays = np.dtype([("", np.dtype(d).newbyteorder("<")) for d in c.dtypes]), {}
            for name in c.files:
                size = _size(Path(name), ", ".join(c.columns))
                if size % dtype.itemsize:
                    types = ", ".join(dict.fromkeys(c.dtypes))
                    raise UserError(
                        f"{name}: {size} bytes are not a whole number of rows of {dtype.itemsize} bytes "
                        f"({len(c.columns)} x {types}); check its dtypes in the feature specification"
                    )
                arrays[Path(name)] = np.memmap(name, dtype, mode="r") if size else np.empty(0, dtype)
            parts.append(FixedPart(tuple(c.columns), arrays))
        return parts


def _size(file: Path, contents: str) -> int:
    if not file.is_file():
        raise UserError(f"{file}: no such file; it should hold {contents}")
    if not isinstance(file, PosixPath):
        raise UserError(f"{file}: is remote; binary formats need a local disk, so copy the folder to one")
    return file.stat().st_size


class Npy(FixedWidth):
    """NumPy arrays, each in a file of its own."""

    name = "npy"

    def find_parts(self, source: SourceConfig, file: Path) -> list[FixedPart]:
        templates = [a.file for a in source.arrays.values()]
        before, _, after = templates[0].partition("{}")
        if not (file.name.startswith(before) and file.name.endswith(after) and len(file.name) >= len(before + after)):
            raise UserError(f"{file}: its name does not match the pattern of data.source.arrays, {templates[0]}")
        shared = file.name[len(before) : len(file.name) - len(after)]
        parts = []
        for a in source.arrays.values():
            own, columns = file.parent / a.file.replace("{}", shared), list(a.columns)
            _size(own, ", ".join(columns[:3]) + (", ..." if len(columns) > 3 else ""))
            try:
                array = np.load(own, mmap_mode="r", allow_pickle=False)
            except (ValueError, OSError, EOFError) as e:
                raise UserError(f"{own}: not a NumPy array of numbers, or truncated ({one_line(e)})") from e
            width = array.shape[1] if array.ndim == 2 else 1
            if array.ndim not in (1, 2) or width != len(columns) or array.dtype.kind not in "biuf":
                contents = f"{'x'.join(map(str, array.shape))} of {array.dtype}"
                raise UserError(f"{own}: holds {contents}, not rows of {len(columns)} numbers ({columns[0]}, ...)")
            parts.append(FixedPart(tuple(columns), {own: array.reshape(len(array), width)}))
        return parts
