"""Which rows train, which validate, which test."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from recsys.data.hashing import shares
from recsys.data.transforms import KEY, TIME
from recsys.errors import UserError
from recsys.schema import SplitConfig

SPLITS = ("train", "validation", "test")


@dataclass(frozen=True)
class Part:
    """A spilled piece of the raw data, in reading order."""

    path: Path
    first_row: int
    rows: int
    split: int | None  # where whole files are assigned (split.by=files)

    def read(self) -> pl.DataFrame:
        return pl.read_parquet(self.path)


class Splitter:
    """Tells each row's split (0 train, 1 validation, 2 test) from the row's place, time or file alone."""

    def __init__(self, config: SplitConfig, parts: Sequence[Part]) -> None:
        self.config = config
        total = sum(p.rows for p in parts)
        held_out = config.validation + config.test
        self._bounds = (total - round(total * held_out), total - round(total * config.test))
        self._times = (0.0, 0.0)
        if config.by == "time":
            times = np.sort(np.concatenate([pl.read_parquet(p.path, columns=[TIME])[TIME].to_numpy() for p in parts]))
            last = len(times) - 1
            self._times = (float(times[min(self._bounds[0], last)]), float(times[min(self._bounds[1], last)]))

    def of(self, part: Part, frame: pl.DataFrame) -> np.ndarray:
        """(rows,) uint8."""
        by = self.config.by
        if by == "files":
            assert part.split is not None
            return np.full(part.rows, part.split, dtype=np.uint8)
        if by == "order":
            rows = np.arange(part.first_row, part.first_row + part.rows)
            return np.digitize(rows, self._bounds).astype(np.uint8)
        if by == "time":  # rows of one moment stay together
            return np.digitize(frame[TIME].to_numpy(), self._times).astype(np.uint8)
        if KEY in frame.columns:
            draws = shares(frame[KEY], self.config.seed)
        else:
            draws = np.random.default_rng([self.config.seed, part.first_row]).random(part.rows)
        if by == "kfold":
            folds = (draws * self.config.folds).astype(int)
            validates = (self.config.fold + 1) % self.config.folds
            return np.select([folds == self.config.fold, folds == validates], [2, 1], 0).astype(np.uint8)
        held_out = self.config.validation + self.config.test
        return np.digitize(draws, (1 - held_out, 1 - self.config.test)).astype(np.uint8)

    def describe(self) -> str:
        c = self.config
        if c.by == "files":
            return "files: train, validation and test as published"
        if c.by == "kfold":
            of = f"of {c.column}" if c.column else "of rows at random"
            return f"kfold: fold {c.fold} of {c.folds} tests, the next one validates; {of}, seed {c.seed}"
        sizes = f"{1 - c.validation - c.test:.0%} / {c.validation:.0%} / {c.test:.0%}"
        detail = {"order": "in the files' order", "time": f"by {c.column}", "random": f"at random, seed {c.seed}"}
        detail["hash"] = f"of the values of {c.column}, seed {c.seed}"
        return f"{c.by}: {sizes} {detail[c.by]}"


def check_split(split: SplitConfig) -> None:
    if split.by not in ("order", "time", "random", "hash", "kfold", "files"):
        raise UserError(f"data.split.by={split.by}: must be order, time, random, hash, kfold or files")
    if split.by in ("time", "hash") and not split.column:
        raise UserError(f"data.split.column: needed for data.split.by={split.by}")
    if split.by == "kfold" and not (split.folds >= 3 and 0 <= split.fold < split.folds):
        raise UserError(
            f"data.split: folds={split.folds} must be at least 3, and fold={split.fold} one of them, from 0"
        )
    if split.seed < 0:
        raise UserError(f"data.split.seed={split.seed}: must not be negative")
    if split.by == "files" and not (split.train_files and split.validation_files and split.test_files):
        raise UserError("data.split.by=files needs train_files, validation_files and test_files")
    if not (0 <= split.validation < 1 and 0 < split.test < 1 and split.validation + split.test < 1):
        raise UserError(
            f"data.split: validation={split.validation} and test={split.test} must be shares whose sum is below 1"
        )
