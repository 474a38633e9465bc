"""Train a model step by step with Lightning, and measure the best checkpoint."""

import os
from bisect import bisect_left
from collections.abc import Sequence
from functools import partial
from itertools import accumulate
from typing import Any

import pytorch_lightning as pl

from recsys.base.console import say
from recsys.base.errors import NotFinite, UserError
from recsys.data.features.grow import fresh_rows
from recsys.data.loader.training_rows import training_pairs
from recsys.data.prepare.prepared import Prepared
from recsys.distributed.ranks import Ranks, gather_values
from recsys.evaluation.calibration import save as save_calibration
from recsys.files.run_files import best_checkpoint, newest_checkpoint
from recsys.job.kinds import meta_task
from recsys.job.resumed import run_to_start_from
from recsys.job.run_config import RunConfig
from recsys.sharding.tables import tables
from recsys.training.advice import cut_lists, short_training, slow_validations, tells_the_item
from recsys.training.checkpoints import newest_intact_checkpoint
from recsys.training.module_settings import Beginning
from recsys.training.results import RunResults, write_details
from recsys.training.run_dir import RunFolder
from recsys.training.run_state import RunState
from recsys.training.trainer import build_module, build_trainer, collectives_of, metrics_of, split_loader, steps_of
from recsys.training.windows import Windows


