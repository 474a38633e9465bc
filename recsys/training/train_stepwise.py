"""Train a model step by step with Lightning: plan, build, fit, measure."""

import gc
import math
import os
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import pytorch_lightning as pl

from recsys.base import job_time
from recsys.base.console import say
from recsys.base.errors import NotFinite
from recsys.data.prepare.prepared import Prepared
from recsys.distributed.ranks import Ranks, gather_values
from recsys.evaluation.calibration import save as save_calibration
from recsys.files.run_files import best_checkpoint
from recsys.job.run_config import RunConfig
from recsys.training.advice import slow_validations
from recsys.training.callbacks import Throughput
from recsys.training.epochs import Epochs, beginning_of, plan_epochs, say_advice
from recsys.training.loaders import split_loader
from recsys.training.loggers import build_loggers
from recsys.training.module import RecsysModule
from recsys.training.module_settings import Beginning
from recsys.training.profiling import Profile, marked_while_profiled
from recsys.training.results import RunResults, write_details
from recsys.training.run_dir import RunFolder
from recsys.training.trainer import build_module, build_trainer, metrics_of

_trained = False  # whether this process has begun a training


def train_stepwise(cfg: RunConfig, folder: RunFolder, prepared: Prepared, ranks: Ranks) -> RunResults:
    """Train, validate, calibrate, and test with the best checkpoint. Collective.

    Args:
        folder: the run's folder, and the state to resume from.
    """
    epochs = plan_epochs(cfg, folder, prepared, ranks)
    if ranks.rank == 0:
        say_advice(cfg, prepared, epochs)
    built = build(cfg, folder, prepared, ranks, epochs)
    position(built.beginning, epochs, folder.restarts)
    newest = None if built.beginning.resumed is None else built.beginning.resumed.checkpoint
    try:
        with marked_while_profiled(), nothing_old_collected():
            if epochs.windows is None:
                built.trainer.fit(built.module, epochs.training, epochs.validation, ckpt_path=newest)
            else:
                built.trainer.fit(built.module, datamodule=epochs.windows, ckpt_path=newest)
    except NotFinite:
        epochs.training.finish_check()  # a damaged file may be the cause
        raise
    _count_end(built.trainer, epochs.batches)
    built.throughput.count_job_time()
    with job_time.spend("testing"):
        return measure(cfg, folder, prepared, ranks, built, epochs)


@contextmanager
def nothing_old_collected() -> Iterator[None]:
    """Let garbage collections leave out what exists now: to look at it takes half a second of the first steps.

    Later trainings of a process may find a model of an earlier one, which a collection must free.
    """
    global _trained
    freezes, _trained = not (_trained or gc.get_freeze_count()), True
    if freezes:
        gc.freeze()
    try:
        yield
    finally:
        if freezes:
            gc.unfreeze()


@dataclass(frozen=True)
class Built:
    """What trains a model.

    throughput: the trainer's callback that measures its speed
    beginning: what the training begins with
    """

    module: RecsysModule
    trainer: pl.Trainer
    throughput: Throughput
    beginning: Beginning


def build(cfg: RunConfig, folder: RunFolder, prepared: Prepared, ranks: Ranks, epochs: Epochs) -> Built:
    """Return the module and the trainer of a run."""
    beginning = beginning_of(cfg, folder, prepared)
    module = build_module(cfg, prepared.fitted, ranks, prepared.folder, epochs.steps, beginning)
    loggers = build_loggers(cfg, folder.path, ranks, beginning.resumed)
    windows = 0 if epochs.windows is None else len(epochs.windows)
    validate_from = math.ceil(cfg.trainer.validate_from * epochs.steps - 1e-9)  # 0.1 * 30 is above 3
    trainer, throughput = build_trainer(cfg, folder.path, ranks, prepared, loggers, windows, validate_from)
    return Built(module, trainer, throughput, beginning)


def position(beginning: Beginning, epochs: Epochs, restarts: int) -> None:
    """Put the loader where the training begins, and say where that is. restarts: how often torchrun has restarted it"""
    if beginning.resumed is not None:
        most = os.environ.get("TORCHELASTIC_MAX_RESTARTS")
        restart = f" (restart {restarts} of {most})" if restarts else ""
        say(f"resuming from {beginning.resumed.checkpoint}{restart}")
        # Lightning does not restore the loader from a checkpoint at the end of an epoch
        epochs.training.load_state_dict(beginning.resumed.loader_position)
    elif beginning.start_from is not None:
        say(f"starting from {beginning.start_from[0]}")


def measure(
    cfg: RunConfig, folder: RunFolder, prepared: Prepared, ranks: Ranks, built: Built, epochs: Epochs
) -> RunResults:
    """Calibrate the best checkpoint, and measure it on the held-out splits. Collective."""
    module, trainer, throughput = built.module, built.trainer, built.throughput
    slow = slow_validations(cfg, throughput.seconds, throughput.validation_seconds)
    if ranks.rank == 0 and slow is not None:
        say(slow)
    results = RunResults({}, {}, best_checkpoint(folder.path), trainer.loggers)
    best, validation = results.checkpoint, epochs.validation
    if cfg.calibration != "none" and validation is not None:
        trainer.validate(module, validation, ckpt_path=best, verbose=False)
        evaluator: Any = module.evaluator  # only models with labels are calibrated
        evaluator.calibrate(cfg.calibration)
        if ranks.rank == 0:
            save_calibration(folder.path, evaluator.labels, best)
    if prepared.rows("test"):
        testing = split_loader(cfg, prepared, "test", ranks)
        [test] = trainer.test(module, testing, ckpt_path=best, verbose=False)
        results.splits["test"] = metrics_of(test, "test")
        if ranks.rank == 0:
            written = write_details(cfg, prepared.fitted, module.evaluator, testing, "test", folder.path)
            results.details, results.curves = written
    if validation is not None:
        [valid] = trainer.validate(module, validation, ckpt_path=best, verbose=False)
        results.splits["validation"] = metrics_of(valid, "validation")
    results.train = _facts(built)
    return results


def _facts(built: Built) -> dict[str, Any]:
    """Return what metrics.json says of the training. Collective."""
    module, trainer, throughput = built.module, built.trainer, built.throughput
    profiles = [c for c in trainer.callbacks if isinstance(c, Profile)]  # type: ignore[attr-defined]
    # of the step time, including waiting for other ranks; collectives are part of forward, backward and optimizer
    shares = [c.share for c in profiles if c.share is not None]
    return {
        "samples": throughput.samples,
        "seconds": throughput.seconds,
        "cpu_seconds": sum(gather_values(throughput.cpu_seconds)),
        "samples_per_second": throughput.samples / max(throughput.seconds, 1e-9),
        "validation_seconds": throughput.validation_seconds,
        "validation_cpu_seconds": sum(gather_values(throughput.validation_cpu_seconds)),
        "epochs": trainer.current_epoch,
        "steps": trainer.global_step,
        **module.step.facts,
        **module.compiled.facts,
        "time": {**throughput.parts(module), **({"collectives": shares[0]} if shares else {})},
    }


def _count_end(trainer: pl.Trainer, batches: Sequence[int]) -> None:
    """Count a last epoch that was begun, and its last batch, also where a resumed run had nothing left to train.

    batches: of each epoch
    """
    loop = trainer.fit_loop
    trained = loop.epoch_loop.batch_progress.total.ready
    loop.epoch_loop._batches_that_stepped = trained  # the step that loggers use
    ends = list(accumulate(batches))
    loop.epoch_progress.current.completed = min(bisect_left(ends, trained) + 1, len(ends)) if trained else 0
