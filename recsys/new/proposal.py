"""The config of a data set that recsys.new proposes, its split, and the reasons."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from recsys.new.column_kinds import Column, Features, sql_name
from recsys.new.find_files import globs_for, split_of
from recsys.new.label import LabelGuess
from recsys.new.questions import Question
from recsys.new.roles import Roles

MAX_SMALL = 2_000_000  # rows of which one epoch makes few steps
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


@dataclass
class Proposal:
    """The config of a data set, and the reasons."""

    root: str  # the folder of the files
    source: dict[str, Any]
    reasons: dict[str, str]  # key of `source:` -> why it has its value
    columns: list[Column]  # of the rows
    roles: Roles
    label: LabelGuess | None  # None for retrieval models
    split: Split
    features: Features
    rows: int  # their number, estimated
    typed: bool  # whether columns have types, which SQL has to turn into text
    no_time: str  # why the rows have no time, if they have none
    questions: list[Question] = field(default_factory=list)  # what the files do not tell, the gravest first
    unused: list[tuple[str, str]] = field(default_factory=list)  # files that are not of the rows, and why
    where: dict[str, str] = field(default_factory=dict)  # SQL conditions of rows to use -> what the other rows lack
    group: dict[str, Any] | None = None  # for retrieval models: whose rows belong together
    max_length: int = 0  # for retrieval models: of their sequences
    repeats: bool = False  # for retrieval models: whether users often come back to an item
    position: str = ""  # for ranking models: the column of the items' places in lists
    copies: str = ""  # how many of the rows that were looked at are copies of others

    @property
    def retrieves(self) -> bool:
        """Whether the config is for retrieval models."""
        return self.group is not None

    def leave_out_without(self, columns: Iterable[Column], what: str = "") -> None:
        """Leave out the rows that lack a value of one of these columns. what: what they lack; else the column"""
        self.where |= {f"{sql_name(c.name)} IS NOT NULL": what or c.name for c in columns if c.missing}

    def time_column(self, time: Column) -> str:
        """Return the column of a time: the file's, or one that is derived by SQL."""
        assert time.time is not None
        if time.time.sql is None:
            return time.name
        sql = time.time.sql_of(time, typed=self.typed)
        derived = next((name for name, other_sql in self.features.derive.items() if other_sql == sql), None)
        if derived is None:
            derived = f"{time.name}_time"
            self.features.derive[derived] = sql
        return derived

    def command(self, name: str) -> str:
        """Return the command that trains; one epoch of few rows makes few steps."""
        if self.retrieves:
            return f"python -m recsys.train data={name} model=sasrec" + " protocol.filter_history=false" * self.repeats
        single = " model=dcnv2" if len(self.features.inputs) == 1 else ""  # model=dlrm multiplies pairs of vectors
        small = " trainer=until_best" if self.rows < MAX_SMALL else ""
        small += " trainer.batch_size=256" if self.rows < MAX_SMALL / 10 else ""
        return f"python -m recsys.train data={name}{single}{small}"
