"""Sharded checkpoints through torch.distributed.checkpoint, written atomically, loadable under any plan.

    CHECKPOINT/
        .metadata __0_0.distcp ...   model weights, table optimizers' state: one file a rank, no gathering
        state.pt                     dense optimizer, schedulers, loops, loader position, callbacks
        rank-0.pt ...                each rank's random state
        plan.json                    step, world size, and the plan it was written under

It is written beside its place and renamed into it, so that a kill leaves the previous one loadable.
Tables are written in blocks of rows under names that no plan changes; so a rank reads what it needs of them, a
block at a time, whatever the plan, padding and world size that wrote them.
"""

import json
import random
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed._shard.sharded_tensor import ShardedTensor
from torchrec.distributed import DistributedModelParallel

from recsys.atomic import beside, put_in_place
from recsys.errors import UserError
from recsys.sharding.row_optimizer import RowOptimizer
from recsys.sharding.stored_checkpoint import Stored
from recsys.sharding.table_shards import TableShards, table_shards_of
from recsys.sharding.tables import TableInfo

# FBGEMM's first state of a table is called momentum1 whatever it is; RowOptimizer's names are PyTorch's.
_FIRST_STATE = {"rowwise_adagrad": "sum", "adagrad": "sum", "adam": "exp_avg", "partial_rowwise_adam": "exp_avg"}
ROWWISE = {("rowwise_adagrad", "sum"), ("partial_rowwise_adam", "exp_avg_sq")}


def save(
    path: Path,
    dmp: DistributedModelParallel,
    infos: dict[str, TableInfo],
    optimizer: str,
    row_optimizer: RowOptimizer | None,
    state: dict[str, Any],
    plan: list[dict[str, Any]],
) -> None:
    """Collective: every rank calls it. `path` appears complete or not at all. optimizer: the tables'."""
    building = beside(path)
    if dist.get_rank() == 0:
        shutil.rmtree(building, ignore_errors=True)
        building.mkdir(parents=True)
    dist.barrier()
    weights, states = held_tables(dmp, infos, optimizer, row_optimizer)
    model = dmp.state_dict() | {name: pieces.to_save() for name, pieces in weights.items()}
    tensors = {"model": model} | {f"tables.{name}": pieces.to_save() for name, pieces in states.items()}
    dcp.save(tensors, storage_writer=dcp.FileSystemWriter(building))
    torch.save(_random_state(), building / f"rank-{dist.get_rank()}.pt")
    if dist.get_rank() == 0:
        torch.save(state, building / "state.pt")
        about = {"step": state.get("global_step"), "world_size": dist.get_world_size(), "optimizer": optimizer}
        (building / "plan.json").write_text(json.dumps(about | {"tables": plan}, indent=1) + "\n")
    dist.barrier()
    if dist.get_rank() == 0:
        put_in_place(building, path)
    dist.barrier()


def load_model(path: Path, dmp: DistributedModelParallel, infos: dict[str, TableInfo]) -> None:
    """Collective: the weights of `path` into `dmp`, whatever plans wrote and reads them."""
    stored = Stored(path)
    weights, _ = held_tables(dmp, infos, "", None)
    _load(stored, dmp, infos, weights, {}, "")


def load_all(
    path: Path,
    dmp: DistributedModelParallel,
    infos: dict[str, TableInfo],
    optimizer: str,
    row_optimizer: RowOptimizer | None,
    step: int,
) -> None:
    """Collective: restore weights, table optimizers and this rank's random state. step: the checkpoint's.

    Row-wise optimizers have one number a row and column block. Where the blocks differ from those that it was
    written with, a new block's is the mean of the old ones' over its columns: the mean of g^2 that it stands for.
    """
    stored = Stored(path)
    weights, states = held_tables(dmp, infos, optimizer, row_optimizer)
    if missing := sorted(name for name in states if f"tables.{name}" not in stored.tensors):
        raise UserError(f"{path}: holds no optimizer state {missing[0]}; was optim.sparse.name another one?")
    _load(stored, dmp, infos, weights, states, optimizer)
    mine = path / f"rank-{dist.get_rank()}.pt"
    if mine.exists():
        _set_random_state(torch.load(mine, weights_only=False))
    if row_optimizer is not None:
        for row_state in row_optimizer.state.values():
            row_state |= {"step": step} if "step" in row_state else {}


