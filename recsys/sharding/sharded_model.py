"""A model whose tables are sharded: what training, checkpoints and `start_from` work on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn

from recsys.schema.run_schema import ShardingConfig, SparseOptimConfig
from recsys.sharding.init import check_vectors, init_tables
from recsys.sharding.optimizers import sparse_optimizer
from recsys.sharding.planner import describe, make_plan, shard
from recsys.sharding.tables import lay_out_tables, tables


@dataclass(frozen=True)
class Placement:
    """Settings of the tables: their sharding, and the optimizer that is fused into them.

    sharding, sparse: `sharding` and `optim.sparse` of the config
    batch_size: rows per process and step, for the planner
    local_world_size: number of processes per host
    load_factors: share of rows that GPUs cache, by vocabulary (data.load_factors)
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
        check_vectors(self.tables, p.vectors)
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
