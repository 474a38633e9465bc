"""python -m recsys.evaluate run=RUN_DIR [split=validation] [trainer.devices=2] [sharding=columnwise]

Restores a run's checkpoint, with the number of processes and the sharding that the command names, and measures it on
the prepared rows of a split.
"""

from __future__ import annotations

from omegaconf import DictConfig, OmegaConf

from recsys import cli


def _command(cfg: DictConfig) -> None:
    from recsys.config.check import check
    from recsys.distributed.launch import spawn
    from recsys.distributed.ranks import started_by_torchrun
    from recsys.training.evaluate import evaluate, show
    from recsys.training.run_dir import choose_checkpoint, open_run

    saved, path = open_run(cfg.run)
    changed = saved.copy()
    for group in ("trainer", "protocol", "metrics"):
        for key, value in cfg[group].items():
            if value is not None:
                changed[group][key] = value
    if cfg.sharding is not None:
        changed.sharding = cfg.sharding
    check(changed, trains=False)
    choose_checkpoint(path, cfg.checkpoint)
    if changed.trainer.devices > 1 and started_by_torchrun() is None:
        config = OmegaConf.to_container(changed, resolve=True)
        job = {"run": cfg.run, "split": cfg.split, "checkpoint": cfg.checkpoint, "config": config}
        spawn(changed.trainer.devices, "recsys.training.evaluate:evaluate_rank", job)
        return
    show(evaluate(cfg.run, cfg.split, cfg.checkpoint, cfg=changed), path, cfg.split)


def main() -> None:
    """Run the command with the overrides of sys.argv."""
    cli.run("evaluate", _command)


if __name__ == "__main__":
    main()
