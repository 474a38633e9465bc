"""Sharded checkpoints through torch.distributed.checkpoint, written atomically, loadable under any plan.

    CHECKPOINT/
        .metadata __0_0.distcp ...   model weights, table optimizers' state: one file a rank, no gathering
        state.pt                     dense optimizer, schedulers, loops, loader position, callbacks
        rank-0.pt ...                each rank's random state
        plan.json                    the plan it was written under

It is written beside its place and renamed into it, so that a kill leaves the previous one loadable.
"""

import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed._shard.metadata import ShardMetadata
from torch.distributed._shard.sharded_tensor import Shard, ShardedTensor, ShardedTensorMetadata
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torchrec.distributed import DistributedModelParallel

from recsys.errors import UserError
from recsys.progress import say
from recsys.sharding.optim import RowOptimizer


def save(
    path: Path,
    dmp: DistributedModelParallel,
    rows: dict[str, torch.Tensor],
    row_optimizer: RowOptimizer | None,
    state: dict[str, Any],
    plan: list[dict[str, Any]],
) -> None:
    """Collective: every rank calls it. `path` appears complete or not at all."""
    building = path.with_name(f".{path.name}.building")
    if dist.get_rank() == 0:
        shutil.rmtree(building, ignore_errors=True)
        building.mkdir(parents=True)
    dist.barrier()
    tensors = {"model": dmp.state_dict(), "tables": _table_states(dmp, rows, row_optimizer)}
    dcp.save(tensors, storage_writer=dcp.FileSystemWriter(building))
    torch.save(_random_state(), building / f"rank-{dist.get_rank()}.pt")
    if dist.get_rank() == 0:
        torch.save(state, building / "state.pt")
        (building / "plan.json").write_text(json.dumps(plan, indent=1) + "\n")
    dist.barrier()
    if dist.get_rank() == 0:
        shutil.rmtree(path, ignore_errors=True)
        os.replace(building, path)
    dist.barrier()


def load_model(path: Path, dmp: DistributedModelParallel) -> None:
    """Collective: the weights of `path` into `dmp`, whatever plans wrote and reads them."""
    _require(path)
    dcp.load({"model": dmp.state_dict()}, storage_reader=dcp.FileSystemReader(path))


def load_all(
    path: Path, dmp: DistributedModelParallel, rows: dict[str, torch.Tensor], row_optimizer: RowOptimizer | None
) -> dict[str, Any]:
    """Collective: weights, table optimizers and this rank's random state; returns the rest (`state.pt`).

    Row-wise state of tables split by columns has one number a row and column block; where the blocks
    differ from those it was written with, that table's state starts anew, and a line says so.
    """
    _require(path)
    reader = dcp.FileSystemReader(path)
    written = reader.read_metadata().state_dict_metadata
    tables = _table_states(dmp, rows, row_optimizer)
    fits = {k: v for k, v in tables.items() if _size(written.get(f"tables.{k}")) == list(v.shape)}
    if lost := sorted(set(tables) - set(fits)):
        say(f"optimizer state of {len(lost)} tables does not fit this plan and starts anew: {', '.join(lost[:4])} ...")
    dcp.load({"model": dmp.state_dict(), "tables": fits}, storage_reader=reader)
    mine = path / f"rank-{dist.get_rank()}.pt"
    if mine.exists():
        _set_random_state(torch.load(mine, weights_only=False))
    state = torch.load(path / "state.pt", weights_only=False, map_location="cpu")
    assert isinstance(state, dict)
    return state


def _require(path: Path) -> None:
    if not (path / ".metadata").exists():
        raise UserError(f"{path}: not a checkpoint")


def _size(metadata: Any) -> list[int] | None:
    return list(metadata.size) if isinstance(metadata, TensorStorageMetadata) else None


def _table_states(
    dmp: DistributedModelParallel, rows: dict[str, torch.Tensor], row_optimizer: RowOptimizer | None
) -> dict[str, Any]:
    """Every table's optimizer state by name: fused ones as TorchRec shards them, RowOptimizer's likewise."""
    states: dict[str, Any] = {}
    for table, state in dmp.fused_optimizer.state_dict()["state"].items():
        for name, value in state.items():
            if isinstance(value, torch.Tensor | ShardedTensor):
                states[f"{table}/{name.rsplit('.', 1)[-1]}"] = value
    if row_optimizer is not None:
        weights = dmp.state_dict()
        for table, param in rows.items():
            for name, value in row_optimizer.state[param].items():
                if isinstance(value, torch.Tensor):
                    states[f"{table}/{name}"] = _like(weights[table], value)
    return states


def _like(weight: Any, state: torch.Tensor) -> Any:
    """`state` of this rank's shards of `weight`, sharded as the weight is; one column a block if it has one a row."""
    if not isinstance(weight, ShardedTensor):
        return state
    shards = weight.local_shards()
    columns = sorted({s.shard_offsets[1] for s in weight.metadata().shards_metadata})
    rowwise = state.dim() == 1

    def place(m: ShardMetadata) -> ShardMetadata:
        if not rowwise:
            return m
        block = columns.index(m.shard_offsets[1])
        return ShardMetadata([m.shard_offsets[0], block], [m.shard_sizes[0], 1], m.placement)

    pieces = list(state.split([s.metadata.shard_sizes[0] for s in shards])) if shards else []
    whole = weight.metadata()
    metadata = ShardedTensorMetadata(
        shards_metadata=[place(m) for m in whole.shards_metadata],
        size=torch.Size([whole.size[0], len(columns)]) if rowwise else whole.size,
        tensor_properties=whole.tensor_properties,
    )
    return ShardedTensor._init_from_local_shards_and_global_metadata(
        [Shard(p[:, None] if rowwise else p, place(s.metadata)) for p, s in zip(pieces, shards, strict=True)],
        metadata,
        process_group=dist.group.WORLD,
    )


def _random_state() -> dict[str, Any]:
    state: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "numpy": np.random.get_state(),
        "python": random.getstate(),
    }
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def _set_random_state(state: dict[str, Any]) -> None:
    torch.set_rng_state(state["torch"])
    np.random.set_state(state["numpy"])
    random.setstate(state["python"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
