"""How the rows are split into training, validation and test: by the names of files, by time, by groups or at random."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from recsys.new.column_kinds import Column
from recsys.new.find_files import globs_for, split_of
from recsys.new.label import LabelGuess

SHARES = (0.1, 0.15, 0.2, 0.25, 0.3)  # tried in this order, since few different times make empty splits


@dataclass
class Split:
    """A proposed split: the settings of `split:`, and why they are proposed."""

    settings: dict[str, Any]
    why: str

    @property
    def by_files(self) -> bool:
        """Whether files are splits."""
        return "train_files" in self.settings


def split_by_files(root: Path, files: Sequence[Path]) -> Split | None:
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
    why = "the names of the files and folders"
    why += "; the validation files are the test split, as there is no other" if dev else ""
    why += "; the last tenth of the training rows is for validation" if not named["validation"] else ""
    globs = {f"{split}_files": globs_for(root, its) for split, its in named.items() if its}
    return Split({"by": "files", **globs}, why)


def split_by_time(c: Column, label: LabelGuess | None, column: str) -> Split | None:
    """Return a split by time, None if a split would be empty or, in the sample, have labels of one kind.

    Rows of one moment stay together.
    """
    assert c.time is not None
    times = c.numbers if c.time.moments is None else c.time.moments.dt.epoch("us")
    assert times is not None
    x, y = times.cast(pl.Float64).to_numpy(), None if label is None else label.values.to_numpy()
    known = np.isfinite(x)
    for share in SHARES if known.any() else ():
        first, second = np.quantile(x[known], (1 - 2 * share, 1 - share), method="higher")
        parts = [known & part for part in (x < first, (x >= first) & (x < second), x >= second)]
        few_rows = any(rows.sum() < 5 for rows in parts)
        if few_rows or (y is not None and any(len(np.unique(y[rows & np.isfinite(y)])) < 2 for rows in parts)):
            continue
        why = "the latest rows are the test split"
        why += "" if share == SHARES[0] else f"; larger shares, since there are {len(np.unique(x))} different times"
        return Split({"by": "time", "column": column, "validation": share, "test": share}, why)
    return None


def split_at_random(reason: str) -> Split:
    """Return a random split."""
    why = f"{reason}; `by: order` if rows are in order of time"
    return Split({"by": "random", "validation": SHARES[0], "test": SHARES[0]}, why)


def split_by_groups(group: str, why: str) -> Split:
    """Return the split that keeps the rows of a group together."""
    return Split({"by": "hash", "column": group, "validation": SHARES[0], "test": SHARES[0]}, why)
