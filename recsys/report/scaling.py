"""Loss against compute: what the runs of a sweep of sizes say about each model, on a sample whose teacher is known."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

FEWEST = 4  # runs of a model on the frontier, from which a line has an interval
CONFIDENCE = 0.95


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
        return f"{model}: fewer than {FEWEST} of {len(runs)} runs are on the frontier of loss against compute: no fit"
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
    """Fit a power law to a model's frontier by least squares of the logarithms; None for fewer than FEWEST runs."""
    from scipy.stats import linregress, t

    on = frontier([r for r in runs if r.excess > 0 and r.compute > 0])
    if len(on) < FEWEST:
        return None
    line = linregress(np.log([r.compute for r in on]), np.log([r.excess for r in on]))
    half = float(t.ppf((1 + CONFIDENCE) / 2, len(on) - 2)) * float(line.stderr)
    return ScalingFit(
        on, -float(line.slope), -float(line.slope) - half, -float(line.slope) + half, math.exp(line.intercept)
    )
