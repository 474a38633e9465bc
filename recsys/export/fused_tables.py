"""Write a checkpoint's embedding tables to files that a server memory-maps, one block of rows at a time.

All tables with the same number of columns are fused into one, one after another, with a last row of zeros that padding
points to. A lookup in any number of features is then one gather.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from recsys.base.console import bar
from recsys.base.errors import UserError
from recsys.schema.command_schemas import TableType
from recsys.sharding.stored_checkpoint import StoredCheckpoint
from recsys.sharding.tables import TableInfo, rows_of_a_block

FOLDER = "tables"


@dataclass(frozen=True)
class TablePart:
    """One array of a fused table: `columns` numbers in each row, in the file tables/NAME.bin."""

    name: str
    dtype: torch.dtype
    columns: int

    @property
    def file(self) -> str:
        return f"{FOLDER}/{self.name}.bin"


@dataclass(frozen=True)
class FusedTable:
    """All tables of `dim` columns as one.

    starts: the first row of each table, by its name
    rows: the number of rows, including the last row of zeros
    type: how rows are stored; int8 and int4 have a scale and a bias in each row, as FBGEMM's
    """

    dim: int
    starts: Mapping[str, int]
    rows: int
    type: TableType

    @property
    def name(self) -> str:
        return f"dim{self.dim}"

    @property
    def parts(self) -> tuple[TablePart, ...]:
        """The arrays that hold the rows."""
        if self.type in ("fp32", "fp16"):
            return (TablePart(self.name, torch.float32 if self.type == "fp32" else torch.float16, self.dim),)
        if self.type == "int8":
            return TablePart(self.name, torch.uint8, self.dim), TablePart(f"{self.name}_scale_bias", torch.float32, 2)
        return TablePart(self.name, torch.uint8, self.dim // 2), TablePart(f"{self.name}_scale_bias", torch.float16, 2)

    def encode(self, rows: Tensor) -> tuple[Tensor, ...]:
        """Return the arrays of `parts` for float32 rows: (n, dim) -> (n, columns) each."""
        if self.type == "fp32":
            return (rows,)
        if self.type == "fp16":
            return (rows.half(),)
        ops = torch.ops.fbgemm
        if self.type == "int8":  # FBGEMM appends scale and bias to the values of each row
            fused = ops.FloatToFused8BitRowwiseQuantized(rows)
            return fused[:, : self.dim], fused[:, self.dim :].contiguous().view(torch.float32)
        fused = ops.FloatToFusedNBitRowwiseQuantizedSBHalf(rows, 4)
        return fused[:, : self.dim // 2], fused[:, self.dim // 2 :].contiguous().view(torch.float16)

    def decode(self, parts: Mapping[str, Tensor], at: Tensor) -> Tensor:
        """Look up float32 rows: the arrays by name, places (...) -> (..., dim)."""
        values, *rest = (nn.functional.embedding(at, parts[p.name]) for p in self.parts)
        if not rest:
            return values.float()
        scale, bias = rest[0].float().split(1, dim=-1)
        values = values.float()
        if self.type == "int4":  # two numbers a byte, the first in the lower half; ONNX shifts no signed integers
            high = (values / 16).floor()
            values = torch.stack([values - 16 * high, high], dim=-1).flatten(-2)
        return values * scale + bias


def fuse(infos: Iterable[TableInfo], type_: TableType) -> dict[int, FusedTable]:
    """Return the fused table of each number of columns."""
    starts: dict[int, dict[str, int]] = {}
    ends: dict[int, int] = {}
    for info in infos:
        if type_ == "int4" and info.dim % 2:
            raise UserError(f"tables=int4: table {info.name} has {info.dim} columns; int4 needs an even number")
        starts.setdefault(info.dim, {})[info.name] = ends.get(info.dim, 0)
        ends[info.dim] = ends.get(info.dim, 0) + info.rows
    return {dim: FusedTable(dim, starts[dim], ends[dim] + 1, type_) for dim in starts}


def layout_of(fused: Iterable[FusedTable], infos: Mapping[str, TableInfo]) -> dict[str, Any]:
    """Return where rows are: file -> bytes of a row, and the first row and the number of rows of each table."""
    return {
        part.file: {
            "row_bytes": part.columns * part.dtype.itemsize,
            "starts": {name: [start, infos[name].rows] for name, start in table.starts.items()},
        }
        for table in fused
        for part in table.parts
    }


def write_tables(
    stored: StoredCheckpoint, infos: Mapping[str, TableInfo], fused: Iterable[FusedTable], folder: Path
) -> None:
    """Write the files of all fused tables into a folder. The memory that this takes does not depend on their size."""
    (folder / FOLDER).mkdir(parents=True, exist_ok=True)
    with bar("writing tables", sum(i.rows for i in infos.values()), "rows") as shown:
        for table in fused:
            own = [infos[name] for name in table.starts]
            with ExitStack() as stack:
                files = [stack.enter_context((folder / p.file).open("wb")) for p in table.parts]
                for block in _blocks(stored, own, shown.advance):
                    for file, array in zip(files, table.encode(block), strict=True):
                        file.write(np.ascontiguousarray(array.numpy()).data)
                for file, part in zip(files, table.parts, strict=True):
                    file.write(bytes(part.columns * part.dtype.itemsize))


def _blocks(stored: StoredCheckpoint, infos: Iterable[TableInfo], advance: Callable[[int], Any]) -> Iterator[Tensor]:
    """Yield blocks of float32 rows (n, dim) of the tables, one table after another."""
    for info in infos:
        key = f"model.{info.parameter}"
        step = rows_of_a_block(stored.size(key)[1])
        for first in range(0, info.rows, step):
            n = min(step, info.rows - first)
            yield stored.read(key, first, n)[:, : info.dim].float().contiguous()
            advance(n)
