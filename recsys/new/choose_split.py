"""Propose how rows are split into training, validation and test."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from recsys.new.column_kinds import Column
from recsys.new.find_files import globs_for, split_of
from recsys.new.label import LabelGuess

SHARE = 0.1
SHARES = (0.1, 0.15, 0.2, 0.25, 0.3)  # tried in this order, since few different times make empty splits
FEWEST = 5  # rows of the sample in a split


@dataclass
class Split:
    """A proposed split: the settings of `split:`, and why they are proposed."""

    settings: dict[str, Any]
    why: str

    @property
    def by_files(self) -> bool:
        """Whether files are splits."""
        return self.settings["by"] == "files"


def by_files(root: Path, files: Sequence[Path]) -> Split | None:
    """Return the split by the names of files and folders; None if they name no training files or no test files."""
    named: dict[str, list[Path]] = {"train": [], "validation": [], "test": []}
    for f in files:
        named.setdefault(split_of(f, root) or "", []).append(f)
    if named["test"] and not named["train"] and len(named.get("", [])) == 1:  # such as adult.data and adult.test
        named["train"] = named.pop("")
    dev = not named["test"]
    if dev:  # the rows that come with the data to compare with
        named["test"], named["validation"] = named["validation"], []
    if not named["train"] or not named["test"] or named.get(""):
        return None
    settings: dict[str, Any] = {"by": "files"}
    for split, its in named.items():
        if its:
            settings[f"{split}_files"] = globs_for(root, its)
    why = "the names of the files"
    every = [f for its in named.values() for f in its]
    if contradicted := next((f for f in every if split_of(f, root) != split_of(Path(f.name)) is not None), None):
        why = f"the names of the folders; {contradicted.name} is in {contradicted.parent.name}"
    if dev:
        why += "; the validation files are the test split, as there is no other"
    if not named["validation"]:
        why += "; the last tenth of the training rows is for validation"
    return Split(settings, why)


def by_time(c: Column, label: LabelGuess | None, column: str) -> Split | None:
    """Return a split by time, None if a split would be empty or, in the sample, have labels of one kind."""
    assert c.time is not None
    times = c.numbers if c.time.moments is None else c.time.moments.dt.epoch("us")
    assert times is not None
    x = times.cast(pl.Float64).to_numpy()
    y = None if label is None else label.values.to_numpy()
    for share in SHARES:
        if _divides(x, y, share):
            why = "the latest rows are the test split"
            why += "" if share == SHARES[0] else f"; larger shares, since there are {len(np.unique(x))} different times"
            return Split({"by": "time", "column": column, "validation": share, "test": share}, why)
    return None


def _divides(x: np.ndarray, y: np.ndarray | None, share: float) -> bool:
    """Return True if all three splits have rows, with labels of both kinds. Rows of one moment stay together."""
    known = np.isfinite(x)
    if not known.any():
        return False
    first, second = np.quantile(x[known], (1 - 2 * share, 1 - share), method="higher")
    for part in (x < first, (x >= first) & (x < second), x >= second):
        rows = part & known
        if rows.sum() < FEWEST or (y is not None and len(np.unique(y[rows & np.isfinite(y)])) < 2):
            return False
    return True


def at_random(reason: str) -> Split:
    """Return a random split."""
    return Split(
        {"by": "random", "validation": SHARE, "test": SHARE}, f"{reason}; `by: order` if rows are in order of time"
    )


def by_groups(group: str, why: str) -> Split:
    """Return the split that keeps the rows of a group together."""
    return Split({"by": "hash", "column": group, "validation": SHARE, "test": SHARE}, why)


def of_lists() -> Split:
    """Return the split that holds out whole lines of lists without users."""
    return by_groups("list", "whole lines are held out; the column `list` identifies them")


def leave_one_out() -> Split:
    """Return the split that holds out the last items of each user."""
    return Split({"by": "leave_one_out"}, "each user's last item is a test row, the one before it a validation row")
