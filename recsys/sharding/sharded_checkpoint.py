"""Sharded checkpoints through torch.distributed.checkpoint, written atomically and loadable under any plan.

    CHECKPOINT/
        .metadata __0_0.distcp ...   model weights and table optimizers' state, one file per rank, without gathering
        state.pt                     dense optimizer, schedulers, loops, loader position, callbacks
        rank-0.pt ...                each rank's random state
        plan.json                    step, world size, and the plan of the run that wrote the checkpoint
        manifest.json                digests of all files, which are checked before the checkpoint is loaded

A checkpoint is written next to its final path under a temporary name and then renamed, so that a killed process leaves
the previous one intact.
Tables are written in blocks of rows under names that do not depend on the plan. A rank therefore reads only the rows
that it needs, a block at a time, whatever plan, padding and world size wrote them.
"""

import json
import random
import shutil
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed._shard.sharded_tensor import ShardedTensor
from torch.distributed.checkpoint.api import CheckpointException

from recsys.base.console import say
from recsys.base.errors import UserError
from recsys.distributed.ranks import gather_values
from recsys.files import manifest
from recsys.files.atomic import beside, put_in_place
from recsys.files.manifest import DamagedFile
from recsys.sharding.sharded_model import ShardedModel
from recsys.sharding.stored_checkpoint import (
    METADATA,
    PLAN,
    SafeReader,
    StoredCheckpoint,
    TensorsOnly,
    check_checkpoint,
    load_plain,
)
from recsys.sharding.tables import TableShards, table_shards_of
from recsys.sharding.touched_rows import RowOptimizer

FINITE_ELEMENTS = 1 << 24  # elements that `all_finite` checks at once


def save(path: Path, sharded: ShardedModel, row_optimizer: RowOptimizer | None, state: dict[str, Any]) -> None:
    """Write a checkpoint to `path` atomically. Collective.

    Args:
        row_optimizer: optimizer of the tables with dense kernels, if there are any.
        state: contents of state.pt.
    """
    building = beside(path)
    if dist.get_rank() == 0:
        shutil.rmtree(building, ignore_errors=True)
        building.mkdir(parents=True)
    dist.barrier()
    weights, states = local_tables(sharded, row_optimizer)
    model = sharded.dmp.state_dict() | {name: shards.to_save() for name, shards in weights.items()}
    tensors = {"model": model} | {f"tables.{name}": shards.to_save() for name, shards in states.items()}
    dcp.save(tensors, storage_writer=dcp.FileSystemWriter(building))
    rank = dist.get_rank()
    files = [building / f"rank-{rank}.pt", *building.glob(f"__{rank}_*.distcp")]
    kind, keys, *rest = np.random.get_state()
    random_state: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "numpy": (kind, np.asarray(keys).tolist(), *rest),  # plain numbers, as `load_plain` reads them
        "python": random.getstate(),
    }
    if torch.cuda.is_available():
        random_state["cuda"] = torch.cuda.get_rng_state()
    torch.save(random_state, files[0])
    if rank == 0:
        torch.save(state, building / "state.pt")
        about = {
            "step": state.get("global_step"),
            "world_size": dist.get_world_size(),
            "optimizer": sharded.optimizer.name,
        }
        (building / PLAN).write_text(json.dumps(about | {"manifest": True, "tables": sharded.plan}, indent=1) + "\n")
        files += [building / name for name in ("state.pt", PLAN, METADATA)]
    entries = gather_values(manifest.entries_of(building, files))
    if rank == 0:
        manifest.write(building, {name: entry for part in entries for name, entry in part.items()})
        put_in_place(building, path)
    dist.barrier()


def load_model(path: Path, sharded: ShardedModel) -> None:
    """Check a checkpoint's files and load its weights, whatever plan wrote them. Collective."""
    try:
        check_checkpoint(path)
    except DamagedFile as e:
        others = sorted(p.name for p in path.parent.glob("[!.]*") if p.is_dir() and p != path)
        hint = f"; choose another one with checkpoint=NAME: {', '.join(others)}" if others else ""
        raise DamagedFile(e.file, f"{e.problem}{hint}") from None
    stored = StoredCheckpoint(path)
    _load(stored, sharded, table_weights(sharded), {}, {})


def load_all(path: Path, sharded: ShardedModel, row_optimizer: RowOptimizer | None, step: int) -> None:
    """Restore weights, table optimizers and this rank's random state. Collective.

    Row-wise optimizers have one number per row and column block. If the blocks differ from the checkpoint's, a new
    block's number is the mean of the old ones' over its columns, since the number stands for a mean of g^2.

    Args:
        row_optimizer: optimizer of the tables with dense kernels; None if there are none.
    """
    stored = StoredCheckpoint(path)
    weights, states = local_tables(sharded, row_optimizer)
    if missing := sorted(name for name in states if f"tables.{name}" not in stored.tensors):
        raise UserError(
            f"{path}: has no optimizer state {missing[0]}; "
            f"it was written with optim.sparse.name={stored.plan['optimizer']}"
        )
    _load(stored, sharded, weights, states, sharded.optimizer.rowwise)
    wrote, read = len(list(path.glob("rank-*.pt"))), dist.get_world_size()
    if wrote != read:
        why = "dropout and sampling will draw other random numbers than without the interruption"
        say(f"{wrote} processes wrote the checkpoint and {read} read it: {why}")
    file = path / f"rank-{dist.get_rank()}.pt"
    if file.exists():
        random_state = load_plain(file)
        torch.set_rng_state(random_state["torch"])
        np.random.set_state(random_state["numpy"])
        random.setstate(random_state["python"])
        if "cuda" in random_state and torch.cuda.is_available():
            torch.cuda.set_rng_state(random_state["cuda"])
    if row_optimizer is not None:
        row_optimizer.set_step(step)


