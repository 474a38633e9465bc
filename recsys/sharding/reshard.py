"""Rewriting of a checkpoint for another plan, in one process, a block of rows at a time."""

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.default_planner import create_default_global_save_plan
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, Metadata, MetadataIndex
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, TensorWriteData, WriteItem, WriteItemType

from recsys.files import manifest
from recsys.files.atomic import whole_folder, write_json
from recsys.sharding.optimizers import OPTIMIZERS
from recsys.sharding.sharded_checkpoint import column_edges
from recsys.sharding.stored_checkpoint import PLAN, StoredCheckpoint
from recsys.sharding.tables import Region, TableShards, blocks

Make = Callable[[], Tensor]


def rewrite(stored: StoredCheckpoint, output: Path, entries: list[dict[str, Any]], world_size: int) -> None:
    """Write `stored` in the form that `world_size` processes would write under the plan `entries`.

    Each tensor of a block of rows is a file of its own, so that a rank opens only the files that it needs. Only one
    block is held in memory at a time.

    Args:
        entries: tables of the new plan, as in plan.json.
    """
    todo: dict[MetadataIndex, tuple[WriteItem, Make]] = {}

    def add(key: str, at: tuple[int, ...], shape: tuple[int, ...], size: tuple[int, ...], make: Make) -> None:
        chunk = ChunkStorageMetadata(torch.Size(at), torch.Size(shape))
        data = TensorWriteData(chunk, stored.tensors[key].properties, torch.Size(size))
        item = WriteItem(MetadataIndex(key, chunk.offsets), WriteItemType.SHARD, tensor_data=data)
        todo[item.index] = (item, make)

    tables = {e["parameter"]: e for e in entries}
    old = {e["parameter"]: column_edges(e) for e in stored.plan["tables"]}
    for key, meta in stored.tensors.items():
        parameter, _, state = key.partition(".")[2].partition("/")
        if parameter not in tables:
            size = tuple(meta.size)
            add(key, (0,) * len(size), size, size, partial(stored.read, key))
            continue
        entry, edges = tables[parameter], column_edges(tables[parameter])
        rowwise = OPTIMIZERS[stored.plan["optimizer"]].rowwise.get(state, False)
        if not entry["shards"] or entry["type"] == "data_parallel":
            regions = [Region(0, 0, entry["rows"], entry["width"], 0)]
        else:
            shards = [s for s in entry["shards"] if s["rows"] and s["columns"]]
            regions = [Region(s["offsets"][0], s["offsets"][1], s["rows"], s["columns"], s["rank"]) for s in shards]
        for region in regions:
            if rowwise:
                region = Region(region.row, edges.index(region.column), region.rows, 1, region.rank)
            size = (entry["rows"], len(edges) - 1 if rowwise else entry["width"])
            for block in blocks(region):
                make = partial(_make, stored, key, block, edges, entry["dim"], old[parameter] if rowwise else None)
                add(key, (block.row, block.column), (block.rows, block.columns), size, make)
    with whole_folder(output) as building:
        writer = dcp.FileSystemWriter(building, single_file_per_rank=False)
        dcp.save({}, storage_writer=writer, planner=_Lazy(todo), no_dist=True)
        for file in [stored.path / "state.pt", *stored.path.glob("rank-*.pt")]:
            shutil.copy(file, building)
        write_json(building / PLAN, stored.plan | {"world_size": world_size, "manifest": True, "tables": entries})
        manifest.write(building, manifest.entries_of(building))


def _make(
    stored: StoredCheckpoint, key: str, region: Region, edges: list[int], dim: int, old: list[int] | None
) -> Tensor:
    """Return one block of a table or, given the column blocks `old` of its row-wise state, of that state."""
    out = torch.zeros(region.rows, region.columns, dtype=stored.dtype(key))
    shards = TableShards((0, 0), (region,), (region,), (out,), tuple(edges))
    read = partial(stored.read, key)
    shards.fill(read, dim) if old is None else shards.convert(read, dim, old)
    return out


class _Lazy(SavePlanner):
    """Save planner that creates each tensor when it is written."""

    def __init__(self, todo: dict[MetadataIndex, tuple[WriteItem, Make]]) -> None:
        self._todo = todo

    def set_up_planner(self, *args: Any, **kwargs: Any) -> None:
        pass

    def create_local_plan(self) -> SavePlan:
        return SavePlan([item for item, _ in self._todo.values()])

    def create_global_plan(self, all_plans: list[SavePlan]) -> tuple[list[SavePlan], Metadata]:
        return create_default_global_save_plan(all_plans)

    def finish_plan(self, new_plan: SavePlan) -> SavePlan:
        return new_plan

    def resolve_data(self, write_item: WriteItem) -> Tensor:
        _, make = self._todo[write_item.index]
        return make()
