"""What a training reads, epoch by epoch, or window by window in the order of time, and where it begins."""

from dataclasses import dataclass
from functools import partial

import pytorch_lightning as pl

from recsys.base.console import say
from recsys.base.errors import UserError
from recsys.data.features.grow import fresh_rows
from recsys.data.loader.parquet_loader import ParquetLoader
from recsys.data.loader.training_rows import training_counts, training_pairs
from recsys.data.prepare.prepared import Prepared
from recsys.distributed.ranks import Ranks
from recsys.files.run_files import best_checkpoint, newest_checkpoint
from recsys.job.kinds import meta_task
from recsys.job.resumed import run_to_start_from
from recsys.job.run_config import RunConfig
from recsys.sharding.tables import tables
from recsys.training.advice import cut_lists, short_training, tells_the_item
from recsys.training.checkpoints import newest_intact_checkpoint
from recsys.training.loaders import split_loader
from recsys.training.module_settings import Beginning
from recsys.training.run_dir import RunFolder
from recsys.training.run_state import RunState

MIN_ROWS = 2  # of a window, for each process: batch normalisation needs two


class Windows(pl.LightningDataModule):
    """The windows of the training rows: an epoch trains on one, and its validation measures the next one.

    The validation of the last epoch measures the validation split. Every epoch has a loader of its own, so that a
    window is read in the order in which a training on its rows alone would read them.
    """

    def __init__(self, cfg: RunConfig, prepared: Prepared, ranks: Ranks) -> None:
        super().__init__()
        self._cfg, self._prepared, self._ranks = cfg, prepared, ranks
        self._windows = prepared.windows(MIN_ROWS * ranks.world_size)

    def __len__(self) -> int:
        return len(self._windows)

    def training(self, window: int) -> ParquetLoader:
        """Return the loader that trains on a window."""
        files = self._windows[window]
        return split_loader(self._cfg, self._prepared, "train", self._ranks, training=True, files=files)

    def train_dataloader(self) -> ParquetLoader:
        assert self.trainer is not None
        return self.training(min(self.trainer.current_epoch, len(self) - 1))  # a resumed run may be at its end

    def val_dataloader(self) -> ParquetLoader:
        assert self.trainer is not None
        following = self.trainer.current_epoch + 1
        if following >= len(self):
            return split_loader(self._cfg, self._prepared, "validation", self._ranks)
        return split_loader(self._cfg, self._prepared, "train", self._ranks, files=self._windows[following])


@dataclass(frozen=True)
class Epochs:
    """The epochs of a training.

    training: the loader of an epoch; that of the first window if there are windows
    validation: the loader of the validation rows; None if there are none
    windows: the windows of training rows, each of which is an epoch; None without windows
    batches: number of batches of each epoch
    steps: number of optimizer steps of the whole training
    """

    training: ParquetLoader
    validation: ParquetLoader | None
    windows: Windows | None
    batches: list[int]
    steps: int


def plan_epochs(cfg: RunConfig, folder: RunFolder, prepared: Prepared, ranks: Ranks) -> Epochs:
    """Return the epochs of a run. Raises UserError if validations within an epoch would come after its end."""
    windows = Windows(cfg, prepared, ranks) if cfg.data.split.window is not None else None
    validation = split_loader(cfg, prepared, "validation", ranks) if prepared.rows("validation") else None
    if windows is not None:
        batches = [len(windows.training(i)) for i in range(len(windows))]
        say(f"{len(windows):,} windows of training rows, each measured before it is trained on")
        steps = sum(_steps(cfg, n) for n in batches)
        return Epochs(windows.training(0), validation, windows, batches, steps)
    training = split_loader(cfg, prepared, "train", ranks, training=True)
    if not folder.resumed:
        training.start_reading()
    if ranks.rank == 0 and cfg.debug.train_batches is None and (rest := training.total_rows - training.rows):
        others = ", other rows in each" if cfg.loader.shuffle else ""
        say(f"{rest:,} of {training.total_rows:,} training rows fill no batch; each epoch leaves them out{others}")
    every, n = cfg.trainer.validate_every_n_steps, len(training)
    if every is not None and cfg.trainer.accumulate > 1 and every > n:
        raise UserError(
            f"trainer.validate_every_n_steps={every}: with trainer.accumulate above 1 it must be at most "
            f"{n}, the number of batches in an epoch; or set trainer.validate_every, in epochs"
        )
    return Epochs(training, validation, None, [n] * cfg.trainer.max_epochs, _steps(cfg, n))


def _steps(cfg: RunConfig, batches: int) -> int:
    """Return the number of optimizer steps of trainer.max_epochs epochs of this many batches."""
    steps = -(-batches // cfg.trainer.accumulate) * cfg.trainer.max_epochs
    return min(steps, cfg.trainer.max_steps) if cfg.trainer.max_steps > 0 else steps


def say_advice(cfg: RunConfig, prepared: Prepared, epochs: Epochs) -> None:
    """Say what a training of a retrieval model can hardly learn from."""
    if cfg.kind.scores_rows:
        return
    read = {table.vocabulary for table in tables(meta_task(cfg, prepared.fitted.features)).values()}
    counts = prepared.fitted.item_vocabulary["count"].to_numpy()
    interactions = float(counts.sum()) / max(len(counts), 1)  # of an item
    trained = epochs.steps * cfg.trainer.accumulate / max(len(epochs.training), 1)
    lines = cut_lists(cfg, prepared), tells_the_item(prepared, read), short_training(cfg, interactions, trained)
    for line in lines:
        if line is not None:
            say(line)


def beginning_of(cfg: RunConfig, folder: RunFolder, prepared: Prepared) -> Beginning:
    """Return what a training begins with: its own checkpoint, that of another run, or initial weights. Collective."""
    read = partial(training_pairs, prepared), partial(training_counts, prepared)
    if folder.resumed and (newest := newest_intact_checkpoint(folder.path)) is not None:
        known = folder.start is not None and folder.start.checkpoint == newest
        return Beginning(*read, resumed=folder.start if known else RunState.load(newest))
    if (run := run_to_start_from(cfg)) is None:
        return Beginning(*read)
    if (checkpoint := best_checkpoint(run) or newest_checkpoint(run)) is None:
        raise UserError(f"start_from={run}: has no complete checkpoint; resume it first")
    return Beginning(*read, start_from=(checkpoint, fresh_rows(prepared.fitted)))
