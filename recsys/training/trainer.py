"""Build the LightningModule, the Trainer, loaders and loggers of a run from its config."""

import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.loggers import Logger

from recsys.base.console import is_heard, say, say_once
from recsys.config.compose import without_secrets
from recsys.data.features import Fitted
from recsys.data.loader.parquet_loader import ParquetLoader
from recsys.data.loader.training_rows import load_factors, untrained_unknowns
from recsys.data.prepare.prepared import Prepared
from recsys.distributed.ranks import ALONE, Ranks, ensure_process_group
from recsys.evaluation.metrics_table import COUNTS
from recsys.files import starts
from recsys.files.atomic import write_json
from recsys.job.build import make, make_scheduler
from recsys.job.check_early import monitor_of
from recsys.job.run_config import RunConfig, seconds_of
from recsys.labels import kept_negatives
from recsys.sharding.sharded_model import Placement
from recsys.sharding.strategy import ShardedStrategy
from recsys.training.callbacks import EvaluationBar, EventLogger, Interrupts, MaxTime, StopEarly, Throughput, csv_logger
from recsys.training.checkpoints import Checkpoints
from recsys.training.loss_scale import Float16
from recsys.training.module import RecsysModule
from recsys.training.module_settings import Beginning, Updates
from recsys.training.pipelines import AHEAD, BASE, KINDS, NONE
from recsys.training.profiling import Overfit, Profile
from recsys.training.run_state import RunState

TF32_CAPABILITY = 8  # CUDA's compute capability of Ampere
LONGEST_TAG = 64  # characters, that W&B takes
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


def steps_of(cfg: RunConfig, batches: int) -> int:
    """Return the number of optimizer steps of the whole training. batches: number of batches per epoch."""
    steps = -(-batches // cfg.trainer.accumulate) * cfg.trainer.max_epochs
    return min(steps, cfg.trainer.max_steps) if cfg.trainer.max_steps > 0 else steps


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
    start: RunState | None,
    *,
    loggers: bool = True,
    windows: int = 0,
) -> tuple[pl.Trainer, Throughput]:
    """Return a Lightning Trainer with the ShardedStrategy and the run's callbacks and loggers, and its Throughput.

    Args:
        start: the state to go on from; None for a new run.
        windows: number of windows of training rows, each of which is an epoch; 0 without windows.
    """
    accelerator = cfg.accelerator
    rows = prepared.rows("train") if windows else None
    throughput = Throughput(cfg.trainer.log_every_n_steps, cfg.trainer.accumulate, rows)
    checkpoints = Checkpoints(
        path / "checkpoints",
        every_n_steps=cfg.checkpoint.every_n_steps,
        every_minutes=cfg.checkpoint.every_minutes,
        monitor=monitor_of(cfg, cfg.checkpoint.monitor),
        keep_best=cfg.checkpoint.keep_best,
        keep_last=cfg.checkpoint.keep_last,
        newest_is_best=bool(windows),
    )
    callbacks: list[pl.Callback] = [
        throughput,
        EvaluationBar(checkpoints.monitor, checkpoints.compared),
        _Record(path),
        Interrupts(cfg.trainer.save_on_interrupt),
    ]
    if cfg.trainer.max_time is not None:
        callbacks.append(MaxTime(seconds_of(cfg.trainer.max_time)))
    if cfg.debug.name == "overfit":
        callbacks.append(Overfit())
    if cfg.debug.profile_steps:
        callbacks.append(Profile(cfg.debug.profile_steps, path / "profile" / "trace.json.gz", throughput.resume_clock))
    elif ranks.world_size > 1:
        callbacks.append(Profile(COLLECTIVE_STEPS, None, throughput.resume_clock))
    c = cfg.trainer.early_stopping
    if c.patience is not None and cfg.trainer.max_epochs > 1 and not prepared.rows("validation"):
        say(f"all {cfg.trainer.max_epochs} epochs are trained; to stop early, set data.split.validation")
    elif c.patience is not None and cfg.trainer.max_epochs > 1:
        callbacks.append(StopEarly(monitor_of(cfg, c.monitor), c.patience))
    callbacks.append(checkpoints)
    every = cfg.trainer.validate_every_n_steps
    if "wandb" in cfg.logger and loggers:
        from recsys.training.wandb_artifacts import Tracking  # wandb takes a while to import

        callbacks.append(Tracking(prepared))
    _set_tf32(cfg.tf32, accelerator, typed=cfg.trainer.tf32 is not None)
    precision = cfg.precision
    if cfg.trainer.precision == "auto" or (cfg.trainer.precision is None and accelerator == "gpu"):
        rest = ", and TensorFloat-32 for the rest" if cfg.tf32 else ""
        other = "" if precision == "32-true" else "; trainer.precision=32-true computes in float32"
        say(f"trainer.precision: {precision} on this machine{rest}{other}")
    if precision == Float16.precision and accelerator == "cpu":
        say(f"trainer.precision={precision}: CPUs compute slowly in float16; bf16-mixed is faster")
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
        callbacks=callbacks,
        logger=build_loggers(cfg, path, ranks, start) if loggers else False,
    )
    # private: with max_steps, Lightning takes a run that ended with an epoch for one within it, and ends after a step
    trainer.fit_loop._iteration_based_training = lambda: False  # type: ignore[method-assign]
    return trainer, throughput


