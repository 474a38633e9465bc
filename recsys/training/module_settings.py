"""Settings of a RecsysModule: weight updates, and what a training begins with."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from recsys.interface.ageing import Ageing
from recsys.interface.batch import Interactions
from recsys.training.run_state import RunState

MakeOptimizer = Callable[[list[Tensor]], torch.optim.Optimizer]
MakeScheduler = Callable[[torch.optim.Optimizer], Any]


@dataclass(frozen=True)
class Updates:
    """Settings of the weight updates.

    make_optimizer: builds the optimizer from the list of dense weights; None if the module is not trained
    make_scheduler: builds the scheduler from the combined optimizer; None for constant rates
    by_step: whether the scheduler counts steps instead of validations
    accumulate: number of batches whose gradients are averaged for one step
    clip_norm: maximum norm of all dense gradients together; None for no limit
    ema: decay of the moving average of the dense weights; None for no average
    monitor: the metric that schedule=plateau watches
    recompute: whether the activations of blocks are computed again in the backward pass
    compile: whether the dense part is compiled; None: where it is known to pay
    cuda_graphs: whether the compiled part is launched as CUDA graphs; None: on GPUs, unless gradients are accumulated
    steps: of the whole training
    precision: Lightning's name of the precision of a step; 16-mixed scales the loss
    loss_scale: the scale; None for a dynamic one
    pipeline: TorchRec's pipeline, sparse_dist or prefetch; others need nothing of the module
    """

    make_optimizer: MakeOptimizer | None = None
    make_scheduler: MakeScheduler | None = None
    by_step: bool = False
    accumulate: int = 1
    clip_norm: float | None = None
    ema: float | None = None
    monitor: str = "validation/auc"
    recompute: bool = False
    compile: bool | None = None
    cuda_graphs: bool | None = None
    steps: int = 0
    precision: str = "32-true"
    loss_scale: float | None = None
    pipeline: str = "none"


@dataclass(frozen=True)
class Beginning:
    """What a training begins with.

    read_pairs: returns the training interactions of the feature that a model names as its user
    read_counts: returns how often the items of a number of rows were chosen in training, by age
    resumed: state of the checkpoint of this run that the training resumes from
    start_from: checkpoint of another run that the training starts from, and the rows that have new values, by
        vocabulary
    """

    read_pairs: Callable[[str], Interactions] | None = None
    read_counts: Callable[[Ageing, int], Tensor] | None = None
    resumed: RunState | None = None
    start_from: tuple[Path, Mapping[str, np.ndarray]] | None = None
