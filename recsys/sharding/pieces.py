"""A table's tensor in pieces: what this rank holds of it, where that lies in the whole, and where all others lie.

What a checkpoint writes and reads: the same names and sizes whatever the plan, without padding.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed._shard.metadata import ShardMetadata
from torch.distributed._shard.sharded_tensor import Shard, ShardedTensor, ShardedTensorMetadata
from torch.distributed._shard.sharded_tensor.metadata import TensorProperties

BLOCK_BYTES = 32 << 20  # of rows that are written, and so read, at once
STEP_ROWS = 1 << 20  # of row-wise state that are converted at once


@dataclass(frozen=True)
class Place:
    """A rectangle of the whole tensor, and the rank that has it. It may be empty."""

    row: int
    column: int
    rows: int
    columns: int
    rank: int


@dataclass(frozen=True)
class Pieces:
    """size: of the whole; places: of all ranks; mine: of this one, with the tensor of each in `local`.

    edges: of the table's column blocks, from 0 to its dim
    replicated: every rank has the whole; its places share out who writes what.
    """

    size: tuple[int, int]
    places: tuple[Place, ...]
    mine: tuple[Place, ...]
    local: tuple[Tensor, ...]
    edges: tuple[int, ...]
    replicated: bool = False

    def like(self, states: Sequence[Tensor], rowwise: bool) -> "Pieces":
        """The optimizer's state of the same rows: a number an element, or (rowwise, 1-D) one a row and column block."""
        if not rowwise:
            return replace(self, local=tuple(s[:, : p.columns] for s, p in zip(states, self.mine, strict=True)))
        block = {column: i for i, column in enumerate(self.edges)}
        narrow = lambda p: replace(p, column=block.get(p.column, 0), columns=min(p.columns, 1))  # noqa: E731
        mine = tuple(map(narrow, self.mine))
        return replace(
            self,
            size=(self.size[0], len(self.edges) - 1),
            places=tuple(map(narrow, self.places)),
            mine=mine,
            local=tuple(s.reshape(-1, 1)[:, : p.columns] for s, p in zip(states, mine, strict=True)),
        )

    def to_load(self) -> Any:
        """What torch.distributed.checkpoint fills."""
        return self.local[0] if self.replicated else self._sharded(self.places, list(zip(self.mine, self.local)))  # noqa: B905

    def to_save(self) -> ShardedTensor:
        """In blocks of rows, so that a reader of a part need not read the whole; replicas share the work."""
        step = max(BLOCK_BYTES // (4 * max(p.columns for p in self.places)), 1)
        held = [b for p, t in zip(self.mine, self.local, strict=True) for b in _blocks(p, t, step)]
        if not self.replicated:
            return self._sharded([b for p in self.places for b, _ in _blocks(p, None, step)], held)
        world = dist.get_world_size()
        held = [(replace(p, rank=i % world), t) for i, (p, t) in enumerate(held)]
        return self._sharded([p for p, _ in held], [(p, t) for p, t in held if p.rank == dist.get_rank()])

    def convert(self, read: Callable[[int, int], Tensor], old: Sequence[int]) -> None:
        """Fill row-wise state from that of other column blocks, whose edges are `old`.

        A new block's number is the mean of the old ones' over its columns, as both are means of g^2.
        read(first, rows): the old state of those rows, (rows, old blocks)
        """
        for p, tensor in zip(self.mine, self.local, strict=True):
            if not p.columns:
                continue
            a, b = self.edges[p.column : p.column + 2]
            shares = [max(min(b, y) - max(a, x), 0) / (b - a) for x, y in zip(old, old[1:], strict=False)]
            for at in range(0, p.rows, STEP_ROWS):
                n = min(STEP_ROWS, p.rows - at)
                tensor[at : at + n, 0] = (read(p.row + at, n) @ torch.tensor(shares)).to(tensor.device)

    def _sharded(self, places: Sequence[Place], held: Sequence[tuple[Place, Tensor]]) -> ShardedTensor:
        device = self.local[0].device.type if self.local else "cpu"

        def meta(p: Place) -> ShardMetadata:
            index = f":{p.rank % torch.cuda.device_count()}" if device == "cuda" else ""
            return ShardMetadata([p.row, p.column], [p.rows, p.columns], f"rank:{p.rank}/{device}{index}")

        return ShardedTensor._init_from_local_shards_and_global_metadata(
            [Shard(t, meta(p)) for p, t in held if p.rows and p.columns],
            ShardedTensorMetadata(
                shards_metadata=[meta(p) for p in places if p.rows and p.columns],
                size=torch.Size(self.size),
                tensor_properties=TensorProperties(dtype=torch.float32),
            ),
            process_group=dist.group.WORLD,
        )


def _blocks(place: Place, tensor: Tensor | None, step: int) -> list[tuple[Place, Any]]:
    return [
        (
            replace(place, row=place.row + at, rows=min(step, place.rows - at)),
            None if tensor is None else tensor[at : at + step],
        )
        for at in range(0, place.rows, step)
    ]


def pieces_of(weight: Any, dim: int) -> Pieces:
    """Of a table's weight as a sharded module's state dict has it; columns from `dim` on are padding, left out."""
    if not isinstance(weight, ShardedTensor):
        whole = Place(0, 0, weight.shape[0], dim, dist.get_rank())
        local = (weight.detach()[:, :dim],)
        return Pieces((weight.shape[0], dim), (whole,), (whole,), local, (0, dim), replicated=True)

    def place(m: ShardMetadata) -> Place:
        (row, column), (rows, columns) = m.shard_offsets, m.shard_sizes
        assert m.placement is not None
        return Place(row, column, rows, max(min(columns, dim - column), 0), m.placement.rank())  # type: ignore[union-attr]

    places = tuple(map(place, weight.metadata().shards_metadata))
    mine = tuple(place(s.metadata) for s in weight.local_shards())
    local = tuple(s.tensor.detach()[:, : p.columns] for s, p in zip(weight.local_shards(), mine, strict=True))
    edges = (*sorted({p.column for p in places if p.columns}), dim)
    return Pieces((weight.size()[0], dim), places, mine, local, edges)
