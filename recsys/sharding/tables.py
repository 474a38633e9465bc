"""The tables of a module (names, sizes, widths in memory), and their shards on all ranks."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._shard.metadata import ShardMetadata
from torch.distributed._shard.sharded_tensor import Shard, ShardedTensor, ShardedTensorMetadata
from torch.distributed._shard.sharded_tensor.metadata import TensorProperties
from torchrec.distributed.comm import get_local_size
from torchrec.modules.embedding_configs import DataType, data_type_to_dtype
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection

from recsys.base.errors import UserError
from recsys.models.common.embeddings import PooledEmbeddings, SequenceEmbeddings
from recsys.sharding.optimizers import OPTIMIZERS

# sharding.padding -> bytes; YAML reads a bare `off` as False
PADDINGS = {"off": 4, "False": 4, "16": 16, "64": 64, "128": 128}
DTYPES = {"fp32": DataType.FP32, "fp16": DataType.FP16}  # sharding.table_dtype, of which FBGEMM's kernels train tables
BLOCK_BYTES = 32 << 20  # size of a block of rows, which is written and read as one piece


@dataclass(frozen=True)
class TableInfo:
    """One table.

    vocabulary: its name in the data, which several tables of a model may share
    dim: number of columns
    width: number of columns in memory; those after `dim` are zero
    dtype: type of the numbers in memory
    rounded: whether the model loses nothing if lookups return what autocast multiplies, see PooledEmbeddings
    """

    name: str
    vocabulary: str
    parameter: str  # name of its weight in a state dict
    rows: int
    dim: int
    width: int
    pooled: bool
    init: Callable[[Tensor], Any]
    dtype: torch.dtype = torch.float32
    rounded: bool = False

    @property
    def bytes(self) -> int:
        """Bytes of the weights, with padding."""
        return self.rows * self.width * self.dtype.itemsize


def tables(module: nn.Module) -> dict[str, TableInfo]:
    """Return every table of the module's embedding collections, by name. The module must not be sharded yet."""
    owners = {t: m for m in module.modules() if isinstance(m, PooledEmbeddings | SequenceEmbeddings) for t in m.tables}
    infos: dict[str, TableInfo] = {}
    for path, m in module.named_modules():
        if isinstance(m, EmbeddingBagCollection):
            where, configs = f"{path}.embedding_bags", m.embedding_bag_configs()
        elif isinstance(m, EmbeddingCollection):
            where, configs = f"{path}.embeddings", m.embedding_configs()
        else:
            continue
        for c in configs:
            assert c.init_fn is not None
            if c.name in infos:
                raise UserError(
                    f"model: two tables are named {c.name}; pass another `prefix` to one of the embedding collections"
                )
            owner = owners.get(c.name)
            infos[c.name] = TableInfo(
                name=c.name,
                vocabulary=getattr(owner, "vocabularies", "") + c.name.removeprefix(owner.prefix if owner else ""),
                parameter=f"{where}.{c.name}.weight".lstrip("."),
                rows=c.num_embeddings,
                dim=owner.dims[c.name] if owner else c.embedding_dim,
                width=c.embedding_dim,
                pooled=where.endswith("embedding_bags"),
                init=c.init_fn,
                dtype=data_type_to_dtype(c.data_type),
                rounded=getattr(owner, "rounded", False),
            )
    return infos


def lay_out_tables(module: nn.Module, padding: str, table_dtype: str = "fp32") -> None:
    """Choose the type of the numbers in tables, and widen tables so that a row is a multiple of `padding` bytes, the
    size of FBGEMM's vector loads.

    The module's weights must be on the meta device, since such tables are created again.
    """
    data_type = DTYPES[table_dtype]
    columns = PADDINGS[padding] // data_type_to_dtype(data_type).itemsize
    for m in module.modules():
        if not isinstance(m, PooledEmbeddings | SequenceEmbeddings):
            continue
        if data_type != DataType.FP32 or any(d % columns for d in m.dims.values()):
            m.lay_out(columns, data_type)