def train_steps(cfg: RunConfig, folder: RunFolder, prepared: Prepared, ranks: Ranks) -> RunResults:
    """Train, validate, calibrate, and test with the best checkpoint. Collective.

    Args:
        folder: the run's folder, and the state to go on from.
    """
    path = folder.path
    windows = Windows(cfg, prepared, ranks) if cfg.data.split.window is not None else None
    if windows is not None:
        training = windows.training(0)
        batches = [len(windows.training(i)) for i in range(len(windows))]
        steps = sum(steps_of(cfg, n) for n in batches)
        say(f"{len(windows):,} windows of training rows, each measured before it is trained on")
    else:
        training = split_loader(cfg, prepared, "train", ranks, training=True)
        batches = [len(training)] * cfg.trainer.max_epochs
        steps = steps_of(cfg, len(training))
        if not folder.resumed:
            training.start_reading()
        if ranks.rank == 0 and cfg.debug.train_batches is None and (rest := training.total_rows - training.rows):
            others = ", other rows in each" if cfg.loader.shuffle else ""
            say(f"{rest:,} of {training.total_rows:,} training rows fill no batch; each epoch leaves them out{others}")
    _check_batches(cfg, len(training))
    if ranks.rank == 0 and not cfg.kind.scores_rows:
        epochs = steps * cfg.trainer.accumulate / max(len(training), 1)
        counts = prepared.fitted.item_vocabulary["count"].to_numpy()
        interactions = float(counts.sum()) / max(len(counts), 1)  # of an item
        read = {table.vocabulary for table in tables(meta_task(cfg, prepared.fitted.features)).values()}
        told = tells_the_item(prepared, read)
        for line in (cut_lists(cfg, prepared), told, short_training(cfg, interactions, epochs)):
            if line is not None:
                say(line)
    newest = newest_intact_checkpoint(path) if folder.resumed else None
    start = folder.start
    if newest is not None and (start is None or start.checkpoint != newest):
        start = RunState.load(newest)
    goes_on_from = None
    if start is None and (before := run_to_start_from(cfg)) is not None:
        checkpoint = best_checkpoint(before) or newest_checkpoint(before)
        if checkpoint is None:
            raise UserError(f"start_from={before}: has no complete checkpoint; resume it first")
        goes_on_from = checkpoint, fresh_rows(prepared.fitted)
    beginning = Beginning(partial(training_pairs, prepared), start, goes_on_from)
    module = build_module(cfg, prepared.fitted, ranks, prepared.folder, steps, beginning)
    trainer, throughput = build_trainer(cfg, path, ranks, prepared, start, windows=len(windows) if windows else 0)
    validation = split_loader(cfg, prepared, "validation", ranks) if prepared.rows("validation") else None
    if start is not None:
        most = os.environ.get("TORCHELASTIC_MAX_RESTARTS")
        say(f"resuming from {newest}" + (f" (restart {folder.restarts} of {most})" if folder.restarts else ""))
        # Lightning does not restore the loader from a checkpoint at the end of an epoch
        training.load_state_dict(start.loader_position)
    elif goes_on_from is not None:
        say(f"starting from {goes_on_from[0]}")
    try:
        if windows is None:
            trainer.fit(module, training, validation, ckpt_path=newest)
        else:
            trainer.fit(module, datamodule=windows, ckpt_path=newest)
    except NotFinite:
        training.finish_check()  # a damaged file may be the cause
        raise
    _set_end(trainer, batches)
    slow = slow_validations(cfg, throughput.seconds, throughput.validation_seconds)
    if ranks.rank == 0 and slow is not None:
        say(slow)
    best = best_checkpoint(path)
    if cfg.calibration != "none" and validation is not None:
        trainer.validate(module, validation, ckpt_path=best, verbose=False)
        evaluator: Any = module.evaluator  # only models with labels are calibrated
        evaluator.calibrate(cfg.calibration)
        if ranks.rank == 0:
            save_calibration(path, evaluator.labels, best)
    splits: dict[str, dict[str, Any]] = {}
    sliced: dict[str, Any] | None = None
    curves: Any = None
    if prepared.rows("test"):
        testing = split_loader(cfg, prepared, "test", ranks)
        [test] = trainer.test(module, testing, ckpt_path=best, verbose=False)
        splits["test"] = metrics_of(test, "test")
        if ranks.rank == 0:
            sliced, curves = write_details(cfg, prepared.fitted, module.evaluator, testing, "test", path)
    if validation is not None:
        [valid] = trainer.validate(module, validation, ckpt_path=best, verbose=False)
        splits["validation"] = metrics_of(valid, "validation")
    train = {
        "samples": throughput.samples,
        "seconds": throughput.seconds,
        "cpu_seconds": sum(gather_values(throughput.cpu_seconds)),
        "samples_per_second": throughput.samples / max(throughput.seconds, 1e-9),
        "validation_seconds": throughput.validation_seconds,
        "validation_cpu_seconds": sum(gather_values(throughput.validation_cpu_seconds)),
        "epochs": trainer.current_epoch,
        "steps": trainer.global_step,
        **({} if module.loss_scale is None else {"skipped_steps": module.loss_scale.skipped}),
        **({} if module.compiled is None else {"compile_seconds": module.compiled.seconds}),
        "time": {**throughput.parts(module), **collectives_of(trainer)},
    }

    def log(metrics: dict[str, Any]) -> None:
        if "wandb" in cfg.logger:
            from recsys.training.wandb_artifacts import track_results

            track_results(trainer, best, metrics, curves)
        for logger in trainer.loggers:
            logger.finalize("success")

    return RunResults(splits, train, best, log, sliced or {})


def _set_end(trainer: pl.Trainer, batches: Sequence[int]) -> None:
    """Count a last epoch that was begun, and its last batch, also where a resumed run had nothing left to train.

    batches: of each epoch
    """
    loop = trainer.fit_loop
    trained = loop.epoch_loop.batch_progress.total.ready
    loop.epoch_loop._batches_that_stepped = trained  # the step that loggers use
    ends = list(accumulate(batches))
    loop.epoch_progress.current.completed = min(bisect_left(ends, trained) + 1, len(ends)) if trained else 0


def _check_batches(cfg: RunConfig, batches: int) -> None:
    """Raise UserError if a validation within an epoch would come after its end. batches: of an epoch"""
    every = cfg.trainer.validate_every_n_steps
    if every is not None and cfg.trainer.accumulate > 1 and every > batches:
        raise UserError(
            f"trainer.validate_every_n_steps={every}: with trainer.accumulate above 1 it must be at most "
            f"{batches}, the number of batches in an epoch; or set trainer.validate_every, in epochs"
        )
