"""A run from its config to metrics.json: check, prepare, fit, test."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig

from recsys.cli import interrupts
from recsys.cli.console import log_to, say
from recsys.config.check import check_late
from recsys.config.check_early import check_early, check_vector_widths
from recsys.config.compose import load_config
from recsys.config.resumed import run_to_resume
from recsys.config.run_config import RunConfig
from recsys.config.settings import device_of
from recsys.errors import UserError
from recsys.files import manifest
from recsys.files.atomic import write_json
from recsys.training.show_metrics import show

if TYPE_CHECKING:
    from recsys.data.check_data import SplitFiles
    from recsys.data.loader import ParquetLoader
    from recsys.data.prepare.prepared import Prepared
    from recsys.distributed.ranks import Ranks
    from recsys.training.run_dir import RunFolder


@dataclass(frozen=True)
class Run:
    """A finished run."""

    path: Path

    @property
    def metrics(self) -> dict[str, Any]:
        metrics = json.loads((self.path / "metrics.json").read_text())
        assert isinstance(metrics, dict)
        return metrics


def train(composed: DictConfig) -> Run:
    """Train as the config says: in this process, in `trainer.devices` processes on this machine, or in torchrun's."""
    from recsys.training import run_lock

    try:
        return _train(composed)
    finally:
        run_lock.release()


def _train(composed: DictConfig) -> Run:
    log_to(None)  # an earlier run in this process (a notebook) may have set its log file
    checked = None if "RANK" in os.environ else check_raw_files(composed)  # before the slow imports
    from recsys.distributed.launch import spawn
    from recsys.distributed.ranks import (
        any_restarted,
        check_shared,
        first_decides,
        process_group,
        started_by_torchrun,
    )
    from recsys.training.run_dir import RunFolder

    ranks = started_by_torchrun()
    if ranks is not None:
        t = composed.trainer
        with process_group(device_of(t.accelerator), t.threads, ranks, t.timeout_minutes):
            restarted = any_restarted(ranks)
            path, prepared, resumed = first_decides(ranks, lambda: _begin_on_rank_0(composed, ranks, restarted))
            check_shared(ranks, {"run_dir": path, "data.prepared": prepared.folder})
            fit(RunConfig.of(load_config(path / "config.yaml")), RunFolder(path, resumed), prepared, ranks)
        return Run(path)
    cfg, files = checked or check_raw_files(composed)
    folder, prepared = begin(cfg, files, cfg.trainer.devices)
    if cfg.trainer.devices == 1:
        with process_group(cfg.accelerator, cfg.trainer.threads) as alone:
            fit(cfg, folder, prepared, alone)
    else:
        job = {"run": str(folder.path), "prepared": str(prepared.folder), "resumed": folder.resumed}
        patience = {"patience_seconds": int(60 * cfg.trainer.timeout_minutes)} if cfg.trainer.save_on_interrupt else {}
        spawn(cfg.trainer.devices, "recsys.training.run:train_rank", job, **patience)
    return Run(folder.path)


def train_rank(run: str, prepared: str, resumed: bool) -> None:
    """Run one rank of a training run that `train` has checked, prepared and spawned."""
    from recsys.data.prepare.prepared import Prepared
    from recsys.distributed.ranks import process_group, started_by_torchrun
    from recsys.training.run_dir import RunFolder

    path = Path(run)
    log_to(path / "train.log")
    cfg = RunConfig.of(load_config(path / "config.yaml"))
    started = started_by_torchrun()
    with process_group(cfg.accelerator, cfg.trainer.threads, started, cfg.trainer.timeout_minutes) as ranks:
        fit(cfg, RunFolder(path, resumed), Prepared(Path(prepared)), ranks)


