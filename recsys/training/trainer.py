"""Build the LightningModule and the Trainer of a run from its config."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.loggers import Logger

from recsys.base.console import say
from recsys.data.features import Fitted
from recsys.data.loader.training_rows import load_factors
from recsys.data.prepare.prepared import Prepared
from recsys.distributed.ranks import ALONE, Ranks, ensure_process_group
from recsys.evaluation.metrics_table import COUNTS
from recsys.job.build import make, make_scheduler
from recsys.job.check_config import monitor_of
from recsys.job.run_config import RunConfig
from recsys.schema.run_schema import seconds_of
from recsys.sharding.sharded_model import Placement
from recsys.sharding.strategy import ShardedStrategy
from recsys.training.callbacks import EvaluationBar, Interrupts, MaxTime, Record, StopEarly, Throughput
from recsys.training.checkpoints import Checkpoints
from recsys.training.epoch_loop import EpochLoop
from recsys.training.loaders import local_device
from recsys.training.loss_scale import Float16
from recsys.training.module import RecsysModule
from recsys.training.module_settings import Beginning, Updates
from recsys.training.profiling import Overfit, Profile

TF32_CAPABILITY = 8  # CUDA's compute capability of Ampere
COLLECTIVE_STEPS = 5  # number of steps that are profiled in runs with several processes


def build_module(
    cfg: RunConfig,
    fitted: Fitted,
    ranks: Ranks,
    folder: Path | None = None,
    total_steps: int | None = None,
    beginning: Beginning | None = None,
) -> RecsysModule:
    """Return the module for fitted data, after seeding. Its tables are created by setup_model, which the Trainer calls.

    Args:
        folder: folder with the vocabularies, for sharding.cache_hit_rate.
        total_steps: number of steps of the whole training.
        beginning: what a training begins with.
    """
    features, kind = fitted.features, cfg.kind
    candidates = kind.candidates(fitted)
    hit_rate = cfg.sharding.cache_hit_rate
    pl.seed_everything(cfg.seed, workers=True, verbose=False)
    if not torch.cuda.is_available():  # Lightning has each step of an optimizer load a driver's library to ask again
        os.environ.pop("PYTORCH_NVML_BASED_CUDA_CHECK", None)
    return RecsysModule(
        lambda: cfg.kind.build_task(cfg, features, torch.device("meta"), candidates),
        Placement(
            cfg.sharding,
            cfg.optim.sparse,
            batch_size=cfg.trainer.batch_size // ranks.world_size,
            local_world_size=ranks.local_world_size,
            load_factors=load_factors(folder, hit_rate) if hit_rate and folder else None,
            vectors=fitted.initial_tables,
        ),
        Updates(
            make_optimizer=make(cfg.optim.dense, "optim.dense"),
            make_scheduler=make_scheduler(cfg, total_steps) if cfg.optim.scheduler is not None else None,
            by_step=cfg.optim.interval == "step",
            accumulate=cfg.trainer.accumulate,
            clip_norm=cfg.optim.clip_norm,
            ema=cfg.optim.ema,
            monitor=monitor_of(cfg, cfg.checkpoint.monitor),
            recompute=cfg.trainer.recompute,
            compile=cfg.trainer.compile,
            cuda_graphs=cfg.trainer.cuda_graphs,
            steps=total_steps or 0,
            precision=cfg.precision,
            loss_scale=cfg.trainer.loss_scale,
            pipeline=cfg.pipeline,
        ),
        beginning,
        evaluator=kind.evaluator(cfg, features, candidates),
        log_every_n_steps=cfg.trainer.log_every_n_steps,
    )


def restored_module(cfg: RunConfig, fitted: Fitted, checkpoint: Path) -> RecsysModule:
    """Return the module with a checkpoint's weights, unsharded and on the CPU.

    Any number of processes and any plan may have written the checkpoint. Creates a process group of one process if
    there is none.
    """
    ensure_process_group()
    cfg = cfg.changed({"sharding.types": ["none"], "trainer.accelerator": "cpu"})
    module = build_module(cfg, fitted, ALONE)
    module.setup_model(torch.device("cpu"))
    module.load_checkpoint(checkpoint, training=False)
    return module.eval()


def build_trainer(
    cfg: RunConfig,
    path: Path,
    ranks: Ranks,
    prepared: Prepared,
    loggers: list[Logger] | None = None,
    windows: int = 0,
    validate_from: int = 0,
) -> tuple[pl.Trainer, Throughput]:
    """Return a Lightning Trainer with the ShardedStrategy and the run's callbacks, and its Throughput.

    Args:
        loggers: what the metrics are logged to, on rank 0; None logs nothing on any rank.
        windows: number of windows of training rows, each of which is an epoch; 0 without windows.
        validate_from: step before which no validation is made.
    """
    accelerator, precision, every = cfg.accelerator, cfg.precision, cfg.trainer.validate_every_n_steps
    throughput = Throughput(
        cfg.trainer.log_every_n_steps, cfg.trainer.accumulate, prepared.rows("train") if windows else None
    )
    _choose_precision(cfg)
    trainer = pl.Trainer(
        accelerator="cpu" if accelerator == "cpu" else "gpu",
        strategy=ShardedStrategy(local_device(accelerator, ranks.local_rank), ranks.local_rank, ranks.local_world_size),
        devices=ranks.local_world_size,
        num_nodes=ranks.world_size // ranks.local_world_size,
        precision=None if precision == Float16.precision else precision,  # type: ignore[arg-type]
        plugins=[Float16("cpu" if accelerator == "cpu" else "cuda")] if precision == Float16.precision else None,
        max_epochs=windows or cfg.trainer.max_epochs,
        reload_dataloaders_every_n_epochs=1 if windows else 0,
        max_steps=cfg.trainer.max_steps,
        log_every_n_steps=cfg.trainer.log_every_n_steps,
        num_sanity_val_steps=0,
        # with accumulation, batches are counted within an epoch, because a step never spans two epochs
        check_val_every_n_epoch=None if every and cfg.trainer.accumulate == 1 else cfg.trainer.validate_every,
        val_check_interval=every,
        use_distributed_sampler=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        callbacks=_callbacks(cfg, path, ranks, prepared, throughput, log=loggers is not None, windows=bool(windows)),
        logger=loggers or False,
    )
    trainer.fit_loop.epoch_loop = EpochLoop(
        trainer,
        accumulate=cfg.trainer.accumulate,
        log_every_n_steps=cfg.trainer.log_every_n_steps,
        save_every_n_steps=cfg.checkpoint.every_n_steps,
        validate_from=validate_from,
    )
    # private: with max_steps, Lightning takes a run that ended with an epoch for one within it, and ends after a step
    trainer.fit_loop._iteration_based_training = lambda: False  # type: ignore[method-assign]
    return trainer, throughput


def _callbacks(
    cfg: RunConfig, path: Path, ranks: Ranks, prepared: Prepared, throughput: Throughput, *, log: bool, windows: bool
) -> list[pl.Callback]:
    """Return the callbacks of a run, in the order in which Lightning calls them."""
    checkpoints = Checkpoints(
        path / "checkpoints",
        every_n_steps=cfg.checkpoint.every_n_steps,
        every_minutes=cfg.checkpoint.every_minutes,
        monitor=monitor_of(cfg, cfg.checkpoint.monitor),
        keep_best=cfg.checkpoint.keep_best,
        keep_last=cfg.checkpoint.keep_last,
        newest_is_best=windows,
    )
    bar = EvaluationBar(checkpoints.monitor, checkpoints.compared)
    callbacks = [throughput, bar, Record(path), Interrupts(cfg.trainer.save_on_interrupt)]
    if cfg.trainer.max_time is not None:
        callbacks.append(MaxTime(seconds_of(cfg.trainer.max_time)))
    if cfg.debug.name == "overfit":
        callbacks.append(Overfit())
    if cfg.debug.profile_steps:
        callbacks.append(Profile(cfg.debug.profile_steps, path / "profile" / "trace.json.gz", throughput.resume_clock))
    elif ranks.world_size > 1:
        callbacks.append(Profile(COLLECTIVE_STEPS, None, throughput.resume_clock))
    stopping = cfg.trainer.early_stopping
    if stopping.patience is not None and cfg.trainer.max_epochs > 1 and not prepared.rows("validation"):
        say(f"all {cfg.trainer.max_epochs} epochs are trained; to stop early, set data.split.validation")
    elif stopping.patience is not None and cfg.trainer.max_epochs > 1:
        callbacks.append(StopEarly(monitor_of(cfg, stopping.monitor), stopping.patience))
    callbacks.append(checkpoints)
    if "wandb" in cfg.logger and log:
        from recsys.training.wandb_artifacts import Tracking  # wandb takes a while to import

        callbacks.append(Tracking(prepared))
    return callbacks


def _choose_precision(cfg: RunConfig) -> None:
    """Choose how GPUs multiply float32 matrices, and say what a precision that was not typed is."""
    _set_tf32(cfg.tf32, cfg.accelerator, typed=cfg.trainer.tf32 is not None)
    precision = cfg.precision
    if cfg.trainer.precision == "auto" or (cfg.trainer.precision is None and cfg.accelerator == "gpu"):
        rest = ", and TensorFloat-32 for the rest" if cfg.tf32 else ""
        other = "" if precision == "32-true" else "; trainer.precision=32-true computes in float32"
        say(f"trainer.precision: {precision} on this machine{rest}{other}")
    if precision == Float16.precision and cfg.accelerator == "cpu":
        say(f"trainer.precision={precision}: CPUs compute slowly in float16; bf16-mixed is faster")


def _set_tf32(wanted: bool, accelerator: str, *, typed: bool) -> None:
    """Choose how GPUs multiply float32 matrices, and say where a value that was typed has no effect."""
    if accelerator == "gpu" and (not wanted or torch.cuda.get_device_capability()[0] >= TF32_CAPABILITY):
        torch.set_float32_matmul_precision("high" if wanted else "highest")
    elif wanted and typed:
        say(f"trainer.tf32=true: has no effect on {'CPUs' if accelerator == 'cpu' else 'GPUs before Ampere'}")


def metrics_of(values: Mapping[str, Any], split: str) -> dict[str, Any]:
    """Return the metrics of one split without the prefix that Lightning adds ('test/auc' -> 'auc')."""
    metrics = {k.removeprefix(f"{split}/"): v for k, v in values.items() if k.startswith(f"{split}/")}
    return as_counts(metrics)


def as_counts(metrics: dict[str, Any]) -> dict[str, Any]:
    """Return the metrics with counts converted to int."""
    return {k: int(v) if k in COUNTS else v for k, v in metrics.items()}
