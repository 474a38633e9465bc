"""What a run does beside its steps: progress, throughput, checkpoints, the history in metrics.csv."""

import csv
import math
import shutil
import time
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.loggers import CSVLogger

from recsys.lit import RecsysModule, world_size
from recsys.progress import Bar, say

CLOCK_STEPS = 20


class Throughput(pl.Callback):
    """Counts rows and the seconds spent training them (not validating), over all ranks; shows a bar."""

    def __init__(self, log_every_n_steps: int, accumulate: int = 1) -> None:
        self.samples = 0
        self.seconds = 0.0
        self._before = 0.0  # of those, of the run that this one goes on from
        self._every, self._accumulate = log_every_n_steps, accumulate
        self._bar: Bar | None = None
        self._since = 0.0
        self._told = (0, 0.0)
        self._loader: Any = None

    def state_dict(self) -> dict[str, Any]:
        return {"samples": self.samples, "seconds": self.seconds}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.samples, self.seconds = state["samples"], state["seconds"]
        self._before = self.seconds

    def parts(self, module: RecsysModule) -> dict[str, float]:
        """Shares of the time of this process's steps: loader (waiting for batches), forward, backward, optimizer.

        {} where it took none: the run that it goes on from was at its end.
        """
        if self._loader is None:
            return {}
        return {name: self._share(s) for name, s in {"loader": self._loader.seconds, **module.timing.seconds}.items()}

    def _share(self, seconds: float) -> float:
        return seconds / max(self.seconds - self._before, 1e-9)

    def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        loader: Any = trainer.train_dataloader
        self._loader = loader  # which Lightning forgets
        steps = len(loader) * max(trainer.max_epochs or 1, 1)
        steps = min(steps, trainer.max_steps * self._accumulate) if trainer.max_steps > 0 else steps
        total = steps * loader.batch_size * world_size()
        self._bar = Bar("training", total, "samples", done=self.samples)
        self._since = time.monotonic()
        self._told = (self.samples, self.seconds)

    def on_train_batch_end(
        self, trainer: pl.Trainer, module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        rows = batch.rows * world_size()
        self.samples += rows
        now = time.monotonic()
        self.seconds, self._since = self.seconds + now - self._since, now
        assert self._bar is not None
        if (batch_idx + 1) % (self._every * self._accumulate) == 0:
            self._bar.note = f"epoch {trainer.current_epoch}  loss {float(outputs['loss']):.4f}"
            samples, seconds = self.samples - self._told[0], self.seconds - self._told[1]
            if seconds > 0:
                module.log("train/samples_per_second", samples / seconds, rank_zero_only=True)
                # the loader's alone: to ask for the other parts would wait for a GPU
                module.log("train/loader_wait", self._share(self._loader.seconds), rank_zero_only=True)
            self._told = (self.samples, self.seconds)
        self._bar.advance(rows)

    def resume_clock(self) -> None:
        """What came before was no training."""
        self._since = time.monotonic()

    def on_train_epoch_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self.resume_clock()  # after a validation and its checkpoint

    def on_validation_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self.resume_clock()  # where it comes in mid-epoch

    def on_fit_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self.close()

    def on_exception(self, trainer: pl.Trainer, module: pl.LightningModule, exception: BaseException) -> None:
        self.close()

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None


class MaxTime(pl.Callback):
    """Stops training after so long, by rank 0's clock: Lightning's Timer asks all ranks at every step."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._begun, self._over, self._batches = seconds, time.monotonic(), False, 0

    def on_train_batch_end(
        self, trainer: pl.Trainer, module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        assert isinstance(module, RecsysModule)
        self._batches += 1
        if self._batches % CLOCK_STEPS == 0:
            self._over = over(trainer, time.monotonic() - self._begun > self._seconds)
        if self._over and module.stepped and not trainer.should_stop:
            say(f"trainer.max_time is over: stopping at step {trainer.global_step}")
            trainer.should_stop = True


def over(trainer: pl.Trainer, value: bool) -> bool:
    """Collective: rank 0's."""
    return bool(trainer.strategy.broadcast(value)) if trainer.world_size > 1 else value


class EvaluationBar(pl.Callback):
    """A bar for validation and test."""

    def __init__(self) -> None:
        self._bar: Bar | None = None

    def _start(self, title: str, loaders: Any) -> None:
        loader = loaders[0] if isinstance(loaders, list) else loaders
        self._bar = Bar(title, loader.rows, "samples")

    def _advance(self, batch: Any) -> None:
        assert self._bar is not None
        rows = batch.rows if batch.weight is None else float(batch.weight.sum())
        left = (self._bar.total or 0) - self._bar.done  # the ranks' last batches differ by a row
        self._bar.advance(min(rows * world_size(), left))

    def _stop(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def on_validation_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        if not trainer.sanity_checking:
            self._start("validating", trainer.val_dataloaders)

    def on_test_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self._start("evaluating", trainer.test_dataloaders)

    def on_validation_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, *_: Any) -> None:
        self._advance(batch)

    def on_test_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, *_: Any) -> None:
        self._advance(batch)

    def on_validation_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self._stop()

    def on_test_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self._stop()


