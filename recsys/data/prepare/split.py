"""Assign rows to the training, validation and test split."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import polars as pl

from recsys.base.errors import UserError
from recsys.data.features.blocks import IN_SPLIT, KEY, LABEL, PLACE, ROW, SPLIT, TIME
from recsys.data.features.group_features import CONTEXT, REPEATED, TRAIN
from recsys.data.features.value_index import shares, shares_of_places
from recsys.data.prepare.chunks import ParsedChunk
from recsys.schema.data_schema import SplitConfig

SPLITS = ("train", "validation", "test")
NEGATIVES_SEED = 0x5EED  # unlike that of a random split, whose shares it must not repeat
IN_MEMORY = 1 << 22  # numbers held in memory by `order_statistic`


class Splitter:
    """Assigns each row a split from its place, time, key or file alone.

    A split is 0 (train), 1 (validation), 2 (test), or 4 (CONTEXT) for rows in none.

    Args:
        negatives: the share of the negative training rows that train; nothing is fitted to the others, and they stay in
            the histories of later rows.
    """

    def __init__(self, config: SplitConfig, chunks: Sequence[ParsedChunk], negatives: float = 1.0) -> None:
        self.config, self._negatives = config, negatives
        total = sum(c.rows for c in chunks)
        held_out = config.validation + config.test
        after = 0 if config.origins is None else config.origins - 1 - config.fold
        self._later = later = config.test * after  # share of the rows after an origin's test rows, in no split
        shares_after = (later + held_out, later + config.test, *([later] if later else []))
        self._bounds = tuple(total - round(total * share) for share in shares_after)
        self._first_validation = _first_validation(chunks, config.validation) if config.by == "files" else 0
        self._draws_validation = config.validation_rows == "random" and not config.validation_files
        self._times: list[float] = []
        if config.by == "time":

            def times() -> Iterator[np.ndarray]:
                for chunk in chunks:
                    for frame in chunk.frames([TIME]):
                        yield frame[TIME].to_numpy()

            held = zip(shares_after, self._bounds, strict=True)  # a split without a share begins after all times
            self._times = [order_statistic(times, min(b, total - 1)) if share else np.inf for share, b in held]
            if config.window is not None:  # held-out rows begin with a window
                self._times = [t // config.window * config.window if t < np.inf else t for t in self._times]

    @property
    def columns(self) -> set[str]:
        """The columns of parsed rows that the split depends on."""
        return {TIME, KEY, SPLIT, IN_SPLIT, *([LABEL] if self._negatives < 1 else [])}

    def assign(self, frame: pl.DataFrame, split: int | None) -> np.ndarray:
        """Return the split of each row: (rows,) uint8.

        Args:
            frame: parsed rows with their row numbers.
            split: the split of their file, with data.split.by=files.
        """
        if SPLIT in frame.columns:  # arranged rows have it already
            return frame[SPLIT].to_numpy()
        split_of = self._assign(frame, split)
        if IN_SPLIT in frame.columns:
            split_of[(frame[IN_SPLIT] == 0).to_numpy()] = CONTEXT
        return split_of

    def _assign(self, frame: pl.DataFrame, split: int | None) -> np.ndarray:
        by = self.config.by
        if by == "files":
            assert split is not None
            if split == 0 and self._draws_validation:
                draws = shares_of_places(frame[PLACE].to_numpy(), self.config.seed)
                return (draws >= 1 - self.config.validation).astype(np.uint8)
            if split == 0:
                return (frame[PLACE].to_numpy() >= self._first_validation).astype(np.uint8)
            return np.full(frame.height, split, dtype=np.uint8)
        if by == "order":
            return np.digitize(frame[PLACE].to_numpy(), self._bounds).astype(np.uint8)
        if by == "time":  # rows of one moment stay together
            split_of = np.digitize(frame[TIME].to_numpy(), self._times)
            return np.where(split_of < len(SPLITS), split_of, CONTEXT).astype(np.uint8)
        if KEY in frame.columns:
            draws = shares(frame[KEY], self.config.seed)
        else:
            draws = shares_of_places(frame[PLACE].to_numpy(), self.config.seed)
        if by == "kfold":
            folds = (draws * self.config.folds).astype(int)
            validates = (self.config.fold + 1) % self.config.folds
            return np.select([folds == self.config.fold, folds == validates], [2, 1], 0).astype(np.uint8)
        held_out = self.config.validation + self.config.test
        return np.digitize(draws, (1 - held_out, 1 - self.config.test)).astype(np.uint8)

    def with_row(self, frame: pl.DataFrame, split: int | None) -> tuple[pl.DataFrame, pl.Series]:
        """Add the column ROW; return the rows and the split of each, (rows,), CONTEXT for negatives left out."""
        which = pl.Series(self.assign(frame, split))
        if self._negatives < 1:
            kept = pl.Series(shares_of_places(frame[PLACE].to_numpy(), NEGATIVES_SEED) < self._negatives)
            left_out = which.is_in([TRAIN, REPEATED]) & (frame[LABEL] == 0).fill_null(False) & ~kept
            which = which.set(left_out, CONTEXT)
        return frame.with_columns(pl.when(which == 0).then(pl.col(PLACE)).alias(ROW)), which

    def windows(self, frame: pl.DataFrame) -> pl.Series | None:
        """Return the number of each row's window, counted from time 0, (rows,); None without data.split.window."""
        if self.config.window is None:
            return None
        return (frame[TIME] / self.config.window).floor().cast(pl.Int64)

    def describe(self) -> str:
        """Describe the split in one line. recsys.report compares it between runs, so do not reword it."""
        c = self.config
        if c.by == "files":
            if c.validation_files:
                return f"files: train{', validation and test' if c.test else ' and validation'} as published"
            which = f"the last {c.validation:.0%} of train's rows"
            if c.validation_rows == "random":
                which = f"{c.validation:.0%} of train's rows, drawn with seed {c.seed},"
            rest = f"; {which} validate, not train" if c.validation else ""
            return f"files: train{' and test' * bool(c.test)} as published{rest}"
        if c.by == "leave_one_out":
            if not c.test:
                return f"leave_one_out: {'of each group the last row validates' if c.validation else 'all rows train'}"
            rest = ", the one before it validates" if c.validation else ""
            return f"leave_one_out: of each group the last row tests{rest}"
        if c.by == "kfold":
            unit = f"of {c.column}" if c.column else "of rows at random"
            return f"kfold: fold {c.fold} of {c.folds} tests, the next one validates; {unit}, seed {c.seed}"
        sizes = f"{1 - c.validation - c.test - self._later:.0%} / {c.validation:.0%} / {c.test:.0%}"
        detail = {"order": "in the files' order", "time": f"by {c.column}", "random": f"at random, seed {c.seed}"}
        detail["hash"] = f"of the values of {c.column}, seed {c.seed}"
        origin = "" if c.origins is None else f", origin {c.fold} of {c.origins}"
        window = "" if c.window is None else f", in windows of {c.window:g}"
        return f"{c.by}: {sizes} {detail[c.by]}{origin}{window}"


