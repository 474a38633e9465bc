"""A table's tensor in pieces: what this rank holds of it, where that lies in the whole, and where all others lie.

What a checkpoint writes and reads: the same names whatever the plan.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed._shard.metadata import ShardMetadata
from torch.distributed._shard.sharded_tensor import Shard, ShardedTensor, ShardedTensorMetadata
from torch.distributed._shard.sharded_tensor.metadata import TensorProperties
from torchrec.distributed.comm import get_local_size

BLOCK_BYTES = 32 << 20  # of rows that are written, and so read, at once

Read = Callable[[int, int], Tensor]  # (first, rows) -> those rows of what is stored, in full width


@dataclass(frozen=True)
class Region:
    """A rectangle of the whole tensor, and the rank that has it. It may be empty."""

    row: int
    column: int
    rows: int
    columns: int
    rank: int


@dataclass(frozen=True)
class TableShards:
    """size: of the whole; places: of all ranks; mine: of this one, with the tensor of each in `local`.

    edges: of the table's column blocks, from 0 to its width
    replicated: every rank has the whole; its places share out who writes what.
    """

    size: tuple[int, int]
    places: tuple[Region, ...]
    mine: tuple[Region, ...]
    local: tuple[Tensor, ...]
    edges: tuple[int, ...]
    device: str = "cpu"
    replicated: bool = False

    def like(self, states: Sequence[Tensor], rowwise: bool) -> "TableShards":
        """The optimizer's state of the same rows: a number an element, or (rowwise, 1-D) one a row and column block."""
        if not rowwise:
            return replace(self, local=tuple(states))
        block = {column: i for i, column in enumerate(self.edges)}
        narrow = lambda p: replace(p, column=block[p.column], columns=1)  # noqa: E731
        return replace(
            self,
            size=(self.size[0], len(self.edges) - 1),
            places=tuple(map(narrow, self.places)),
            mine=tuple(map(narrow, self.mine)),
            local=tuple(s.reshape(-1, 1) for s in states),
        )

    def to_load(self) -> Any:
        """What torch.distributed.checkpoint fills."""
        if self.replicated:
            return self.local[0]
        return self._sharded(self.places, list(zip(self.mine, self.local, strict=True)))

    def to_save(self) -> ShardedTensor:
        """In blocks of rows, so that a reader of a part need not read the whole; replicas share the work."""
        held = [
            (b, t[b.row - p.row : b.row - p.row + b.rows])
            for p, t in zip(self.mine, self.local, strict=True)
            for b in blocks(p)
        ]
        if not self.replicated:
            return self._sharded([b for p in self.places for b in blocks(p)], held)
        world = dist.get_world_size()
        held = [(replace(b, rank=i % world), t) for i, (b, t) in enumerate(held)]
        return self._sharded([b for b, _ in held], [(b, t) for b, t in held if b.rank == dist.get_rank()])

    def fill(self, read: Read, dim: int) -> None:
        """From a tensor that differs in padding: `dim` columns are copied, the others left as they are."""
        for p, tensor in zip(self.mine, self.local, strict=True):
            stop = min(p.column + p.columns, dim)
            for at in range(0, p.rows if stop > p.column else 0, rows_of_a_block(self.edges[-1])):
                n = min(rows_of_a_block(self.edges[-1]), p.rows - at)
                tensor[at : at + n, : stop - p.column] = read(p.row + at, n)[:, p.column : stop].to(tensor.device)

    def convert(self, read: Read, dim: int, old: Sequence[int]) -> None:
        """Row-wise state from that of other column blocks, whose edges are `old`.

        A block's number is the mean of g^2 over its columns, those beyond `dim` being zero; a new block's is that of
        the old ones' g^2, each spread evenly over its columns.
        """
        for p, tensor in zip(self.mine, self.local, strict=True):
            a, b = self.edges[p.column : p.column + 2]
            shares = [
                max(min(b, y, dim) - max(a, x), 0) / max(min(y, dim) - x, 1) * (y - x) / (b - a)
                for x, y in pairwise(old)
            ]
            for at in range(0, p.rows, rows_of_a_block(len(shares))):
                n = min(rows_of_a_block(len(shares)), p.rows - at)
                tensor[at : at + n, 0] = (read(p.row + at, n) @ torch.tensor(shares)).to(tensor.device)

    def _sharded(self, places: Sequence[Region], held: Sequence[tuple[Region, Tensor]]) -> ShardedTensor:
        def meta(p: Region) -> ShardMetadata:
            index = f":{p.rank % get_local_size()}" if self.device == "cuda" else ""
            return ShardMetadata([p.row, p.column], [p.rows, p.columns], f"rank:{p.rank}/{self.device}{index}")

        return ShardedTensor._init_from_local_shards_and_global_metadata(
            [Shard(t, meta(p)) for p, t in held if p.rows and p.columns],
            ShardedTensorMetadata(
                shards_metadata=[meta(p) for p in places if p.rows and p.columns],
                size=torch.Size(self.size),
                tensor_properties=TensorProperties(dtype=torch.float32),
            ),
            process_group=dist.group.WORLD,
        )


def rows_of_a_block(columns: int) -> int:
    return max(BLOCK_BYTES // (4 * max(columns, 1)), 1)


def blocks(place: Region) -> list[Region]:
    """Of BLOCK_BYTES at most, rows by rows."""
    step = rows_of_a_block(place.columns)
    return [replace(place, row=place.row + at, rows=min(step, place.rows - at)) for at in range(0, place.rows, step)]


def table_shards_of(weight: Any) -> TableShards:
    """Of a table's weight as a sharded module's state dict has it."""
    if not isinstance(weight, ShardedTensor):
        rows, width = weight.shape
        whole = Region(0, 0, rows, width, dist.get_rank())
        return TableShards((rows, width), (whole,), (whole,), (weight.detach(),), (0, width), weight.device.type, True)

    def place(m: ShardMetadata) -> Region:
        rank = m.placement.rank() if m.placement is not None else None  # type: ignore[union-attr]
        assert rank is not None
        (row, column), (rows, columns) = m.shard_offsets, m.shard_sizes
        return Region(row, column, rows, columns, rank)

    held = weight.local_shards()
    places = tuple(map(place, weight.metadata().shards_metadata))
    rows, width = weight.size()
    return TableShards(
        (rows, width),
        places,
        tuple(place(s.metadata) for s in held),
        tuple(s.tensor.detach() for s in held),
        (*sorted({p.column for p in places}), width),
        weight.metadata().shards_metadata[0].placement.device().type,  # type: ignore[union-attr]
    )
