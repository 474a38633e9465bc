"""Loss against compute: what the runs of a sweep of sizes say about each model, on a sample whose teacher is known."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from recsys.evaluation.resampling import student_bound

MIN_RUNS = 4  # runs of a model on the frontier, from which a line has an interval


ABOUT = (
    "Each dot is a run. A line is the power law of a model's frontier, the runs that no cheaper run beats. Operations "
    "are those of matrix products, forward and backward; lookups are left out, and lists count with their greatest "
    "length."
)


@dataclass(frozen=True)
class ScalingRun:
    """A run: floating-point operations of its training, and its test logloss above the teacher's."""

    name: str
    compute: float
    excess: float


@dataclass(frozen=True)
class ScalingFit:
    """Power law excess = factor * compute^-exponent of a model's frontier.

    frontier: the runs that no run with less compute beats
    low, high: interval of the exponent (Student's t of the residuals)
    """

    frontier: tuple[ScalingRun, ...]
    exponent: float
    low: float
    high: float
    factor: float

    def at(self, compute: float) -> float:
        """Return the excess at this compute."""
        return float(self.factor * compute**-self.exponent)


def sentence(model: str, runs: Sequence[ScalingRun]) -> str:
    """Return what the fit of a model says, in one line."""
    law = fit(runs)
    if law is None:
        return f"{model}: fewer than {MIN_RUNS} of {len(runs)} runs are on the frontier of loss against compute: no fit"
    return (
        f"{model}: test logloss above the teacher's falls as compute^-{law.exponent:.3f} (95 %: {law.low:.3f} to "
        f"{law.high:.3f}), by {1 - 2**-law.exponent:.1%} for twice the compute; {len(law.frontier)} of {len(runs)} "
        "runs are on the frontier"
    )


def frontier(runs: Sequence[ScalingRun]) -> tuple[ScalingRun, ...]:
    """Return the runs that no run with less or equal compute beats, by compute."""
    best: list[ScalingRun] = []
    for run in sorted(runs, key=lambda r: (r.compute, r.excess)):
        if not best or run.excess < best[-1].excess:
            best.append(run)
    return tuple(best)


def fit(runs: Sequence[ScalingRun]) -> ScalingFit | None:
    """Fit a power law to a model's frontier by least squares of the logarithms; None for fewer than MIN_RUNS runs."""
    on = frontier([r for r in runs if r.excess > 0 and r.compute > 0])
    if len(on) < MIN_RUNS:
        return None
    x, y = (np.log([getattr(r, name) for r in on]) for name in ("compute", "excess"))
    slope, intercept = np.polyfit(x, y, 1)
    freedom = len(on) - 2
    variance = float(((y - slope * x - intercept) ** 2).sum()) / freedom / float(((x - x.mean()) ** 2).sum())
    half = student_bound(freedom) * math.sqrt(variance)
    return ScalingFit(on, -float(slope), -float(slope) - half, -float(slope) + half, math.exp(intercept))
