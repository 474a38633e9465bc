"""Learning-rate schedules by step: factors of the rates of dense weights and tables together.

`schedule=NAME` selects one; optim.scheduler takes any torch.optim.lr_scheduler as well.
"""

import math
from functools import partial

from pydantic import NonNegativeFloat
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from recsys.base.ranges import Count, Natural


def warmup_polynomial(
    optimizer: Optimizer,
    *,
    warmup_steps: Natural = 0,
    decay_start_step: Natural | None = None,
    decay_steps: Count | None = None,
    power: NonNegativeFloat = 2.0,
    end: NonNegativeFloat = 0.0,
    total_steps: int | None = None,
) -> LambdaLR:
    """Rise linearly from 0 to 1 over warmup_steps, stay at 1 until decay_start_step, then fall to `end` as
    ((end of decay - step) / decay_steps)^power. MLPerf's DLRM uses 8000, 48000, 24000 and power 2.

    Args:
        decay_start_step: first step of the decay; None starts it right after the warm-up.
        decay_steps: number of steps of the decay; None ends it at total_steps.
        total_steps: number of steps of the whole training; the caller passes it.
    """
    if decay_start_step is None:
        decay_start_step = warmup_steps
    if decay_start_step < warmup_steps:
        raise ValueError(f"decay_start_step={decay_start_step}: must be at least warmup_steps={warmup_steps}")
    if decay_steps is None:
        decay_steps = max((total_steps or 0) - decay_start_step, 1)
    return LambdaLR(optimizer, partial(_polynomial, warmup_steps, decay_start_step, decay_steps, power, end))


def warmup_cosine(
    optimizer: Optimizer, *, warmup_steps: Natural = 0, end: NonNegativeFloat = 0.0, total_steps: int | None = None
) -> LambdaLR:
    """Rise linearly from 0 to 1 over warmup_steps, then fall along half a cosine to `end` at total_steps (Loshchilov &
    Hutter 2017, https://arxiv.org/abs/1608.03983).

    >>> import torch
    >>> optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    >>> schedule = warmup_cosine(optimizer, warmup_steps=2, total_steps=10)
    >>> [round(schedule.lr_lambdas[0](step), 2) for step in (0, 1, 2, 6, 10)]
    [0.5, 1.0, 1.0, 0.5, 0.0]
    """
    return LambdaLR(optimizer, partial(_cosine, warmup_steps, max((total_steps or 0) - warmup_steps, 1), end))


def _warm(step: int, warmup_steps: int) -> float:
    return min((step + 1) / warmup_steps, 1.0) if warmup_steps else 1.0


def _polynomial(warmup_steps: int, start: int, steps: int, power: float, end: float, step: int) -> float:
    if step < start or step < warmup_steps:
        return _warm(step, warmup_steps)
    left = max(1 - (step - start) / steps, 0.0)
    return end + (1 - end) * left**power


def _cosine(warmup_steps: int, steps: int, end: float, step: int) -> float:
    if step < warmup_steps:
        return _warm(step, warmup_steps)
    return end + (1 - end) * (1 + math.cos(math.pi * min((step - warmup_steps) / steps, 1.0))) / 2
