"""Write checkpoints by steps, time and validations, and find the newest one that is intact."""

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytorch_lightning as pl

from recsys.base import job_time
from recsys.base.console import say, say_once
from recsys.evaluation.metrics_table import lower_is_better, monitored
from recsys.files import manifest
from recsys.files.atomic import remove_folder, whole_folder
from recsys.files.manifest import DamagedFile
from recsys.files.run_files import checkpoints_of
from recsys.interface.batch import Batch
from recsys.sharding.stored_checkpoint import check_checkpoint
from recsys.training.callbacks import over
from recsys.training.epoch_loop import loop_of


class Checkpoints(pl.Callback):
    """Writes two kinds of checkpoints, step-N and best-N, where N is the number of steps.

    step-N is written every `every_n_steps` steps or `every_minutes` minutes, also within an epoch; best-N after each
    validation that is the best so far. An old checkpoint is deleted only after its successor has been written. To save
    by time, Lightning's ModelCheckpoint would broadcast at every step; here, rank 0's clock is shared every
    SHARED_STEPS steps.

    Args:
        folder: the folder to write to.
        every_n_steps: steps from one checkpoint step-N to the next; None for no such limit.
        every_minutes: minutes from one checkpoint step-N to the next; None for no such limit.
        monitor: the metric that says which validation is the best.
        keep_best: number of checkpoints best-N to keep.
        keep_last: number of checkpoints step-N to keep.
        newest_is_best: whether each validation counts as the best, because the next one measures other rows.
    """

    def __init__(
        self,
        folder: Path,
        *,
        every_n_steps: int | None,
        every_minutes: float | None,
        monitor: str,
        keep_best: int = 1,
        keep_last: int = 1,
        newest_is_best: bool = False,
    ) -> None:
        self._keep = {"best": keep_best, "step": keep_last}
        self.folder, self.monitor, self.sign = folder, monitor, -1.0 if lower_is_better(monitor) else 1.0
        self._every_n_steps, self._every_seconds = every_n_steps, every_minutes and every_minutes * 60
        self._newest_is_best = newest_is_best
        self._saved_at = time.monotonic()
        self.best: float = -math.inf
        self._best_step = 0
        self._saved: dict[str, int] = {}  # the step of the last checkpoint of each kind
        self._due_after_validation = False

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "best_step": self._best_step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.best, self._best_step = state["best"], state.get("best_step", 0)

    def compared(self, name: str, value: float) -> str:
        """Return how the metric of a validation (`monitored`) compares with the best one before, in words."""
        if self._newest_is_best:
            return "(rows that are trained on next, or none after)"
        if math.isnan(value):
            return "(not a number: do the validation rows have labels of both kinds?)"
        if name != self.monitor:
            say_once(f"{self.monitor} is not defined on these rows: {name} says which validation is the best")
        if self.best == -math.inf or self.sign * value > self.best:
            return "(the best so far)"
        best = self.sign * self.best
        if name != self.monitor and self.sign > 0:
            best = -math.log(best)
        return f"(best: {best:.5f}" + (f" after step {self._best_step:,})" if self._best_step else ")")

    def on_train_batch_end(
        self, trainer: pl.Trainer, module: pl.LightningModule, outputs: object, batch: Batch, batch_idx: int
    ) -> None:
        loop = loop_of(trainer)
        if not loop.ends_step:  # checkpoints hold no gradients
            return
        step = trainer.global_step
        due = bool(self._every_n_steps) and step % (self._every_n_steps or 1) == 0
        if trainer.should_stop or 0 < trainer.max_steps <= step:
            # save now: in on_train_end Lightning counts the epoch as done, and the rest of it would be lost
            due = due or not trainer.is_last_batch
        if not due and self._every_seconds:
            due = over(trainer, time.monotonic() - self._saved_at > self._every_seconds)
        self._due_after_validation = due and loop.validates_next()
        if due and not self._due_after_validation:
            self._save(trainer, "step")

    def on_validation_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        if trainer.sanity_checking or trainer.state.fn != "fit":
            return
        value = self.sign * monitored(trainer.callback_metrics, self.monitor)[1]
        if value > self.best or self.best == -math.inf or self._newest_is_best:
            if not math.isnan(value):
                self.best, self._best_step = value, trainer.global_step
            self._save(trainer, "best")
        if self._due_after_validation:  # so that a resumed run does not miss this validation
            self._due_after_validation = False
            self._save(trainer, "step")

    def on_train_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        if self._newest_is_best and self._saved.get("best") != trainer.global_step:  # it ends within a window
            self._save(trainer, "best")
        if self._saved.get("step") != trainer.global_step:
            self._save(trainer, "step")

    def _save(self, trainer: pl.Trainer, kind: str) -> None:
        new = self.folder / f"{kind}-{trainer.global_step:08d}"
        with job_time.spend("saving"):
            trainer.save_checkpoint(new, weights_only=False)
        self._saved_at = time.monotonic()
        self._saved[kind] = trainer.global_step
        if trainer.is_global_zero:
            old = sorted(p for p in self.folder.glob(f"{kind}-*") if p != new)
            for path in old[: max(len(old) + 1 - self._keep[kind], 0)]:
                remove_folder(path)


def newest_intact_checkpoint(run_dir: Path) -> Path | None:
    """Return the newest checkpoint that is as it was written, None if the run has no checkpoint. Collective.

    Raises:
        DamagedFile: all checkpoints are damaged.
    """
    damages: list[DamagedFile] = []
    for path in checkpoints_of(run_dir):
        try:
            check_checkpoint(path)
        except DamagedFile as e:
            damages.append(e)
            continue
        if damages:
            say(f"{damages[0]}; resuming from the checkpoint before it")
        return path
    if damages:
        why = "no earlier checkpoint is intact, so the run cannot be resumed"
        raise DamagedFile(damages[0].file, f"{damages[0].problem}; {why}")
    return None


def write_fitted_checkpoint(path: Path, write: Callable[[Path], None]) -> Path:
    """Write the only checkpoint of a model that is fitted at once, and return its folder. write: writes its files"""
    folder = path / "checkpoints" / "step-00000000"
    with whole_folder(folder) as building:
        write(building)
        manifest.write(building, manifest.entries_of(building))
    return folder