def _load(
    stored: StoredCheckpoint,
    sharded: ShardedModel,
    weights: dict[str, TableShards],
    states: dict[str, TableShards],
    rowwise: Mapping[str, bool],
) -> None:
    """Load tensors of unchanged size through torch.distributed.checkpoint, and others by streaming rows."""
    dims = {i.parameter: i.dim for i in sharded.tables.values()}
    old = {t["parameter"]: column_edges(t) for t in stored.plan["tables"]}
    sizes = {t["parameter"]: (t["rows"], t["dim"]) for t in stored.plan["tables"]}
    for i in sharded.tables.values():
        if sizes.get(i.parameter) != (i.rows, i.dim):
            size = "{} rows x {}".format(*sizes[i.parameter]) if i.parameter in sizes else "missing"
            raise UserError(f"{stored.path}: table {i.name} is {size}, but the model's is {i.rows} rows x {i.dim}")
    tensors = {k: v for k, v in sharded.dmp.state_dict().items() if k not in weights}
    stored.check_dense(tensors)
    tensors = {f"model.{k}": v for k, v in tensors.items()}
    for key, shards in [(f"model.{k}", w) for k, w in weights.items()] + [
        (f"tables.{k}", s) for k, s in states.items()
    ]:
        parameter, _, state = key.partition(".")[2].partition("/")
        read = partial(stored.read, key)
        if rowwise.get(state):
            if old[parameter] == list(shards.edges):
                tensors[key] = shards.to_load()
            else:
                shards.convert(read, dims[parameter], old[parameter])
        elif stored.size(key) == list(shards.size) and stored.dtype(key) == shards.dtype:
            tensors[key] = shards.to_load()
        else:
            shards.fill(read, dims[parameter])
    try:
        dcp.load(tensors, storage_reader=SafeReader(stored.path), planner=TensorsOnly())
    except CheckpointException as e:
        mistakes = [error for error, _ in e.failures.values() if isinstance(error, UserError)]
        if mistakes:
            raise mistakes[0] from None
        raise
    for lookup in (x for m in sharded.dmp.modules() for x in getattr(m, "_lookups", ())):
        getattr(lookup, "module", lookup).purge()  # drop the GPU's cached rows, which are out of date


def column_edges(entry: dict[str, Any]) -> list[int]:
    """Return the edges of a table's column blocks, [0, ..., width], from its entry in plan.json."""
    return [*sorted({s["offsets"][1] for s in entry["shards"]} or {0}), entry["width"]]


def table_weights(sharded: ShardedModel) -> dict[str, TableShards]:
    """Return this rank's shards of the weights of all tables, by parameter."""
    values = sharded.dmp.state_dict()
    return {i.parameter: table_shards_of(values[i.parameter]) for i in sharded.tables.values()}


def local_tables(
    sharded: ShardedModel, row_optimizer: RowOptimizer | None
) -> tuple[dict[str, TableShards], dict[str, TableShards]]:
    """Return this rank's shards of all weights, by parameter, and of optimizer states, by parameter/state.

    row_optimizer: optimizer of the tables with dense kernels; None if there are none
    """
    weights, states = table_weights(sharded), dict[str, TableShards]()
    dmp, optimizer = sharded.dmp, sharded.optimizer
    for parameter, fused in dmp.fused_optimizer.state_dict()["state"].items():
        for key, value in fused.items():
            local = [s.tensor for s in value.local_shards()] if isinstance(value, ShardedTensor) else [value]
            name = key.rsplit(".", 1)[-1]
            name = next(iter(optimizer.rowwise)) if name == "momentum1" else name  # FBGEMM's name of every first state
            if all(isinstance(t, Tensor) and t.dim() for t in local):  # not a step count
                states[f"{parameter}/{name}"] = weights[parameter].like(local, optimizer.rowwise.get(name, False))
    for parameter, p in dmp.named_parameters() if row_optimizer is not None else ():
        for name, value in row_optimizer.state.get(p, {}).items():  # type: ignore[union-attr]
            if isinstance(value, Tensor):
                local = list(value.split([m.rows for m in weights[parameter].local_regions]))
                states[f"{parameter}/{name}"] = weights[parameter].like(local, optimizer.rowwise.get(name, False))
    return weights, states


def not_finite(state: Mapping[str, Any]) -> str | None:
    """Return a description of a weight that is NaN or infinite, or None. state: the state dict of a sharded model"""
    for name, value in state.items():
        sharded = isinstance(value, ShardedTensor)  # of some tables, this rank may hold no shard
        for tensor in [s.tensor for s in value.local_shards()] if sharded else [value]:
            if isinstance(tensor, Tensor) and not all_finite(tensor):
                return f"weights of {name} are NaN or infinite"
    return None


def all_finite(x: Tensor) -> bool:
    """Return whether no element is NaN or infinite. Needs little memory beside x."""
    if not x.is_floating_point():
        return True
    return all(bool(torch.isfinite(part).all()) for part in x.detach().reshape(-1).split(FINITE_ELEMENTS))
