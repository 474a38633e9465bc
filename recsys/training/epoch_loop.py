"""Lightning's loop over the batches of an epoch, which calls hooks and callbacks once for several steps.

Around each step Lightning calls some forty hooks, updates its tables of metrics and, with several ranks, broadcasts: as
much work for the host as the step of a small model. Here hooks and callbacks are called after a step that something is
due after, such as a validation, a checkpoint, a line of the log or the answer to a signal; the steps before it are
steps alone. So nothing that is due moves.
"""

import math
import time

import pytorch_lightning as pl
from pytorch_lightning.loops.fetchers import _DataFetcher
from pytorch_lightning.loops.training_epoch_loop import _TrainingEpochLoop

from recsys.base import interrupts

SHARED_STEPS = 20  # after which the ranks compare their clocks and signals, and so call the hooks together
SECONDS = 0.2  # after which a process calls the hooks at the latest, so that a progress bar moves


class CloseCallback(pl.Callback):
    """A callback that chooses batches around which its hooks are called, beside those that something is due after."""

    def needs(self, batch: int) -> bool:
        """Return whether the hooks of a batch are needed. batch: its number in the epoch, from 1"""
        return True


class EpochLoop(_TrainingEpochLoop):
    """The loop of a `trainer`, in place of Lightning's own.

    Args:
        accumulate: number of batches of a step.
        log_every_n_steps: steps from one line of the log to the next.
        save_every_n_steps: steps from one checkpoint to the next; None for no such cadence.
        validate_from: step before which no validation is made, other than that of a run that stops early.

    Attributes:
        ends_step: whether the current batch is the last one of a step.
        is_shared: whether it ends a step after which all ranks call the hooks.
    """

    def __init__(
        self,
        trainer: pl.Trainer,
        *,
        accumulate: int = 1,
        log_every_n_steps: int,
        save_every_n_steps: int | None = None,
        validate_from: int = 0,
    ) -> None:
        super().__init__(trainer, min_steps=trainer.min_steps, max_steps=trainer.max_steps)
        self.ends_step = self.is_shared = False
        self._accumulate, self._log_every = accumulate, log_every_n_steps
        self._save_every, self._validate_from = save_every_n_steps, validate_from
        self._since_shared = 0  # batches of this process
        self._called = -math.inf  # when hooks were called last
        self._begins = True  # an epoch, or what a resumed run has left of it

    def on_run_start(self, data_fetcher: _DataFetcher) -> None:
        super().on_run_start(data_fetcher)
        self._begins = True
        self._close = [c for c in self.trainer.callbacks if isinstance(c, CloseCallback)]  # type: ignore[attr-defined]

    def advance(self, data_fetcher: _DataFetcher) -> None:
        """Train batches, the last of which something is due after."""
        while not self._is_due() and not self.restarting:
            batch, _, _ = next(data_fetcher)
            self.batch_progress.is_last_batch = False
            self.batch_progress.increment_ready()
            self.batch_progress.increment_started()
            self.trainer.strategy.training_step(batch, self.batch_idx)
            self.batch_progress.increment_processed()
            self.batch_progress.increment_completed()
            self._batches_that_stepped += 1
        super().advance(data_fetcher)
        self._called, self._begins = time.monotonic(), False

    def _is_due(self) -> bool:
        """Return whether something is due after the next batch, which is counted."""
        batch, total = self.batch_progress.current.ready + 1, self.batch_progress.total.ready + 1
        last = batch == self.trainer.num_training_batches
        self.ends_step = last or batch % self._accumulate == 0
        self._since_shared = 1 if self.is_shared else self._since_shared + 1
        self.is_shared = self.ends_step and self._since_shared >= SHARED_STEPS
        if last or self._begins or self.is_shared or any(c.needs(batch) for c in self._close):
            return True
        # Lightning logs by the number of batches of all epochs, and the module by their number in this epoch
        if (self._batches_that_stepped + 1) % self._log_every == 0 or batch % (self._log_every * self._accumulate) == 0:
            return True
        validate_every = self.trainer.val_check_batch
        if isinstance(validate_every, int) and 0 in (batch % validate_every, total % validate_every):
            return True
        if not self.ends_step:
            return False
        step = self.global_step + 1
        saves = self._save_every is not None and step % self._save_every == 0
        is_late = time.monotonic() - self._called > SECONDS
        return saves or 0 < self.max_steps <= step or is_late or interrupts.requested()

    def _should_check_val_fx(self, data_fetcher: _DataFetcher) -> bool:
        begins = self.global_step >= self._validate_from or self.trainer.should_stop
        return begins and super()._should_check_val_fx(data_fetcher)

    def validates_next(self) -> bool:
        """Return whether a validation is due after the current batch, other than that of a run that stops early."""
        stops, self.trainer.should_stop = self.trainer.should_stop, False
        # private: Lightning says only whether it has validated, and a checkpoint must know before
        fetcher = self.trainer.fit_loop._data_fetcher
        assert fetcher is not None
        due = self._should_check_val_fx(fetcher)
        self.trainer.should_stop = stops
        return due

    def count_step(self) -> None:
        """Count a step of the optimizer."""
        self.manual_optimization.optim_step_progress.increment_ready()
        self.manual_optimization.optim_step_progress.increment_completed()

    def _broadcast_sigterm_tensor(self) -> None:
        """Do nothing: the callback Interrupts answers signals, after shared batches."""


def loop_of(trainer: pl.Trainer) -> EpochLoop:
    """Return the loop that `build_trainer` gave a trainer."""
    loop = trainer.fit_loop.epoch_loop
    assert isinstance(loop, EpochLoop)
    return loop