def _load(
    stored: Stored,
    dmp: DistributedModelParallel,
    infos: dict[str, TableInfo],
    weights: dict[str, TableShards],
    states: dict[str, TableShards],
    optimizer: str,
) -> None:
    """Through torch.distributed.checkpoint where sizes are as they were written, else by streaming rows."""
    dims = {i.parameter: i.dim for i in infos.values()}
    old = {t["parameter"]: column_edges(t) for t in stored.plan["tables"]}
    sizes = {t["parameter"]: (t["rows"], t["dim"]) for t in stored.plan["tables"]}
    for i in infos.values():
        if sizes.get(i.parameter) != (i.rows, i.dim):
            there = "{} rows x {}".format(*sizes[i.parameter]) if i.parameter in sizes else "not there"
            raise UserError(f"{stored.path}: table {i.name} is {there}, the model's is {i.rows} rows x {i.dim}")
    tensors = {k: v for k, v in dmp.state_dict().items() if k not in weights}
    tensors = {f"model.{k}": v for k, v in tensors.items()}
    for key, pieces in [(f"model.{k}", w) for k, w in weights.items()] + [
        (f"tables.{k}", s) for k, s in states.items()
    ]:
        parameter, _, state = key.partition(".")[2].partition("/")
        read = partial(stored.read, key)
        if (optimizer, state) in ROWWISE:
            if old[parameter] == list(pieces.edges):
                tensors[key] = pieces.to_load()
            else:
                pieces.convert(read, dims[parameter], old[parameter])
        elif stored.size(key) == list(pieces.size):
            tensors[key] = pieces.to_load()
        else:
            pieces.fill(read, dims[parameter])
    dcp.load(tensors, storage_reader=dcp.FileSystemReader(stored.path))
    for lookup in (x for m in dmp.modules() for x in getattr(m, "_lookups", ())):
        getattr(lookup, "module", lookup).purge()  # rows that a GPU caches are those of before


def column_edges(entry: dict[str, Any]) -> list[int]:
    """Of a table's column blocks, [0, ..., width], from its entry in plan.json."""
    return [*sorted({s["offsets"][1] for s in entry["shards"]} or {0}), entry["width"]]


def held_tables(
    dmp: DistributedModelParallel, infos: dict[str, TableInfo], optimizer: str, row_optimizer: RowOptimizer | None
) -> tuple[dict[str, TableShards], dict[str, TableShards]]:
    """This rank's pieces of every table's weight, by parameter, and of its optimizer's state, by parameter/state."""
    values = dmp.state_dict()
    weights = {i.parameter: table_shards_of(values[i.parameter]) for i in infos.values()}
    states: dict[str, TableShards] = {}
    if not optimizer:
        return weights, states
    for parameter, fused in dmp.fused_optimizer.state_dict()["state"].items():
        for key, value in fused.items():
            local = [s.tensor for s in value.local_shards()] if isinstance(value, ShardedTensor) else [value]
            name = key.rsplit(".", 1)[-1]
            name = _FIRST_STATE[optimizer] if name == "momentum1" else name
            if all(isinstance(t, Tensor) and t.dim() for t in local):  # not a step count
                states[f"{parameter}/{name}"] = weights[parameter].like(local, (optimizer, name) in ROWWISE)
    for parameter, p in dmp.named_parameters() if row_optimizer is not None else ():
        for name, value in row_optimizer.state.get(p, {}).items():  # type: ignore[union-attr]
            if isinstance(value, Tensor):
                local = list(value.split([m.rows for m in weights[parameter].mine]))
                states[f"{parameter}/{name}"] = weights[parameter].like(local, (optimizer, name) in ROWWISE)
    return weights, states


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
