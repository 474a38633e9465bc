"""The embedding tables of an artefact: files that a server memory-maps, and the modules that look them up in a graph.

The modules stand in for TorchRec's collections and jagged tensors, which standard operators cannot express. All tables
with the same number of columns are fused into one, one after another, with a last row of zeros that padding points to.
A lookup in any number of features is then one gather.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from recsys.base.console import bar
from recsys.base.errors import UserError
from recsys.interface.features import FeatureSpec
from recsys.models.common.embeddings import PooledEmbeddings, SequenceEmbeddings, combine
from recsys.models.common.lists import padded_length, padded_to
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


@dataclass
class PaddedList:
    """One feature of B rows, or rows of its table: `padded` (B, L) ids, -1 after the end of a list."""

    padded: Tensor
    rows: Tensor | None = None  # (B * L, dim)

    def values(self) -> Tensor:
        """Return the ids (B * L,), or the rows (B * L, dim)."""
        return self.padded.clamp(min=0).flatten() if self.rows is None else self.rows

    def lengths(self) -> Tensor:
        """Return the number of ids of each row, (B,)."""
        return (self.padded >= 0).sum(1)


class PaddedFeatures:
    """The sparse features of B rows, in place of a KeyedJaggedTensor: lists are padded to the same length.

    Args:
        ids: (B, S) ids of the single-valued features.
        singles: their names.
        lists: (B, L) ids of each multi-valued feature, -1 after the end of a list.
    """

    def __init__(self, ids: Tensor | None, singles: Sequence[str], lists: Mapping[str, Tensor]) -> None:
        self._ids, self._singles, self._lists = ids, list(singles), dict(lists)

    def keys(self) -> list[str]:
        return [*self._singles, *self._lists]

    def permute(self, order: Sequence[int]) -> PaddedFeatures:
        """Return the features at these places. They are looked up by name, so that their order does not matter."""
        return self

    def __getitem__(self, name: str) -> PaddedList:
        return PaddedList(self.padded(name))

    def padded(self, name: str) -> Tensor:
        """Return the ids of one feature: (B, L), L being 1 if it is single-valued."""
        if name in self._lists:
            return self._lists[name]
        assert self._ids is not None
        at = self._singles.index(name)
        return self._ids[:, at : at + 1]

    @contextmanager
    def one_length(self, names: Sequence[str]) -> Iterator[None]:
        """Pad the lists among these features to the longest, and work on lists of that length within the block."""
        lists = {n: self._lists[n] for n in names if n in self._lists}
        if not lists:
            yield
            return
        length, *others = [x.shape[1] for x in lists.values()]
        for n in others:  # a size may be symbolic, or, as TorchScript traces it, a tensor
            length = torch.maximum(length, n) if isinstance(n, Tensor) else torch.sym_max(length, n)  # type: ignore[arg-type]
        longer = {}
        for name, x in lists.items():  # (B, L) -> (B, length), -1 after the end
            own, place = x.shape[1], torch.arange(length, device=x.device)
            longer[name] = torch.where(place < own, x[:, place.clamp(max=own - 1)], -1)
        before, self._lists = self._lists, self._lists | longer
        with padded_to(length):
            yield
        self._lists = before

    def singles(self, names: Sequence[str]) -> Tensor:
        """Return the ids of single-valued features: (B, len(names))."""
        assert self._ids is not None
        if list(names) == self._singles:
            return self._ids
        return self._ids[:, [self._singles.index(n) for n in names]]

    def __getattr__(self, name: str) -> Any:
        raise UserError(
            f"model: it calls {name}() on its sparse features, for which an exported graph has no form; "
            "look ids up with PooledEmbeddings or SequenceEmbeddings"
        )


@dataclass
class Tables:
    """The fused tables of a model, and their arrays while a graph is traced. precision: the type of looked-up rows"""

    by_dim: Mapping[int, FusedTable]
    precision: torch.dtype = torch.float32
    parts: dict[str, Tensor] = field(default_factory=dict)

    def look_up(self, dim: int, ids: Tensor, starts: Tensor | int) -> Tensor:
        """Return the rows of ids (...) -> (..., dim); an id of -1 gives zeros. starts: first row of each id's table."""
        table = self.by_dim[dim]
        at = ids.long() + starts
        return table.decode(self.parts, torch.where(ids < 0, table.rows - 1, at)).to(self.precision)


