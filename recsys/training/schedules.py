"""Learning-rate schedules by step, over dense and sparse parameters together: factors of each one's own rate.

`schedule=NAME` names them; any torch.optim.lr_scheduler can stand there as well (optim.scheduler, optim.interval).
"""

import math
from functools import partial

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR


def warmup_polynomial(
    optimizer: Optimizer,
    *,
    warmup_steps: int = 0,
    decay_start_step: int | None = None,
    decay_steps: int | None = None,
    power: float = 2.0,
    end: float = 0.0,
    total_steps: int | None = None,
) -> LambdaLR:
    """Linear from 0 to 1 over warmup_steps, 1 until decay_start_step, then ((end of decay - step) / decay_steps)^power
    down to `end`: that of MLPerf's DLRM (8000, 48000, 24000, power 2).

    decay_start_step: null: once warm
    decay_steps: null: until the last of total_steps, which the caller knows
    """
    _check(warmup_steps=warmup_steps, power=power)
    if decay_start_step is None:
        decay_start_step = warmup_steps
    if decay_start_step < warmup_steps:
        raise ValueError(f"decay_start_step={decay_start_step}: comes before warmup_steps={warmup_steps} are over")
    if decay_steps is not None and decay_steps < 1:
        raise ValueError(f"decay_steps={decay_steps}: must be at least 1, or null")
    if decay_steps is None:
        decay_steps = max((total_steps or 0) - decay_start_step, 1)
    return LambdaLR(optimizer, partial(_polynomial, warmup_steps, decay_start_step, decay_steps, power, end))


def warmup_cosine(
    optimizer: Optimizer, *, warmup_steps: int = 0, end: float = 0.0, total_steps: int | None = None
) -> LambdaLR:
    """Linear from 0 to 1 over warmup_steps, then half a cosine to `end` at total_steps (Loshchilov & Hutter 2017)."""
    _check(warmup_steps=warmup_steps)
    return LambdaLR(optimizer, partial(_cosine, warmup_steps, max((total_steps or 0) - warmup_steps, 1), end))


def _check(**values: float) -> None:
    for name, value in values.items():
        if value < 0:
            raise ValueError(f"{name}={value}: must not be negative")


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
