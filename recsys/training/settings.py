"""Settings of a RecsysModule, grouped by what belongs together."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from recsys.config.schema_run import ShardingConfig, SparseOptimConfig

MakeOptimizer = Callable[[list[Tensor]], torch.optim.Optimizer]
MakeScheduler = Callable[[torch.optim.Optimizer], Any]


@dataclass(frozen=True)
class Placement:
    """Settings of the tables: their sharding, and the optimizer that is fused into them.

    sharding, sparse: the config's
    batch_size: rows of a process and step, for the planner
    local_world_size: processes of a host
    load_factors: shares of rows that GPUs cache, by vocabulary (data.load_factors)
    """

    sharding: ShardingConfig
    sparse: SparseOptimConfig
    batch_size: int
    local_world_size: int
    load_factors: dict[str, float] | None = None


@dataclass(frozen=True)
class Updates:
    """How weights are updated.

    make_optimizer: the dense weights' optimizer from their list; None where the module does not train
    make_scheduler: from that of all parameters
    by_step: the scheduler counts steps instead of validations
    accumulate: batches whose gradients make one step
    clip_norm: of all dense gradients together
    ema: the decay of an average of the dense weights
    monitor: the metric that schedule=plateau watches
    """

    make_optimizer: MakeOptimizer | None = None
    make_scheduler: MakeScheduler | None = None
    by_step: bool = False
    accumulate: int = 1
    clip_norm: float | None = None
    ema: float | None = None
    monitor: str = "validation/auc"