def _first_validation(chunks: Sequence[ParsedChunk], share: float) -> int:
    """Return the row number from which rows of the training files are validation rows.

    It is the end of these files if there are validation files.
    """
    places = [(c.first_row, c.rows) for c in chunks if c.split == 0]
    end = max((first + rows for first, rows in places), default=0)
    if any(c.split == 1 for c in chunks):
        return end
    left = sum(rows for _, rows in places)
    left -= round(left * share)
    for first, rows in places:
        if left < rows:
            return first + left
        left -= rows
    return end


def order_statistic(arrays: Callable[[], Iterator[np.ndarray]], k: int) -> float:
    """Return the k-th smallest number, counted from 0, holding at most IN_MEMORY numbers. arrays: yields all numbers.

    Each pass narrows the range that contains it by a histogram.
    """
    low, high, below, inside = -np.inf, np.inf, 0, None
    while True:
        if inside is not None and inside <= IN_MEMORY:
            kept = np.concatenate([a[(a >= low) & (a <= high)] for a in arrays()])
            return float(np.partition(kept, k - below)[k - below])
        if inside is None or not np.isfinite([low, high]).all():
            ends = [(a.min(), a.max(), len(a)) for a in arrays() if len(a)]
            low, high = min(e[0] for e in ends), max(e[1] for e in ends)
            inside = sum(e[2] for e in ends)
            continue
        if np.nextafter(low, np.inf) >= high:  # adjacent floats, or the same
            at_low = sum(int((a == low).sum()) for a in arrays())
            return float(low if k - below < at_low else high)
        edges = np.unique(np.linspace(low, high, 4097))
        counts = np.zeros(len(edges) - 1, np.int64)
        for a in arrays():
            counts += np.histogram(a[(a >= low) & (a <= high)], edges)[0]
        bin_ = int(np.searchsorted(np.cumsum(counts), k - below, side="right"))
        below += int(counts[:bin_].sum())
        inside = int(counts[bin_])
        last = bin_ == len(counts) - 1  # only the last bin includes its upper edge
        low, high = edges[bin_], edges[bin_ + 1] if last else np.nextafter(edges[bin_ + 1], -np.inf)


