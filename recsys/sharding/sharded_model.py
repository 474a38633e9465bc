"""A model whose tables are sharded and have their initial weights: what training and checkpoints work on."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed._shard.sharded_tensor import ShardedTensor
from torchrec.distributed import DistributedModelParallel

from recsys.base.errors import UserError
from recsys.schema.run_schema import ShardingConfig, SparseOptimConfig
from recsys.sharding.optimizers import sparse_optimizer
from recsys.sharding.planner import describe, make_plan, shard
from recsys.sharding.tables import TableInfo, lay_out_tables, tables

BLOCK_ROWS = 65_536  # number of rows that are sampled together, in full width


@torch.no_grad()
def init_tables(
    dmp: DistributedModelParallel,
    infos: dict[str, TableInfo],
    seed: int,
    vectors: Mapping[str, np.ndarray] | None = None,
) -> None:
    """Fill this rank's shards of every table by its config's init_fn, block by block of rows.

    vectors: pretrained vectors by vocabulary, (rows, dim), for tables of this dim; rows with NaN keep what init_fn drew

    Args:
        seed: seed of the initial rows; they do not depend on the sharding.
    """
    by_parameter = {i.parameter: i for i in infos.values()}
    for name, weight in dmp.state_dict().items():
        if name not in by_parameter:
            continue
        if isinstance(weight, ShardedTensor):
            for local in weight.local_shards():
                row, column = local.metadata.shard_offsets
                _fill(local.tensor, row, column, by_parameter[name], seed, vectors or {})
        else:
            _fill(weight, 0, 0, by_parameter[name], seed, vectors or {})


def _fill(shard: Tensor, row: int, column: int, info: TableInfo, seed: int, vectors: Mapping[str, np.ndarray]) -> None:
    rows, columns = shard.shape
    given = vectors.get(info.vocabulary)
    cuda = [shard.device] if shard.device.type == "cuda" else []
    with torch.random.fork_rng(devices=cuda):
        for first in range(row - row % BLOCK_ROWS, row + rows, BLOCK_ROWS):
            key = [seed, zlib.crc32(info.name.encode()), first]
            torch.manual_seed(int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0] >> 1))
            height = min(BLOCK_ROWS, info.rows - first)
            block = torch.empty(height, info.dim, device=shard.device)
            info.init(block)
            if given is not None and given.shape[1] == info.dim:
                pretrained = torch.from_numpy(np.array(given[first : first + height])).to(block.device)
                block = torch.where(pretrained.isnan(), block, pretrained)
            block = nn.functional.pad(block, (0, info.width - info.dim))
            start, stop = max(first, row), min(first + height, row + rows)
            shard[start - row : stop - row] = block[start - first : stop - first, column : column + columns]


def check_vector_tables(infos: Mapping[str, TableInfo], vectors: Mapping[str, np.ndarray]) -> None:
    """Raise UserError if no table of the model has the width of the pretrained vectors of its vocabulary."""
    for vocabulary, given in vectors.items():
        dims = [info.dim for info in infos.values() if info.vocabulary == vocabulary]
        if dims and given.shape[1] not in dims:
            raise UserError(
                f"data.sparse: the vectors of table {vocabulary} have {given.shape[1]} numbers, but the model's table "
                f"has {max(dims)}; change model.dim until both are equal"
            )


@dataclass(frozen=True)
class Placement:
    """Settings of the tables: their sharding, and the optimizer that is fused into them.

    sharding, sparse: `sharding` and `optim.sparse` of the config
    batch_size: rows per process and step, for the planner
    local_world_size: number of processes per host
    load_factors: share of rows that GPUs cache, by vocabulary (data.loader.training_rows.load_factors)
    vectors: pretrained vectors that tables start from, by vocabulary
    """

    sharding: ShardingConfig
    sparse: SparseOptimConfig
    batch_size: int
    local_world_size: int
    load_factors: dict[str, float] | None = None
    vectors: dict[str, np.ndarray] = field(default_factory=dict)


class ShardedModel:
    """A task that is planned and sharded over the processes of the default group, with initial weights. Collective.

    Args:
        task: model and loss, with the tables on the meta device.
        placement: settings of the tables and their sharding.
        device: that of this process.
        accumulate, prefetch, bfloat16: of the steps that train the model; see `make_plan`.

    Attributes:
        dmp: TorchRec's DistributedModelParallel.
        task: the task inside it.
        tables: the tables by name.
        plan: an entry for each table, as in plan.json.
        optimizer: the optimizer of the tables.

    Raises:
        DoesNotFit: no plan fits the devices.
        UserError: the width of pretrained vectors differs from the width of their table.
    """

    def __init__(
        self,
        task: nn.Module,
        placement: Placement,
        device: torch.device,
        *,
        accumulate: int = 1,
        prefetch: bool = False,
        bfloat16: bool = False,
    ) -> None:
        p = placement
        self.optimizer = sparse_optimizer(p.sparse)
        lay_out_tables(task, p.sharding.padding, p.sharding.table_dtype)
        self.tables = tables(task)
        check_vector_tables(self.tables, p.vectors)
        plan, sharders = make_plan(
            task,
            p.sharding,
            self.optimizer,
            device=device,
            batch_size=p.batch_size,
            local_world_size=p.local_world_size,
            load_factors=p.load_factors,
            accumulate=accumulate,
            prefetch=prefetch,
            bfloat16=bfloat16,
        )
        self.plan = describe(plan, self.tables)
        self.dmp = shard(task, plan, sharders, device)
        self.task: Any = self.dmp.module
        init_tables(self.dmp, self.tables, torch.initial_seed(), p.vectors)
