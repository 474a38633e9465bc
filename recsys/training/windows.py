"""Train window by window in the order of time (data.split.window), and measure each window before it is trained on."""

import pytorch_lightning as pl

from recsys.data.loader.parquet_loader import ParquetLoader
from recsys.data.prepare.prepared import Prepared
from recsys.distributed.ranks import Ranks
from recsys.job.run_config import RunConfig
from recsys.training.loaders import split_loader

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
