"""Callbacks other than checkpoints: throughput, progress bars, the time limit, and what is recorded of a run."""

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import EarlyStopping

from recsys.base import interrupts, job_time
from recsys.base.console import Bar, say, say_once
from recsys.data.loader.parquet_loader import ParquetLoader
from recsys.evaluation.collected_rows import world_size
from recsys.evaluation.metrics_table import mode_of, monitored
from recsys.files.atomic import write_json
from recsys.interface.batch import Batch
from recsys.sharding.skew import skewed
from recsys.training.advice import still_improving
from recsys.training.epoch_loop import loop_of
from recsys.training.module import RecsysModule


class StopEarly(EarlyStopping):
    """Stops training after `patience` validations without a better metric, and says so; NaN stops no training."""

    def __init__(self, metric: str, patience: int) -> None:
        super().__init__(metric, mode=mode_of(metric), patience=patience, check_on_train_epoch_end=False)
        self._gain: tuple[float, float] | None = None  # the best value before the last validation, and the last's
        self._compared = metric  # or what stands for it

    def on_load_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        state = checkpoint.get("callbacks", {}).get(self.state_key)
        if state is not None and state["wait_count"] >= state["patience"]:  # a run that had stopped does not train on
            trainer.should_stop = True

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        before, self._gain = float(self.best_score), None
        self._compared, value = monitored(trainer.callback_metrics, self.monitor)
        if math.isnan(value):
            say_once(f"{self.monitor} is not a number: it stops no training")
            return
        # private: the public hook reads `monitor` alone
        stops, _ = self._evaluate_stopping_criteria(torch.tensor(value))  # on every rank alike
        if stops:
            trainer.should_stop, self.stopped_epoch = True, trainer.current_epoch
        now = float(self.best_score)
        self._gain = (
            (before, now) if self._compared == self.monitor and now != before and math.isfinite(before) else None
        )

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self._gain is not None and trainer.current_epoch == trainer.max_epochs:
            line = still_improving(self.monitor, *self._gain, trainer.current_epoch)
            if line is not None:
                say(line)
        if self.wait_count >= self.patience:
            why = f"{self._compared} has not improved for {self.patience} validations"
            say(
                f"stopped after epoch {self.stopped_epoch + 1}: {why}; trainer.early_stopping.patience=null never stops"
            )