def begin(
    cfg: RunConfig, files: SplitFiles | None, world_size: int, restarted: bool = False
) -> tuple[RunFolder, Prepared]:
    """Check the config, prepare the data and open the run's folder, before any process starts.

    Args:
        cfg: the config, which `check_raw_files` has checked, and
        files: the raw files that it has returned.
        world_size: number of processes of the job.
        restarted: whether torchrun has restarted this job.
    """
    check_late(cfg, world_size)
    data = cfg.data
    if data.root is None and data.sample is not None:
        say(f"data.root is not set: using the built-in sample ({data.sample.rows:,} rows, seed {data.sample.seed})")
    from recsys.data.prepare.engine import open_engine
    from recsys.data.prepare.prepared import prepare
    from recsys.data.transforms import Fitted
    from recsys.training.run_data import prepare_to_resume
    from recsys.training.run_data import save as save_run_data
    from recsys.training.run_dir import allow_restarts, open_run_dir, write_manifest

    folder = open_run_dir(allow_restarts(cfg, restarted))
    path = folder.path
    log_to(path / "train.log")
    say(f"run folder: {path}")
    interrupts.advise(f"go on with resume={path}")
    with open_engine(cfg.engine, data) as engine:
        if folder.resumed:
            prepared = prepare_to_resume(path, data, engine, files, cfg.resume_on_changed_data)
        else:
            prepared = prepare(data, engine, files)
    if not folder.resumed or not (path / manifest.FILE).exists():  # a resumed run keeps its own, as they were written
        Fitted.copy(prepared.folder, path)
    save_run_data(path, prepared)
    write_manifest(path)
    rows = prepared.info["rows"]
    say(f"data: {prepared.folder}: " + ", ".join(f"{n:,} {split}" for split, n in rows.items()) + " rows")
    return folder, prepared


def check_raw_files(composed: DictConfig) -> tuple[RunConfig, SplitFiles | None]:
    """Check whatever of the config takes no slow import: the data, its raw files, and what the model needs of them.

    Returns:
        The config of the run, and its raw files; None if the data names none.
    """
    from recsys.data.check_data import check_files, check_root, names_files

    say("checking the config")
    cfg = check_early(composed)
    run_to_resume(cfg)
    check_root(cfg.data)
    if not names_files(cfg.data):
        return cfg, None
    files = check_files(cfg.data)
    check_vector_widths(cfg)
    return cfg, files


def _begin_on_rank_0(composed: DictConfig, ranks: Ranks, restarted: bool) -> tuple[Path, Prepared, bool]:
    """Call `begin` and return what the other ranks need: run folder, prepared data, and whether the run is resumed.

    Each rank reads the checkpoint's state itself.
    """
    cfg, files = check_raw_files(composed)
    cfg = cfg.changed({"trainer.devices": ranks.local_world_size})
    folder, prepared = begin(cfg, files, ranks.world_size, restarted)
    return folder.path, prepared, folder.resumed


def fit(cfg: RunConfig, folder: RunFolder, prepared: Prepared, ranks: Ranks) -> None:
    """Train, validate, test with the best checkpoint, and write metrics.json. Collective."""
    path = folder.path
    if cfg.kind.fitted_at_once:
        _fit_at_once(cfg, path, prepared)
        return
    from recsys.training.bayes import best_metrics
    from recsys.training.checkpoints import best_checkpoint, newest_intact_checkpoint
    from recsys.training.item_updates import short_training
    from recsys.training.run_dir import add_results, protocol
    from recsys.training.run_state import RunState
    from recsys.training.split_details import write_details
    from recsys.training.trainer import (
        build_module,
        build_trainer,
        collectives_of,
        metrics_of,
        split_loader,
        steps_of,
    )

    training = split_loader(cfg, prepared, "train", ranks, training=True)
    every = cfg.trainer.validate_every_n_steps
    if every is not None and cfg.trainer.accumulate > 1 and every > len(training):
        raise UserError(
            f"trainer.validate_every_n_steps={every}: with trainer.accumulate above 1 it must be at most "
            f"{len(training)}, the number of batches in an epoch; or set trainer.validate_every, in epochs"
        )
    steps = steps_of(cfg, len(training))
    module = build_module(cfg, prepared.fitted, ranks, prepared.folder, steps)
    if ranks.rank == 0 and not cfg.kind.scores_rows:
        counts = prepared.fitted.item_vocabulary["count"].to_numpy()
        epochs = steps * cfg.trainer.accumulate / max(len(training), 1)
        if warning := short_training(cfg, float(counts.sum()) / max(len(counts), 1), epochs):
            say(warning)
    newest = newest_intact_checkpoint(path) if folder.resumed else None
    start = folder.start
    if newest is not None and (start is None or start.checkpoint != newest):
        start = RunState.load(newest)
    trainer, throughput = build_trainer(cfg, path, ranks, prepared, start)
    validation = split_loader(cfg, prepared, "validation", ranks) if prepared.rows("validation") else None
    if start is not None:
        say(f"resuming from {newest}")
        # Lightning does not restore the loader from a checkpoint at the end of an epoch
        training.load_state_dict(start.loader_position)
        module.start = start
    trainer.fit(module, training, validation, ckpt_path=newest)
    best = best_checkpoint(path)
    if cfg.calibration != "none" and validation is not None:
        _calibrate(cfg, path, trainer, module, validation, best, ranks)
    testing = split_loader(cfg, prepared, "test", ranks)
    [test] = trainer.test(module, testing, ckpt_path=best, verbose=False)
    metrics: dict[str, Any] = {"test": metrics_of(test, "test")}
    curves = None
    if ranks.rank == 0:
        sliced, curves = write_details(cfg, prepared.fitted, module.evaluator, testing, "test", path)
        if sliced:
            metrics["slices"] = {"test": sliced}
    if validation is not None:
        [valid] = trainer.validate(module, validation, ckpt_path=best, verbose=False)
        metrics["validation"] = metrics_of(valid, "validation")
    if ranks.rank == 0:
        metrics["train"] = {
            "samples": throughput.samples,
            "seconds": throughput.seconds,
            "samples_per_second": throughput.samples / max(throughput.seconds, 1e-9),
            "epochs": trainer.current_epoch,
            "steps": trainer.global_step,
            "time": {**throughput.parts(module), **collectives_of(trainer)},
        }
        metrics["protocol"] = protocol(cfg, prepared, best)
        if bayes := best_metrics(prepared):
            metrics["bayes"] = bayes
        write_json(path / "metrics.json", metrics)
        if "wandb" in cfg.logger:
            from recsys.training.wandb_artifacts import track_results

            track_results(trainer, best, metrics, curves)
        for logger in trainer.loggers:
            logger.finalize("success")
        add_results(path)
        show(metrics, path, real=cfg.data.root is not None or cfg.data.spec is not None)