class PooledLookup(nn.Module):
    """PooledEmbeddings as a gather in a fused table and a sum."""

    def __init__(self, original: PooledEmbeddings, features: FeatureSpec, tables: Tables) -> None:
        super().__init__()
        self._tables, self.own_dims, self._mixed = tables, original.own_dims, original.mixed
        by_name = {f.name: f for f in features.sparse}
        self._dims = {n: original.dims[table] for n, table in original.table_of.items()}
        self._starts = {n: tables.by_dim[self._dims[n]].starts[table] for n, table in original.table_of.items()}
        self.names, self._means = original.names, set(original.means)
        self._lists = [n for n in self.names if n not in by_name or by_name[n].multi_valued]
        single = [n for n in self.names if n not in self._lists]
        self._single = {d: [n for n in single if self._dims[n] == d] for d in sorted({self._dims[n] for n in single})}
        for dim, names in self._single.items():
            self.register_buffer(f"starts_{dim}", torch.tensor([self._starts[n] for n in names]), persistent=False)

    def forward(self, sparse: Any) -> Tensor:
        """Return the vectors of F features as `PooledEmbeddings.forward` does: (B, F, dim), or (B, width) if `flat`."""
        if not isinstance(sparse, PaddedFeatures):  # of one key, which the model itself has made of padded lists
            length = padded_length()
            assert length is not None and len(self.names) == 1
            ids = sparse.values().view(-1, length)
            inside = torch.arange(length, device=ids.device) < sparse.lengths()[:, None]
            return self._pooled(self.names[0], torch.where(inside, ids, -1))[:, None]
        vectors: dict[str, Tensor] = {}
        for dim, names in self._single.items():
            rows = self._tables.look_up(dim, sparse.singles(names), self.get_buffer(f"starts_{dim}"))
            if names == self.names and not self._mixed:
                return rows
            vectors |= {n: rows[:, i] for i, n in enumerate(names)}
        vectors |= {n: self._pooled(n, sparse.padded(n)) for n in self._lists}
        vectors = {n: vectors[n] for n in self.names}
        if self._mixed:
            return combine(vectors, self.own_dims)
        return torch.stack(list(vectors.values()), dim=1)

    def _pooled(self, name: str, padded: Tensor) -> Tensor:
        pooled = self._tables.look_up(self._dims[name], padded, self._starts[name]).sum(1)
        if name not in self._means:
            return pooled
        return pooled / (padded >= 0).sum(1, keepdim=True).clamp(min=1).to(pooled.dtype)


class RowLookup(nn.Module):
    """SequenceEmbeddings as a gather in a fused table."""

    def __init__(self, original: SequenceEmbeddings, tables: Tables) -> None:
        super().__init__()
        self.dim, self.names, self._tables = original.dim, original.names, tables
        table_of = {n: c.name for c in original.rows.embedding_configs() for n in c.feature_names}
        self._starts = {n: tables.by_dim[self.dim].starts[table_of[n]] for n in self.names}

    def forward(self, sparse: PaddedFeatures) -> dict[str, PaddedList]:
        """Return, by feature, the rows (B * L, dim) of its ids; zeros after the end of a list."""
        found = {}
        for name in self.names:
            padded = sparse.padded(name)
            rows = self._tables.look_up(self.dim, padded, self._starts[name])
            found[name] = PaddedList(padded, rows.flatten(0, 1))
        return found


class ItemVectors(nn.Module):
    """The vectors of all items, computed once: in place of a model's `items`."""

    def __init__(self, items: Any, tables: Tables, part: str) -> None:
        super().__init__()
        self.rows, self._tables, self._part = items.rows, tables, part
        self.name = getattr(items, "name", None)
        self.candidates = None

    def forward(self, ids: Tensor) -> Tensor:
        """Return item vectors: ids (M,) -> (M, d)."""
        return nn.functional.embedding(ids, self._tables.parts[self._part])


class OnnxGRU(nn.Module):
    """nn.GRU as ONNX's GRU operators, one a layer: PyTorch would trace it as one step for each place of the example.

    ONNX orders the gates update, reset, new; PyTorch reset, update, new.
    """

    def __init__(self, original: nn.GRU) -> None:
        super().__init__()
        self.hidden, self._layers = original.hidden_size, original.num_layers
        for layer in range(original.num_layers):
            for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
                reset, update, new = getattr(original, f"{kind}_l{layer}").detach().chunk(3)
                self.register_buffer(f"{kind}_{layer}", torch.cat([update, reset, new])[None])

    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        """Return the states of the last layer: (L, B, in) -> (L, B, hidden)."""
        for layer in range(self._layers):
            weights = [getattr(self, f"{kind}_{layer}") for kind in ("weight_ih", "weight_hh")]
            bias = torch.cat([getattr(self, f"bias_ih_{layer}"), getattr(self, f"bias_hh_{layer}")], dim=1)
            states: Tensor = torch.onnx.ops.symbolic(
                "GRU",
                (x, *weights, bias),
                {"hidden_size": self.hidden, "linear_before_reset": 1},
                dtype=x.dtype,
                shape=(x.shape[0], 1, x.shape[1], self.hidden),
            )
            x = states[:, 0]
        return x, None


def replace_lookups(model: nn.Module, features: FeatureSpec, tables: Tables) -> None:
    """Replace every module of a model that has a stand-in."""
    for name, child in list(model.named_children()):
        if isinstance(child, PooledEmbeddings):
            setattr(model, name, PooledLookup(child, features, tables))
        elif isinstance(child, nn.GRU):
            setattr(model, name, OnnxGRU(child))
        elif isinstance(child, SequenceEmbeddings):
            setattr(model, name, RowLookup(child, tables))
        else:
            replace_lookups(child, features, tables)