class Throughput(pl.Callback):
    """Counts the trained rows of all ranks and the seconds spent on them, without validation, and shows a bar.

    Args:
        log_every_n_steps: steps between two rows of the log.
        accumulate: batches of a step.
        rows: rows of the whole training; None for those of the first epoch in each epoch.
    """

    def __init__(self, log_every_n_steps: int, accumulate: int = 1, rows: int | None = None) -> None:
        self.samples = 0
        self.seconds = 0.0
        self.cpu_seconds = 0.0  # of all threads of this process, since it started or resumed
        self.validation_seconds = self.validation_cpu_seconds = 0.0  # of the validations during training
        self._before = self._validated_before = 0.0  # the parts that were spent before the run was resumed
        self._every, self._accumulate = log_every_n_steps, accumulate
        self._rows, self._total = rows, 0  # rows of the whole training
        self._bar: Bar | None = None
        self._since = self._cpu_since = self._saved = 0.0
        self._logged, self._rows_before = (0, 0.0), 0
        self._loader: ParquetLoader | None = None
        self._waited = 0.0  # seconds that earlier loaders were waited for

    def state_dict(self) -> dict[str, Any]:
        return {"samples": self.samples, "seconds": self.seconds, "validation_seconds": self.validation_seconds}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.samples, self.seconds = state["samples"], state["seconds"]
        self.validation_seconds = state.get("validation_seconds", 0.0)
        self._before, self._validated_before = self.seconds, self.validation_seconds

    def count_job_time(self) -> None:
        """Add the seconds of this job's steps, of their waits for the loader, and of validations to its clock."""
        waited = 0.0 if self._loader is None else self._waited + self._loader.seconds
        job_time.add("training", self.seconds - self._before - waited)
        job_time.add("waiting", waited)
        job_time.add("validating", self.validation_seconds - self._validated_before)

    def parts(self, module: RecsysModule) -> dict[str, float]:
        """Return the shares of the step time that this process spent in each part of a step.

        The parts are loader (waiting for batches), forward, backward and optimizer. Return {} if no step was run, for
        example if the resumed run was already at its end.
        """
        if self._loader is None:
            return {}
        seconds = {"loader": self._waited + self._loader.seconds, **module.timing.seconds}
        return {name: self._share(s) for name, s in seconds.items()}

    def _share(self, seconds: float) -> float:
        return seconds / max(self.seconds - self._before, 1e-9)

    def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        job_time.add_rest("building")  # the trainer, the plan and the shards
        loader: Any = trainer.train_dataloader
        self._loader = loader  # Lightning drops its reference after training
        steps = len(loader) * max(trainer.max_epochs or 1, 1)
        steps = min(steps, trainer.max_steps * self._accumulate) if trainer.max_steps > 0 else steps
        self._total = self._rows or steps * loader.batch_size * world_size()
        self.resume_clock()
        self._logged = (self.samples, self.seconds)

    def on_train_batch_start(
        self, trainer: pl.Trainer, module: pl.LightningModule, batch: Batch, batch_idx: int
    ) -> None:
        assert isinstance(module, RecsysModule)
        if not module.compiled.is_warm:
            with trainer.precision_plugin.forward_context(), job_time.spend("compiling"):
                module.compiled.warm_up(batch.to(module.device))  # a pipeline's batches are in the host's memory
            self.resume_clock()
        if self._bar is None:
            self._bar = Bar("training", self._total, "samples", done=self.samples)

    def on_train_batch_end(
        self, trainer: pl.Trainer, module: pl.LightningModule, outputs: Any, batch: Batch, batch_idx: int
    ) -> None:
        assert isinstance(module, RecsysModule)
        rows = (module.rows_trained - self._rows_before) * world_size()
        self._rows_before = module.rows_trained
        self.samples += rows
        now = time.monotonic()
        saved = job_time.spent("saving")  # after the last step
        self.seconds, self._since = self.seconds + now - self._since - (saved - self._saved), now
        self._saved = saved
        cpu = time.process_time()
        self.cpu_seconds, self._cpu_since = self.cpu_seconds + cpu - self._cpu_since, cpu
        assert self._bar is not None and self._loader is not None
        if (batch_idx + 1) % (self._every * self._accumulate) == 0:
            loss = float(outputs["loss"])
            self._bar.note = f"epoch {trainer.current_epoch}  loss {loss:.4f}"
            self._bar.facts = {"epoch": trainer.current_epoch, "step": trainer.global_step, "loss": loss}
            samples, seconds = self.samples - self._logged[0], self.seconds - self._logged[1]
            if seconds > 0:
                module.log("train/samples_per_second", samples / seconds, rank_zero_only=True)
                # only the loader's share is logged, because reading the others would synchronise with the GPU
                module.log("train/loader_wait", self._share(self._waited + self._loader.seconds), rank_zero_only=True)
            self._logged = (self.samples, self.seconds)
        self._bar.advance(rows)

    def resume_clock(self) -> None:
        """Restart the clock, so that the time since the last step does not count as training."""
        self._since, self._cpu_since = time.monotonic(), time.process_time()
        self._saved = job_time.spent("saving")

    def on_train_epoch_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        if self._loader is not None and self._loader is not trainer.train_dataloader:  # of the next window
            self._waited, self._loader = self._waited + self._loader.seconds, trainer.train_dataloader
        self.resume_clock()  # after a validation and its checkpoint

    def on_validation_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self.resume_clock()

    def on_validation_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        if trainer.state.fn == "fit":
            self.validation_seconds += time.monotonic() - self._since
            self.validation_cpu_seconds += time.process_time() - self._cpu_since
        self.resume_clock()  # validation may run within an epoch

    def on_fit_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self.close()

    def on_exception(self, trainer: pl.Trainer, module: pl.LightningModule, exception: BaseException) -> None:
        self.close()

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None