def _set_tf32(wanted: bool, accelerator: str, *, typed: bool) -> None:
    """Choose how GPUs multiply float32 matrices, and say where a value that was typed has no effect."""
    if accelerator == "gpu" and (not wanted or torch.cuda.get_device_capability()[0] >= TF32_CAPABILITY):
        torch.set_float32_matmul_precision("high" if wanted else "highest")
    elif wanted and typed:
        say(f"trainer.tf32=true: has no effect on {'CPUs' if accelerator == 'cpu' else 'GPUs before Ampere'}")


def build_loggers(cfg: RunConfig, path: Path, ranks: Ranks, start: RunState | None) -> list[Logger] | bool:
    """Return the CSV logger and the loggers of `logger=`; False on ranks other than 0.

    Args:
        start: the state to go on from, whose steps the CSV file keeps; None for a new run.
    """
    if ranks.rank != 0:
        return False
    loggers: list[Logger] = [csv_logger(path, start.batches if start else None)]
    for name, node in cfg.logger.items():
        options: dict[str, Any] = {}
        if name == "wandb":
            file = path / "wandb_id"  # a resumed run keeps its id, so that `wandb sync --append` continues it
            if start is None or not file.exists():
                file.write_text(uuid.uuid4().hex[:8])
            model = str(cfg.model["_target_"]).rpartition(".")[2]
            own = [tag for tag in os.environ.get("WANDB_TAGS", "").split(",") if tag]  # W&B's own, if it is given none
            tags = node.get("tags") or own or [tag[:LONGEST_TAG] for tag in (cfg.data.name, model)]
            options = {"tags": tags, "id": file.read_text(encoding="utf-8"), "resume": "allow"}
        loggers.append(make(node, f"logger.{name}")(save_dir=str(path), **options))
    if is_heard():
        loggers.append(EventLogger())
    for logger in loggers[1:]:
        logger.log_hyperparams(without_secrets(cfg.plain) | {"made_by": starts.line(path)})
    return loggers


