"""Train a model step by step with Lightning, and measure the best checkpoint."""

import math
from functools import partial
from pathlib import Path
from typing import Any

from recsys.cli.console import say
from recsys.config.run_config import RunConfig
from recsys.data.loader import ParquetLoader
from recsys.data.prepare.prepared import Prepared
from recsys.data.training_interactions import training_pairs
from recsys.distributed.ranks import Ranks, gather_values
from recsys.errors import NotFinite, UserError
from recsys.evaluation.calibration import save as save_calibration
from recsys.files.checkpoint_folders import best_checkpoint
from recsys.training.callbacks import Throughput
from recsys.training.checkpoints import newest_intact_checkpoint
from recsys.training.results import RunResults, write_details
from recsys.training.run_dir import RunFolder
from recsys.training.run_state import RunState
from recsys.training.trainer import (
    build_module,
    build_trainer,
    collectives_of,
    metrics_of,
    split_loader,
    steps_of,
)

LONG = 60.0  # seconds of validations that are worth a word
MOST_OF_TRAINING = 0.1  # time of validations, as a share of the training's
LEAST_MOVE = 2.0  # distance that item vectors must be able to move, in standard deviations of their initial values


def train_steps(cfg: RunConfig, folder: RunFolder, prepared: Prepared, ranks: Ranks) -> RunResults:
    """Train, validate, calibrate, and test with the best checkpoint. Collective.

    Args:
        cfg: the run's config.
        folder: the run's folder, and the state to go on from.
        prepared: the prepared data.
        ranks: the processes.
    """
    path = folder.path
    training = split_loader(cfg, prepared, "train", ranks, training=True)
    _check_batches(cfg, len(training))
    if not folder.resumed:
        training.start_reading()
    steps = steps_of(cfg, len(training))
    module = build_module(cfg, prepared.fitted, ranks, prepared.folder, steps)
    module.read_pairs = partial(training_pairs, prepared)
    if ranks.rank == 0 and not cfg.kind.scores_rows:
        _warn_of_few_updates(cfg, prepared, steps * cfg.trainer.accumulate / max(len(training), 1))
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
    try:
        trainer.fit(module, training, validation, ckpt_path=newest)
    except NotFinite:
        training.finish_check()  # a damaged file may be the cause
        raise
    if ranks.rank == 0 and (advice := _slow_validations(cfg, throughput)) is not None:
        say(advice)
    best = best_checkpoint(path)
    if cfg.calibration != "none" and validation is not None:
        _calibrate(cfg, path, trainer, module, validation, best, ranks)
    testing = split_loader(cfg, prepared, "test", ranks)
    [test] = trainer.test(module, testing, ckpt_path=best, verbose=False)
    splits = {"test": metrics_of(test, "test")}
    sliced: dict[str, Any] | None = None
    curves: Any = None
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


def _slow_validations(cfg: RunConfig, throughput: Throughput) -> str | None:
    """Return a line that says so if a long training has spent much time on validations."""
    training, validating = throughput.seconds, throughput.validation_seconds
    if validating < max(LONG, MOST_OF_TRAINING * training) or cfg.trainer.validate_every_n_steps is not None:
        return None
    every = math.ceil(cfg.trainer.validate_every * validating / (MOST_OF_TRAINING * training))
    return (
        f"validations took {validating:.0f} s, and training {training:.0f} s: "
        f"trainer.validate_every={every} (epochs) makes that a tenth"
    )


def _check_batches(cfg: RunConfig, batches: int) -> None:
    """Raise UserError if a validation within an epoch would come after its end. batches: of an epoch"""
    every = cfg.trainer.validate_every_n_steps
    if every is not None and cfg.trainer.accumulate > 1 and every > batches:
        raise UserError(
            f"trainer.validate_every_n_steps={every}: with trainer.accumulate above 1 it must be at most "
            f"{batches}, the number of batches in an epoch; or set trainer.validate_every, in epochs"
        )


def _warn_of_few_updates(cfg: RunConfig, prepared: Prepared, epochs: float) -> None:
    """Say so if the training is too short for the items' vectors to move away from where they start."""
    counts = prepared.fitted.item_vocabulary["count"].to_numpy()
    if warning := short_training(cfg, float(counts.sum()) / max(len(counts), 1), epochs):
        say(warning)


def short_training(cfg: RunConfig, interactions: float, epochs: float) -> str | None:
    """Return a warning if item vectors cannot move by LEAST_MOVE deviations of their initial values, otherwise None.

    Adam changes an element of a table's row by about the learning rate, at most, in each step that looks the row up.
    An item is looked up about once for each of its interactions, so the number of steps that train its vector depends
    on the interactions per item and on the epochs, not on the number of steps of the run (experiments/item_counts).
    With optim.sparse.every_row, the other steps move it, too.

    Args:
        cfg: config of a retrieval model that is trained step by step.
        interactions: mean number of training interactions per item.
        epochs: number of epochs of the whole training.
    """
    deviation, sparse = cfg.model.get("init_std"), cfg.optim.sparse
    if not deviation or "adam" not in sparse.name or sparse.every_row or not sparse.lr or not interactions:
        return None
    distance = sparse.lr * interactions * epochs
    if distance >= LEAST_MOVE * deviation:
        return None
    wanted = math.ceil(LEAST_MOVE * deviation / (sparse.lr * interactions))
    return (
        f"optim.sparse.lr={sparse.lr} is too low for {interactions:.3g} interactions per item and {epochs:.3g} epochs: "
        f"Adam moves item vectors by at most {distance:.2g} (model.init_std={deviation}); set "
        f"trainer.max_epochs={wanted} or more, or raise optim.sparse.lr and optim.dense.lr"
    )


def _calibrate(
    cfg: RunConfig, path: Path, trainer: Any, module: Any, validation: ParquetLoader, best: Path | None, ranks: Ranks
) -> None:
    """Fit the calibration on the validation rows, and write it to the run's folder. Collective."""
    trainer.validate(module, validation, ckpt_path=best, verbose=False)
    module.evaluator.calibrate(cfg.calibration)
    if ranks.rank == 0:
        save_calibration(path, module.evaluator.labels)