def check_table_dtype(table_dtype: str, is_fused: bool = True) -> None:
    """Raise UserError for a type of which FBGEMM trains no tables. is_fused: whether its kernels update the tables"""
    key = f"sharding.table_dtype={table_dtype}"
    if table_dtype != "fp32" and not is_fused:
        names = ", ".join(name for name, c in OPTIMIZERS.items() if c.cpu_kernel)
        why = f"only FBGEMM's fused kernels train such tables: on CPUs, the kernels of {names}"
        fix = "set optim.sparse.name=rowwise_adagrad, every_row=false and weight_decay=0, and trainer.accumulate=1"
        raise UserError(f"{key}: {why}; {fix}")


# private: torch.distributed.checkpoint reads and writes TorchRec's tables as ShardedTensors, whose module is private


Read = Callable[[int, int], Tensor]  # (first, rows) -> those rows of the stored tensor, in full width


@dataclass(frozen=True)
class Region:
    """Rectangle of a table, and the rank that has it. It may be empty."""

    row: int
    column: int
    rows: int
    columns: int
    rank: int


@dataclass(frozen=True)
class TableShards:
    """Shards of a table's weight, or of its optimizer's state.

    size: size of the whole tensor
    regions: regions of all ranks
    local_regions: regions of this rank
    local_tensors: tensors of this rank, one for each of `local_regions`
    edges: edges of the table's column blocks, from 0 to its width
    replicated: whether every rank has the whole tensor; `regions` then divides the writing among the ranks
    dtype: type of the numbers
    """

    size: tuple[int, int]
    regions: tuple[Region, ...]
    local_regions: tuple[Region, ...]
    local_tensors: tuple[Tensor, ...]
    edges: tuple[int, ...]
    device: str = "cpu"
    replicated: bool = False
    dtype: torch.dtype = torch.float32

    def like(self, states: Sequence[Tensor], rowwise: bool) -> "TableShards":
        """Return the optimizer state of the same rows.

        Args:
            states: tensors of this rank, with a number per element, or (rowwise) 1-D with one per row and column block.
        """
        if not rowwise:
            return replace(self, local_tensors=tuple(states), dtype=torch.float32)
        block = {column: i for i, column in enumerate(self.edges)}
        narrow = lambda p: replace(p, column=block[p.column], columns=1)  # noqa: E731
        return replace(
            self,
            size=(self.size[0], len(self.edges) - 1),
            regions=tuple(map(narrow, self.regions)),
            local_regions=tuple(map(narrow, self.local_regions)),
            local_tensors=tuple(s.reshape(-1, 1) for s in states),
            dtype=torch.float32,
        )

    def to_load(self) -> Tensor | ShardedTensor:
        """Return the tensor for torch.distributed.checkpoint to read into."""
        if self.replicated:
            return self.local_tensors[0]
        return self._sharded(self.regions, list(zip(self.local_regions, self.local_tensors, strict=True)))

    def to_save(self) -> ShardedTensor:
        """Return the tensor in blocks of rows, so that a reader of a part need not read the whole; replicas share
        the work.
        """
        blocks_to_save = [
            (b, t[b.row - p.row : b.row - p.row + b.rows])
            for p, t in zip(self.local_regions, self.local_tensors, strict=True)
            for b in blocks(p)
        ]
        if not self.replicated:
            return self._sharded([b for p in self.regions for b in blocks(p)], blocks_to_save)
        world = dist.get_world_size()
        blocks_to_save = [(replace(b, rank=i % world), t) for i, (b, t) in enumerate(blocks_to_save)]
        return self._sharded(
            [b for b, _ in blocks_to_save], [(b, t) for b, t in blocks_to_save if b.rank == dist.get_rank()]
        )

    def fill(self, read: Read, dim: int) -> None:
        """Copy the first `dim` columns from a tensor with other padding; leave the other columns as they are."""
        for p, tensor in zip(self.local_regions, self.local_tensors, strict=True):
            stop = min(p.column + p.columns, dim)
            for at in range(0, p.rows if stop > p.column else 0, rows_of_a_block(self.edges[-1])):
                n = min(rows_of_a_block(self.edges[-1]), p.rows - at)
                tensor[at : at + n, : stop - p.column] = read(p.row + at, n)[:, p.column : stop].to(tensor.device)

    def convert(self, read: Read, dim: int, old: Sequence[int]) -> None:
        """Compute row-wise state from that of other column blocks.

        The state of a block is the mean of g^2 over its columns; those beyond `dim` are zero. The state of a new block
        is the mean of the old ones' g^2, each spread evenly over its columns.

        Args:
            old: edges of the stored column blocks.
        """
        for p, tensor in zip(self.local_regions, self.local_tensors, strict=True):
            a, b = self.edges[p.column : p.column + 2]
            shares = [
                max(min(b, y, dim) - max(a, x), 0) / max(min(y, dim) - x, 1) * (y - x) / (b - a)
                for x, y in pairwise(old)
            ]
            for at in range(0, p.rows, rows_of_a_block(len(shares))):
                n = min(rows_of_a_block(len(shares)), p.rows - at)
                tensor[at : at + n, 0] = (read(p.row + at, n) @ torch.tensor(shares)).to(tensor.device)

    def _sharded(self, regions: Sequence[Region], local: Sequence[tuple[Region, Tensor]]) -> ShardedTensor:
        def meta(p: Region) -> ShardMetadata:
            index = f":{p.rank % get_local_size()}" if self.device == "cuda" else ""
            return ShardMetadata([p.row, p.column], [p.rows, p.columns], f"rank:{p.rank}/{self.device}{index}")

        # private: the only constructor from local shards that needs no collective
        return ShardedTensor._init_from_local_shards_and_global_metadata(
            [Shard(t, meta(p)) for p, t in local if p.rows and p.columns],
            ShardedTensorMetadata(
                shards_metadata=[meta(p) for p in regions if p.rows and p.columns],
                size=torch.Size(self.size),
                tensor_properties=TensorProperties(dtype=self.dtype),
            ),
            process_group=dist.group.WORLD,
        )