def check_split(split: SplitConfig) -> None:
    """Check data.split. Raises UserError if it is invalid."""
    if split.by in ("time", "hash") and not split.column:
        raise UserError(f"data.split.column: missing; data.split.by={split.by} needs it")
    if split.validation_rows == "random" and (split.by != "files" or split.validation_files):
        raise UserError(
            "data.split.validation_rows=random: applies to data.split.by=files without validation_files; set "
            "data.split.validation_rows=last"
        )
    if split.fold >= {"kfold": split.folds, "time": split.origins or 1}.get(split.by, 1):
        limit = "below data.split.folds with by=kfold, and below data.split.origins with by=time"
        raise UserError(f"data.split.fold={split.fold}: must be {limit}")
    for key, by in (("folds", "kfold"), ("origins", "time"), ("window", "time"), ("context_files", "files")):
        if (value := getattr(split, key)) != getattr(SplitConfig(), key) and split.by != by:
            also = "; for several tests in time, set data.split.origins" if (key, split.by) == ("folds", "time") else ""
            raise UserError(f"data.split.{key}={value}: needs data.split.by={by}, and this is by={split.by}{also}")
    if split.origins is not None and split.validation + split.test * split.origins >= 1:
        shares = f"validation={split.validation} and origins={split.origins} test splits of test={split.test}"
        raise UserError(f"data.split: {shares} leave no rows to train on; lower one of them")
    if split.window is not None and not split.validation:
        why = "the last window is measured on the validation split"
        raise UserError(f"data.split.window={split.window:g}: {why}; set data.split.validation above 0")
    if split.validation < 0 or split.test < 0 or split.validation + split.test >= 1:
        shares = f"validation={split.validation} and test={split.test}"
        raise UserError(f"data.split: {shares}: must be shares from 0 on, below 1 in all")
    tests = split.by == "kfold" or split.origins is not None or (split.by == "files" and split.test_files)
    if tests and not split.test:
        why = "folds, origins and test_files test; to train on all rows, set data.split.by=random, and leave them out"
        raise UserError(f"data.split.test=0: {why}")
    if split.by == "files" and not (split.train_files and (split.test_files or not split.test)):
        raise UserError(
            "data.split.by=files: needs train_files and test_files; without validation_files, the last rows of the "
            f"training files are used for validation (data.split.validation={split.validation}, validation_rows=last)"
        )
