"""python -m recsys.evaluate run=RUN_DIR [split=validation] [trainer.devices=2] [sharding=columnwise]

Restores a run's checkpoint, at this world size and plan, and measures it on the prepared rows of a split.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from recsys import cli
from recsys.errors import UserError
from recsys.progress import say

SPLITS = ("train", "validation", "test")


def evaluate(
    run: str, split: str = "test", checkpoint: str = "best", *, cfg: DictConfig | None = None
) -> dict[str, Any]:
    """Collective: metrics of a run's checkpoint on a split, as in its metrics.json; {} on ranks other than 0.

    cfg: the run's config with other devices or another sharding; by default as it was trained.
    """
    from recsys.check import check_processes
    from recsys.closed_form import load, rank_split
    from recsys.config import accelerator_of, data_config, kind_of
    from recsys.data.prepare import prepare
    from recsys.details import Details
    from recsys.launch import process_group, started_by_torchrun
    from recsys.run_dir import check_ids, choose_checkpoint, open_run, protocol
    from recsys.training import build_module, build_trainer, metrics_of, split_loader

    if split not in SPLITS:
        raise UserError(f"split={split}: must be train, validation or test")
    saved, path = open_run(run)
    if split == "train" and kind_of(saved) != "predicts":
        raise UserError("split=train: its rows ask for nothing; must be validation or test")
    cfg = cfg or saved
    cfg.debug.eval_batches = None  # of all rows, also where the run was a short one
    started = started_by_torchrun()
    check_processes(cfg, 1 if started is None else started.world_size)
    best = choose_checkpoint(path, checkpoint)
    prepared = prepare(data_config(cfg))
    check_ids(path, prepared)
    if not prepared.rows(split):
        raise UserError(f"split={split}: the data has no such rows")
    if kind_of(cfg) == "closed_form":
        ranked = rank_split(load(cfg, prepared.fitted, best), cfg, prepared, split)
        return {split: ranked, "protocol": protocol(cfg, prepared, best)}
    t = cfg.trainer
    with process_group(accelerator_of(cfg), t.threads, started, t.timeout_minutes) as ranks:
        module = build_module(cfg, prepared.fitted, ranks, prepared.folder)
        trainer, _ = build_trainer(cfg, path, ranks, prepared, None, loggers=False)
        loader = split_loader(cfg, prepared, split, ranks)
        [found] = trainer.test(module, loader, ckpt_path=best, verbose=False)
        if ranks.rank != 0:
            return {}
        more = Details.of(module.metrics, loader, prepared.fitted, cfg.metrics)
        told = {"slices": {split: more.slices}} if more is not None and more.slices else {}
        return {split: metrics_of(found, "test"), **told, "protocol": protocol(cfg, prepared, best)}


def _command(cfg: DictConfig) -> None:
    from recsys.check import check
    from recsys.launch import spawn, started_by_torchrun
    from recsys.run_dir import choose_checkpoint, open_run

    saved, path = open_run(cfg.run)
    changed = saved.copy()
    for group in ("trainer", "ranking", "metrics"):
        for key, value in cfg[group].items():
            if value is not None:
                changed[group][key] = value
    if any(value is not None for value in cfg.ranking.values()):
        changed.checkpoint.monitor = changed.trainer.early_stopping.monitor = None  # may be of another protocol
    if cfg.sharding is not None:
        changed.sharding = cfg.sharding
    check(changed)
    choose_checkpoint(path, cfg.checkpoint)
    if changed.trainer.devices > 1 and started_by_torchrun() is None:
        config = OmegaConf.to_container(changed, resolve=True)
        job = {"run": cfg.run, "split": cfg.split, "checkpoint": cfg.checkpoint, "config": config}
        spawn(changed.trainer.devices, "evaluate", job)
        return
    show(evaluate(cfg.run, cfg.split, cfg.checkpoint, cfg=changed), path, cfg.split)


def show(metrics: dict[str, Any], path: Path, split: str) -> None:
    """Print the metrics, JSON to standard output, and keep them in the run's folder."""
    if not metrics:
        return
    from recsys.run_dir import write_json

    target = path / f"evaluate-{split}.json"
    write_json(target, metrics)
    sys.stdout.write(json.dumps(metrics[split]) + "\n")
    say(f"{metrics['protocol']['checkpoint']} on {metrics[split]['rows']:,} {split} rows; written to {target}")


def main() -> None:
    """The command line."""
    cli.run("evaluate", _command)


if __name__ == "__main__":
    main()
