"""python -m recsys.evaluate run=RUN_DIR [split=validation] [trainer.devices=2] [sharding=columnwise]
python -m recsys.evaluate run=[RUN_DIR,RUN_DIR,...] [split=validation]
python -m recsys.evaluate run=RUN_DIR importance=true [importance.together=[[city,zip]]]

Restores a run's checkpoint, with the number of processes and the sharding that the command names, and measures it on
the prepared rows of a split. Of several runs, it measures each and the mean of their predictions.
With importance=true, it measures which raw columns a ranking model needs: each is shuffled among the rows.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from recsys.base.errors import UserError
from recsys.cli import command_line
from recsys.job.fetched_runs import local_run
from recsys.schema.evaluate_schema import EvaluateConfig, ImportanceConfig


def _command(cfg: EvaluateConfig) -> None:
    cfg.run = [str(local_run(run, checkpoint=cfg.checkpoint)) for run in cfg.run]
    from recsys.distributed.launch import spawn
    from recsys.distributed.ranks import started_by_torchrun
    from recsys.job.check_built import check_job
    from recsys.training.evaluate_run import evaluate, show
    from recsys.training.run_dir import choose_checkpoint, open_run

    if cfg.importance != ImportanceConfig():
        _measure_importance(cfg)
        return
    if len(cfg.run) != 1:
        _evaluate_ensemble(cfg)
        return
    [run] = cfg.run
    saved, path = open_run(run)
    groups: dict[str, Any] = {name: asdict(getattr(cfg, name)) for name in ("trainer", "protocol", "metrics")}
    changes = {f"{name}.{k}": v for name, keys in groups.items() for k, v in keys.items() if v is not None}
    if cfg.sharding is not None:
        changes["sharding"] = asdict(cfg.sharding)
    changed = saved.changed(changes)
    check_job(changed, trains=False)
    choose_checkpoint(path, cfg.checkpoint)
    if changed.trainer.devices > 1 and started_by_torchrun() is None:
        job = {"run": run, "split": cfg.split, "checkpoint": cfg.checkpoint, "config": changed.plain}
        spawn(changed.trainer.devices, "recsys.training.evaluate_run:evaluate_rank", job)
        return
    show(evaluate(run, cfg.split, cfg.checkpoint, cfg=changed), path, cfg.split)


def _measure_importance(cfg: EvaluateConfig) -> None:
    """Measure which raw columns a run's model needs."""
    from recsys.training import importance
    from recsys.training.run_dir import open_run

    if len(cfg.run) != 1:
        raise UserError(f"importance: is measured for one run, and run={cfg.run} names {len(cfg.run)}")
    found = importance.importance(cfg.run[0], cfg.split, cfg.checkpoint, cfg.importance)
    importance.show(found, open_run(cfg.run[0])[1], cfg.split)


def _evaluate_ensemble(cfg: EvaluateConfig) -> None:
    """Measure several runs and the mean of their predictions."""
    from recsys.training.evaluate_run import evaluate_ensemble
    from recsys.training.results import show_tables
    from recsys.training.run_dir import choose_checkpoint, open_run

    if not cfg.run:
        raise UserError("run=[]: name one run, or a list of two or more")
    for key in ("trainer", "protocol", "metrics"):
        if given := [name for name, value in asdict(getattr(cfg, key)).items() if value is not None]:
            raise UserError(f"{key}.{given[0]}: applies to a single run; leave it out")
    if cfg.sharding is not None:
        raise UserError("sharding: applies to a single run; leave it out")
    for run in cfg.run:
        choose_checkpoint(open_run(run)[1], cfg.checkpoint)
    show_tables(evaluate_ensemble(cfg.run, cfg.split, cfg.checkpoint))


def main() -> None:
    """Run the command with this process's overrides."""
    command_line.run("evaluate", _command)


if __name__ == "__main__":
    main()