def rows_of_a_block(columns: int) -> int:
    """Return the number of rows of float32 numbers in a block of BLOCK_BYTES."""
    return max(BLOCK_BYTES // (4 * max(columns, 1)), 1)


def blocks(region: Region) -> list[Region]:
    """Split a region into blocks of rows, of BLOCK_BYTES at most."""
    step = rows_of_a_block(region.columns)
    return [
        replace(region, row=region.row + at, rows=min(step, region.rows - at)) for at in range(0, region.rows, step)
    ]


def table_shards_of(weight: Tensor | ShardedTensor) -> TableShards:
    """Return the shards of a table's weight, given as in a sharded module's state dict."""
    if not isinstance(weight, ShardedTensor):
        rows, width = weight.shape
        whole = Region(0, 0, rows, width, dist.get_rank())
        local, device = (weight.detach(),), weight.device.type
        return TableShards((rows, width), (whole,), (whole,), local, (0, width), device, True, weight.dtype)

    def region(m: ShardMetadata) -> Region:
        rank = m.placement.rank() if m.placement is not None else None  # type: ignore[union-attr]
        assert rank is not None
        (row, column), (rows, columns) = m.shard_offsets, m.shard_sizes
        return Region(row, column, rows, columns, rank)

    shards = weight.local_shards()
    regions = tuple(map(region, weight.metadata().shards_metadata))
    rows, width = weight.size()
    return TableShards(
        (rows, width),
        regions,
        tuple(region(s.metadata) for s in shards),
        tuple(s.tensor.detach() for s in shards),
        (*sorted({p.column for p in regions}), width),
        weight.metadata().shards_metadata[0].placement.device().type,  # type: ignore[union-attr]
        dtype=weight.dtype,
    )