def split_loader(
    cfg: RunConfig,
    prepared: Prepared,
    split: str,
    ranks: Ranks,
    *,
    training: bool = False,
    thinned: bool = False,
    files: list[Path] | None = None,
) -> ParquetLoader:
    """Return the loader of this rank's share of a split, or of some of its files.

    For training it is shuffled and all ranks have the same number of batches; otherwise it reads every row in order.
    Where training rows are measured, those that are left of the negatives stand for all of them.

    thinned: let negatives count once, as in training
    """
    batch_size = cfg.trainer.batch_size if training else cfg.trainer.eval_batch_size
    fitted = prepared.fitted
    files = files or prepared.files(split)
    device = local_device(cfg.accelerator, ranks.local_rank)
    pipeline = cfg.pipeline if training else BASE
    negatives = kept_negatives(fitted.labels) if split == "train" and not (training or thinned) else 1.0
    unknown = {}
    if training and cfg.loader.unknown and (names := untrained_unknowns(prepared)):
        unknown = dict.fromkeys(names, cfg.loader.unknown)
        if ranks.rank == 0:
            shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if names[5:] else "")
            share = f"{100 * cfg.loader.unknown:g} %"
            say_once(f"{share} of the ids of {shown} train the vector of new values (loader.unknown)")
    return ParquetLoader(
        files,
        fitted.features,
        vectors=fitted.matrices,
        batch_size=max(batch_size // ranks.world_size, 1),
        training=training,
        shuffle=training and cfg.loader.shuffle,
        seed=cfg.seed,
        buffer_rows=cfg.loader.buffer_rows,
        balance_lists=training and cfg.loader.balance_lists,
        negatives=negatives,
        unknown=unknown,
        keep_bytes=cfg.loader.keep_mb << 20 if training else 0,
        rank=ranks.rank,
        world_size=ranks.world_size,
        epochs=cfg.trainer.max_epochs if training else None,
        limit=cfg.debug.train_batches if training else cfg.debug.eval_batches,
        check=prepared.check_in_background(files[ranks.rank :: ranks.world_size]),
        device=None if pipeline == NONE else device,
        upcoming=AHEAD if pipeline in KINDS else 0,
    )


def loader_on_cpu(cfg: RunConfig, prepared: Prepared, split: str, *, thinned: bool = False) -> ParquetLoader:
    """Return the loader of all rows of a split in order, for one process that scores them on the CPU, GPU or not.

    thinned: let negatives count once, as in training
    """
    return split_loader(cfg.changed({"trainer.accelerator": "cpu"}), prepared, split, ALONE, thinned=thinned)


def collectives_of(trainer: pl.Trainer) -> dict[str, float]:
    """Return the share of the step time spent in collectives, including waiting for other ranks; {} if not measured.

    Collectives are part of forward, backward and optimizer.
    """
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if isinstance(callback, Profile) and callback.share is not None:
            return {"collectives": callback.share}
    return {}


def metrics_of(values: Mapping[str, Any], split: str) -> dict[str, Any]:
    """Return the metrics of one split without the prefix that Lightning adds ('test/auc' -> 'auc')."""
    metrics = {k.removeprefix(f"{split}/"): v for k, v in values.items() if k.startswith(f"{split}/")}
    return as_counts(metrics)


def as_counts(metrics: dict[str, Any]) -> dict[str, Any]:
    """Return the metrics with counts converted to int."""
    return {k: int(v) if k in COUNTS else v for k, v in metrics.items()}


class _Record(pl.Callback):
    """Callback that writes plan.json when training starts, logs it, and saves metrics.csv after each validation."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_fit_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        assert isinstance(module, RecsysModule)
        if trainer.is_global_zero:
            plan: dict[str, Any] = {
                "world_size": trainer.world_size,
                "hosts": trainer.num_nodes,
                "tables": module.sharded.plan,
            }
            write_json(self.path / "plan.json", plan)
            for logger in trainer.loggers[1:]:
                logger.log_hyperparams({"plan": plan})

    def on_validation_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        if trainer.is_global_zero and trainer.loggers:
            trainer.loggers[0].save()  # sweeps read the metrics.csv of running trials


def local_device(accelerator: str, local_rank: int) -> torch.device:
    """Return the CPU, or the GPU of this local rank."""
    return torch.device("cpu") if accelerator == "cpu" else torch.device("cuda", local_rank)
