"""python -m recsys.evaluate run=RUN_DIR [split=validation] [trainer.devices=2] [sharding=columnwise]

Restores a run's checkpoint, at this world size and plan, and measures it on the prepared rows of a split.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf

from recsys import cli
from recsys.errors import UserError
from recsys.progress import say

if TYPE_CHECKING:
    from recsys.data.loader import ParquetLoader
    from recsys.data.prepare import Prepared
    from recsys.launch import Ranks

SPLITS = ("train", "validation", "test")


def split_loader(
    cfg: DictConfig, prepared: Prepared, split: str, ranks: Ranks, *, training: bool = False
) -> ParquetLoader:
    """This rank's share of a split: in equal shuffled steps for training, every row in order otherwise."""
    from recsys.data.loader import ParquetLoader

    batch_size = cfg.trainer.batch_size if training else cfg.trainer.eval_batch_size
    return ParquetLoader(
        prepared.files(split),
        prepared.fitted.features,
        batch_size=max(batch_size // ranks.world_size, 1),
        training=training,
        shuffle=training and cfg.loader.shuffle,
        seed=cfg.seed,
        buffer_rows=cfg.loader.buffer_rows,
        rank=ranks.rank,
        world_size=ranks.world_size,
    )


def protocol(cfg: DictConfig, prepared: Prepared, checkpoint: Path | None) -> dict[str, Any]:
    """What the numbers mean: stamped into every result's file."""
    info = prepared.info
    return {
        "data": info["name"], "split": info["split"], "rows": info["rows"], "bad_rows": info["bad_rows"],
        "seed": cfg.seed, "checkpoint": checkpoint.name if checkpoint else None,
        "metrics": "exact, over all rows of the split", "label": cfg.data.label.column,
    }


def open_run(run: str) -> tuple[DictConfig, Path]:
    """A run's config and folder. Raises UserError where there is none."""
    path = Path(run)
    if not (path / "config.yaml").exists():
        raise UserError(f"run={run}: holds no run (no config.yaml)")
    cfg = OmegaConf.load(path / "config.yaml")
    assert isinstance(cfg, DictConfig)
    return cfg, path


def choose_checkpoint(path: Path, name: str) -> Path:
    """best, last, or a folder's name under checkpoints/."""
    from recsys.callbacks import best_checkpoint, newest_checkpoint

    found = {"best": best_checkpoint, "last": newest_checkpoint}.get(name, lambda p: p / "checkpoints" / name)(path)
    if found is None or not (found / ".metadata").exists():
        there = sorted(p.name for p in (path / "checkpoints").iterdir() if not p.name.startswith("."))
        raise UserError(f"checkpoint={name}: not in {path}/checkpoints (there: {', '.join(there) or 'none'})")
    return found


def evaluate(
    run: str, split: str = "test", checkpoint: str = "best", *, cfg: DictConfig | None = None
) -> dict[str, Any]:
    """Collective: metrics of a run's checkpoint on a split, as in its metrics.json; {} on ranks other than 0.

    cfg: the run's config with other devices or another sharding; by default as it was trained.
    """
    from recsys.config import accelerator_of, data_config
    from recsys.data.prepare import prepare
    from recsys.launch import process_group, started_by_torchrun
    from recsys.train import _of
    from recsys.training import build_module, build_trainer

    if split not in SPLITS:
        raise UserError(f"split={split}: must be train, validation or test")
    saved, path = open_run(run)
    cfg = cfg or saved
    best = choose_checkpoint(path, checkpoint)
    prepared = prepare(data_config(_typed(cfg)))
    if not prepared.rows(split):
        raise UserError(f"split={split}: the data has no such rows")
    with process_group(accelerator_of(cfg), cfg.trainer.threads, started_by_torchrun()) as ranks:
        module = build_module(cfg, prepared.fitted.features, ranks)
        trainer, _ = build_trainer(cfg, path, ranks, prepared, None, loggers=False)
        [found] = trainer.test(module, split_loader(cfg, prepared, split, ranks), ckpt_path=best, verbose=False)
        if ranks.rank != 0:
            return {}
        return {split: _of(found, "test"), "protocol": protocol(cfg, prepared, best)}


def _typed(cfg: DictConfig) -> DictConfig:
    from recsys.schema import TrainConfig

    typed = OmegaConf.merge(OmegaConf.structured(TrainConfig), cfg)
    assert isinstance(typed, DictConfig)
    return typed


def _command(cfg: DictConfig) -> None:
    from recsys.config import check
    from recsys.launch import spawn, started_by_torchrun

    saved, path = open_run(cfg.run)
    changed = _typed(OmegaConf.merge(saved, {k: cfg[k] for k in ("trainer", "sharding") if cfg[k] is not None}))  # type: ignore[arg-type]
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