class MaxTime(pl.Callback):
    """Time limit for training, measured by rank 0's clock. Lightning's Timer would broadcast at every step."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._begun = seconds, time.monotonic()

    def on_train_batch_end(
        self, trainer: pl.Trainer, module: pl.LightningModule, outputs: object, batch: Batch, batch_idx: int
    ) -> None:
        is_over = over(trainer, time.monotonic() - self._begun > self._seconds)
        if is_over and not trainer.should_stop:
            say(f"trainer.max_time is over: stopping training at step {trainer.global_step}")
            trainer.should_stop = True


class Interrupts(pl.Callback):
    """Ends the training after a signal, in place of Lightning's handlers, whose SIGTERM is a collective.

    With `save`, the training goes on to a step at which all ranks can stop, and writes a checkpoint.
    """

    def __init__(self, save: bool) -> None:
        self._save, self._stopping = save, False

    def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        interrupts.install_again()
        interrupts.defer(self._save)

    def on_test_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        interrupts.install_again()

    def on_validation_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        interrupts.install_again()

    def on_train_batch_end(
        self, trainer: pl.Trainer, module: pl.LightningModule, outputs: object, batch: Batch, batch_idx: int
    ) -> None:
        self._stopping = self._stopping or (self._save and over(trainer, interrupts.requested()))
        if self._stopping and not trainer.should_stop:
            say(f"interrupted: writing a checkpoint at step {trainer.global_step}")
            if not loop_of(trainer).validates_next():  # the run that goes on makes its own validations only
                trainer.limit_val_batches = 0
            trainer.should_stop = True

    def on_fit_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        interrupts.defer(False)
        if self._stopping:
            interrupts.end()


def over(trainer: pl.Trainer, value: bool) -> bool:
    """Return rank 0's value after a step whose hooks all ranks call, and False after other batches. Collective."""
    loop = loop_of(trainer)
    if trainer.world_size == 1:
        return value and loop.ends_step
    return loop.is_shared and bool(trainer.strategy.broadcast(value))


class EvaluationBar(pl.Callback):
    """Shows a bar for validation and test, and after a validation during training its metric and the best so far.

    Args:
        monitor: the metric that is shown.
        compared: compares a validation's metric (`monitored`) with the best before.
    """

    def __init__(self, monitor: str, compared: Callable[[str, float], str]) -> None:
        self._monitor, self._compared = monitor, compared
        self._bar: Bar | None = None

    def _start(self, title: str, loaders: Any) -> None:
        loader = loaders[0] if isinstance(loaders, list) else loaders
        self._bar = Bar(title, loader.rows, "samples")

    def _advance(self, batch: Batch) -> None:
        assert self._bar is not None
        rows = batch.rows if batch.weight is None else int((batch.weight > 0).sum())  # others fill up
        left = (self._bar.total or 0) - self._bar.done  # the ranks' last batches differ by a row
        self._bar.advance(min(rows * world_size(), left))

    def _stop(self, result: str | None = None) -> None:
        if self._bar is not None:
            self._bar.close(result)
            self._bar = None

    def on_validation_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        if not trainer.sanity_checking:
            self._start("validating", trainer.val_dataloaders)

    def on_test_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self._start("evaluating", trainer.test_dataloaders)

    def on_validation_batch_end(
        self, trainer: pl.Trainer, module: pl.LightningModule, outputs: object, batch: Batch, *_: object
    ) -> None:
        self._advance(batch)

    def on_test_batch_end(
        self, trainer: pl.Trainer, module: pl.LightningModule, outputs: object, batch: Batch, *_: object
    ) -> None:
        self._advance(batch)

    def on_validation_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        result = None
        if trainer.state.fn == "fit" and self._monitor in trainer.callback_metrics:
            name, value = monitored(trainer.callback_metrics, self._monitor)
            result = f"{name} {float(trainer.callback_metrics[name]):.5f} {self._compared(name, value)}"
        self._stop(result)

    def on_test_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self._stop()


class Record(pl.Callback):
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
            tables = [(t["table"], t["vocabulary"], t["shards"]) for t in plan["tables"]]
            if (line := skewed(tables, self.path)) is not None:
                say(line)
            for logger in trainer.loggers[1:]:
                logger.log_hyperparams({"plan": plan})

    def on_validation_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        if trainer.is_global_zero and trainer.loggers:
            trainer.loggers[0].save()  # sweeps read the metrics.csv of running trials