class Checkpoints(pl.Callback):
    """step-N: the newest, by steps and by time, in mid-epoch too; best-N: the best validation so far.

    The oldest is deleted only when the new one is in place. Lightning's ModelCheckpoint broadcasts an
    object at every step where it goes by time; here rank 0's clock is shared every CLOCK_STEPS steps.
    """

    def __init__(
        self,
        folder: Path,
        *,
        every_n_steps: int | None,
        every_minutes: float | None,
        monitor: str,
        mode: str,
        keep_best: int = 1,
        keep_last: int = 1,
    ) -> None:
        self._keep = {"best": keep_best, "step": keep_last}
        self.folder, self.monitor, self.sign = folder, monitor, -1.0 if mode == "min" else 1.0
        self._every_n_steps, self._every_seconds = every_n_steps, every_minutes and every_minutes * 60
        self._saved_at = time.monotonic()
        self.best: float = -math.inf
        self._last_step = -1
        self._due_after_validation = False

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.best = state["best"]

    def on_train_batch_end(
        self, trainer: pl.Trainer, module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        assert isinstance(module, RecsysModule)
        if not module.stepped:  # gradients that are still summed up are in no checkpoint
            return
        step = trainer.global_step
        due = bool(self._every_n_steps) and step % (self._every_n_steps or 1) == 0
        if trainer.should_stop or 0 < trainer.max_steps <= step:
            # now, in mid-epoch: Lightning counts the epoch as done before on_train_end, and its rest would be lost
            due = due or not trainer.is_last_batch
        if not due and self._every_seconds and step % CLOCK_STEPS == 0:
            due = over(trainer, time.monotonic() - self._saved_at > self._every_seconds)
        self._due_after_validation = due and trainer.is_last_batch and bool(trainer.num_val_batches)
        if due and not self._due_after_validation:
            self._save(trainer, "step")

    def on_validation_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        if trainer.sanity_checking or trainer.state.fn != "fit":
            return
        value = self.sign * float(trainer.callback_metrics[self.monitor])
        if value > self.best or self.best == -math.inf:
            self.best = value if not math.isnan(value) else self.best
            self._save(trainer, "best")
        if self._due_after_validation:  # a run resumed from before it would go without this validation
            self._due_after_validation = False
            self._save(trainer, "step")

    def on_train_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        if self._last_step != trainer.global_step:
            self._save(trainer, "step")

    def _save(self, trainer: pl.Trainer, kind: str) -> None:
        new = self.folder / f"{kind}-{trainer.global_step:08d}"
        trainer.save_checkpoint(new, weights_only=False)
        self._saved_at = time.monotonic()
        if kind == "step":
            self._last_step = trainer.global_step
        if trainer.is_global_zero:
            old = sorted(p for p in self.folder.glob(f"{kind}-*") if p != new)
            for path in old[: max(len(old) + 1 - self._keep[kind], 0)]:
                shutil.rmtree(path, ignore_errors=True)


def newest_checkpoint(run_dir: Path) -> Path | None:
    """The checkpoint with most steps behind it; at equal steps the one written last."""
    found = [p for kind in ("step", "best") for p in _complete(run_dir, kind)]
    return max(found, key=lambda p: (int(p.name.rsplit("-", 1)[1]), p.name.startswith("step")), default=None)


def best_checkpoint(run_dir: Path) -> Path | None:
    """The best by validation; the newest where nothing was validated."""
    found = sorted(_complete(run_dir, "best"))
    return found[-1] if found else newest_checkpoint(run_dir)


def _complete(run_dir: Path, kind: str) -> list[Path]:
    return [p for p in (run_dir / "checkpoints").glob(f"{kind}-*") if (p / ".metadata").exists()]


def csv_logger(run_dir: Path, up_to_step: int | None) -> CSVLogger:
    """metrics.csv in the run's folder; a resumed run keeps its history up to the step it goes on from."""
    path = run_dir / "metrics.csv"
    kept: list[dict[str, Any]] = []
    if up_to_step is not None and path.exists():
        with path.open() as f:
            kept = [r for r in csv.DictReader(f) if r.get("step") and int(float(r["step"])) <= up_to_step]
    path.unlink(missing_ok=True)
    logger = CSVLogger(run_dir, name="", version="", flush_logs_every_n_steps=50)
    for row in kept:
        logger.experiment.log_metrics(
            {k: float(v) for k, v in row.items() if v and k != "step"}, step=int(float(row["step"]))
        )
    return logger
