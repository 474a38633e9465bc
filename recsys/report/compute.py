"""The operations of the trainings of a sweep of sizes, and what they reached."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from recsys.report.runs import ReportedRun, ReportedSweep
from recsys.report.scaling import ScalingRun

POINTS = "sweep.points"


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

    from recsys.interface.features import FeatureSpec
    from recsys.job.run_config import RunConfig
    from recsys.sharding.estimate.dense_work import dense_work, few_rows

    samples = ((run.metrics or {}).get("train") or {}).get("samples")
    file = run.path / "features.json"
    if not samples or not file.exists():
        return None
    cfg = RunConfig.load(run.path / "config.yaml")
    features = FeatureSpec.load(file)
    lengths = {name: float(c.longest or c.mean_length or 1) for name, c in cfg.data.sparse_columns.items()}
    with torch.random.fork_rng(devices=[]):
        task = cfg.kind.build_task(cfg, few_rows(features), torch.device("cpu"))
    work = dense_work(task, features, lengths, cfg.trainer.batch_size, half=False, compiled=False)
    return None if work is None else sum(k.flops for k in work.kernels) / cfg.trainer.batch_size * samples
