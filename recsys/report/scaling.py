"""Loss against compute: what the runs of a sweep of sizes say about each model, on a sample whose teacher is known."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from recsys.evaluation.resampling import student_bound
from recsys.report.runs import ReportedRun, ReportedSweep

FEWEST = 4  # runs of a model on the frontier, from which a line has an interval
POINTS = "sweep.points"
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
    on = frontier([r for r in runs if r.excess > 0 and r.compute > 0])
    if len(on) < FEWEST:
        return None
    x, y = (np.log([getattr(r, name) for r in on]) for name in ("compute", "excess"))
    slope, intercept = np.polyfit(x, y, 1)
    freedom = len(on) - 2
    variance = float(((y - slope * x - intercept) ** 2).sum()) / freedom / float(((x - x.mean()) ** 2).sum())
    half = student_bound(freedom) * math.sqrt(variance)
    return ScalingFit(on, -float(slope), -float(slope) - half, -float(slope) + half, math.exp(intercept))


def scaling_runs(sweep: ReportedSweep) -> dict[str, list[ScalingRun]]:
    """Return the finished runs of a sweep of sizes by model; empty if it is no such sweep, or no teacher is known."""
    found: dict[str, list[ScalingRun]] = {}
    if not any(POINTS in trial.values for trial in sweep.trials):
        return found
    for run in (run for trial in sweep.trials for run in trial.runs):
        metrics: Mapping[str, Any] = run.metrics or {}
        best, own = metrics.get("bayes", {}).get("logloss"), run.test.get("logloss")
        compute = None if best is None or own is None else training_flops(run)
        if compute is not None and best is not None and own is not None:
            found.setdefault(run.model, []).append(ScalingRun(run.name, compute, own - best))
    return found


def training_flops(run: ReportedRun) -> float | None:
    """Return the floating-point operations of the matrix products of a run's training, forward and backward.

    Lookups are left out. Lists have the greatest length that the config allows. None if they cannot be counted.
    """
    import torch

    from recsys.config.compose import load_config
    from recsys.features import FeatureSpec
    from recsys.job.run_config import RunConfig
    from recsys.sharding.estimate.dense_work import dense_work, few_rows

    samples = ((run.metrics or {}).get("train") or {}).get("samples")
    file = run.path / "features.json"
    if not samples or not file.exists():
        return None
    cfg = RunConfig.of(load_config(run.path / "config.yaml"))
    features = FeatureSpec.load(file)
    lengths = {name: float(c.longest or c.mean_length or 1) for name, c in cfg.data.sparse_columns.items()}
    with torch.random.fork_rng(devices=[]):
        task = cfg.kind.build_task(cfg, few_rows(features), torch.device("cpu"))
    work = dense_work(task, features, lengths, cfg.trainer.batch_size, half=False, compiled=False)
    return None if work is None else sum(k.flops for k in work.kernels) / cfg.trainer.batch_size * samples