def _calibrate(
    cfg: RunConfig, path: Path, trainer: Any, module: Any, validation: ParquetLoader, best: Any, ranks: Ranks
) -> None:
    """Fit the calibration on the validation rows, and write it to the run's folder. Collective."""
    from recsys.evaluation.calibration import save

    trainer.validate(module, validation, ckpt_path=best, verbose=False)
    module.evaluator.calibrate(cfg.calibration)
    if ranks.rank == 0:
        save(path, module.evaluator.labels)


def _fit_at_once(cfg: RunConfig, path: Path, prepared: Prepared) -> None:
    """Fit a model that is not trained step by step, measure both held-out splits, and write metrics.json."""
    from recsys.distributed.ranks import Ranks
    from recsys.training import fitted_ranking, fitted_retrieval
    from recsys.training.run_dir import add_results, protocol
    from recsys.training.trainer import build_loggers

    interrupts.advise(f"start again with resume={path}; nothing is kept before the model is fitted")
    methods = fitted_ranking if cfg.kind.scores_rows else fitted_retrieval
    start = time.monotonic()
    model = methods.fit_model(cfg, prepared)
    seconds = time.monotonic() - start
    say(f"fitted in {seconds:.1f} s")
    checkpoint = methods.save(model, path)
    splits = [s for s in ("test", "validation") if prepared.rows(s)]
    if cfg.calibration != "none" and "validation" in splits:
        fitted_ranking.calibrate(model, cfg, prepared, path)
    metrics: dict[str, Any] = {}
    for split in splits:
        metrics[split], sliced = methods.measure_split(model, cfg, prepared, split, path, write=split == "test")
        if split == "test" and sliced:
            metrics["slices"] = {split: sliced}
    rows = prepared.rows("train")
    metrics["train"] = {"samples": rows, "seconds": seconds, "samples_per_second": rows / max(seconds, 1e-9)}
    metrics["protocol"] = protocol(cfg, prepared, checkpoint)
    write_json(path / "metrics.json", metrics)
    loggers = build_loggers(cfg, path, Ranks(0, 0, 1, 1), None)
    for logger in loggers if isinstance(loggers, list) else ():
        for split in splits:
            logger.log_metrics({f"{split}/{name}": value for name, value in metrics[split].items()}, step=0)
        logger.finalize("success")
    add_results(path)
    show(metrics, path, real=cfg.data.root is not None or cfg.data.spec is not None)
