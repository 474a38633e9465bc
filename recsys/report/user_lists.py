"""Lists of several runs for the same users, side by side: which users are shown, and their section of the page."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, NamedTuple

import numpy as np

from recsys.base.errors import UserError
from recsys.evaluation.metrics_table import label
from recsys.files.run_files import best_checkpoint
from recsys.pages.elements import plain, tail
from recsys.pages.page_table import Cell, Cells, Column, PageTable
from recsys.report.comparison import Group, kept_ranks, row_metrics
from recsys.report.comparison_table import not_compared
from recsys.report.runs import ReportedRun
from recsys.schema.command_schemas import ReportConfig

MOST_RUNS = 4
MOST_HISTORY, MOST_TARGETS = 10, 5  # items that are shown

Words = Mapping[str, Sequence[str]]  # item -> its title, and short texts about it


class Rank(NamedTuple):
    """The number of candidates that score higher than a target, and of those that score the same."""

    greater: int
    ties: int

    def __str__(self) -> str:
        first, last = 1 + self.greater, 1 + self.greater + self.ties
        return f"{first:,}" if first == last else f"{first:,} to {last:,}"


@dataclass(frozen=True)
class RunList:
    """The best items of one run, best first.

    ranks: of each target that is one of the run's candidates
    evaluated: the ranks that the evaluation has kept; empty if it has kept none
    """

    items: list[str]
    ranks: dict[str, Rank]
    evaluated: dict[str, Rank]

    def rank(self, target: str) -> str:
        """Return a target's rank in words, with that of the evaluation if it differs."""
        if target not in self.ranks:
            return "not a candidate"
        rank, evaluated = self.ranks[target], self.evaluated.get(target)
        return f"{rank}" if evaluated in (None, rank) else f"{rank} ({evaluated} in the evaluation)"


@dataclass(frozen=True)
class UserLists:
    """A test row: its user, the items before it, the items that followed, and the list of each run."""

    row: int
    user: str
    history: list[str]
    targets: list[str]
    lists: list[RunList]

    @property
    def best_first(self) -> list[str]:
        """The items that followed, the one with the best rank in any list first."""
        last = Rank(sys.maxsize, 0)
        return sorted(self.targets, key=lambda t: min(x.ranks.get(t, last) for x in self.lists))


@dataclass(frozen=True)
class Choice:
    """Test rows to show.

    runs: the runs whose lists are shown
    rows: numbers of the rows, the first to be shown in front
    users: the users to show; None for `count` users, those of the first rows
    how: how they are chosen, in words
    metric, values: a metric, and its value of each row for each run; none for a run that kept no ranks
    """

    runs: Sequence[ReportedRun]
    rows: Sequence[int]
    users: list[str] | None
    count: int
    how: str
    metric: str
    values: list[dict[int, float]]


def check_lists(runs: Sequence[ReportedRun]) -> None:
    """Raise UserError if a run that has finished has no lists."""
    for run in runs:
        if run.metrics is not None and not run.retrieves:
            why = f"{run.name} predicts labels, and lists are those of retrieval models"
            raise UserError(f"users: {why}; leave out users, or this run")
        if run.metrics is not None and best_checkpoint(run.path) is None:
            raise UserError(f"users: {run.path} has no checkpoint, which its lists need; leave out users, or this run")


def choose(cfg: ReportConfig, groups: Sequence[Group]) -> Choice:
    """Choose test rows. Raises UserError if runs were tested on different rows, or kept no ranks to choose by."""
    if not groups:
        raise UserError("users: no run has finished, so there are no lists; leave out users")
    if groups[1:]:
        raise UserError(f"users: {not_compared(groups)[0]}; name runs that were tested on the same rows")
    lines, metric = groups[0].lines, groups[0].main
    every = [line.first for line in lines] if len(lines) > 1 else lines[0].runs  # the first seed of each config
    runs = every[:MOST_RUNS]
    values = [_values(run, metric) for run in runs]
    rows: Sequence[int] = range(groups[0].rows)
    named, count = (cfg.users, len(cfg.users)) if isinstance(cfg.users, list) else (None, cfg.users or 0)
    if named is not None:
        how = "The users that were named."
    elif cfg.pick == "random" or len(runs) == 1:
        rows = np.random.default_rng(cfg.seed).permutation(len(rows)).tolist()
        how = f"Users of test rows that were drawn at random (seed {cfg.seed})."
    elif values[0] and values[1]:
        rows = by_difference(*values[:2])
        a, b = (plain(run.name, 60) for run in runs[:2])
        how = f"The users whose {label(metric)} differs most between {a} and {b}, in turn one for whom {a} is better "
        how += f"and one for whom {b} is. They are extremes, not typical users: pick=random draws users at random."
    else:
        why = f"{runs[bool(values[0])].name} kept no ranks of its test rows (metrics.predictions=false)"
        raise UserError(
            f"users={count}: {why}, so no difference is known; add pick=random, or name users: users=[ID,...]"
        )
    if every[MOST_RUNS:]:
        how += f" Of {len(every)} runs, the first {MOST_RUNS} are shown."
    return Choice(runs, rows, named, count, how, metric, values)


def _values(run: ReportedRun, metric: str) -> dict[int, float]:
    """Return a metric of each test row; empty if the run kept no ranks."""
    if (ranks := kept_ranks(run)) is None:
        return {}
    means = row_metrics(run, ranks)[1]
    rows = ranks["query"].unique(maintain_order=True)
    return dict(zip(rows, means.values[:, means.names.index(metric)].tolist(), strict=True))


def by_difference(first: Mapping[int, float], second: Mapping[int, float]) -> list[int]:
    """Return the rows by the difference of two values, the largest first: in turn a row where the first value is
    larger and one where the second is. Rows of equal difference keep their order.

    >>> by_difference({0: 0.5, 1: 0.0, 2: 0.0, 3: 1.0}, {0: 0.5, 1: 0.2, 2: 0.9, 3: 0.1})
    [3, 2, 1, 0]
    """
    larger = {row: first[row] - second[row] for row in first}
    sides = ([row for row, d in larger.items() if sign * d > 0] for sign in (1, -1))
    ordered = (sorted(side, key=lambda row: -abs(larger[row])) for side in sides)
    turns = [row for pair in zip_longest(*ordered) for row in pair if row is not None]
    return turns + [row for row, d in larger.items() if d == 0]


@dataclass(frozen=True)
class UserSection:
    """The chosen users with their lists, and words about the items in them."""

    choice: Choice
    users: Sequence[UserLists]
    words: Words

    @property
    def sentences(self) -> list[str]:
        """A line for each user: what followed, and its rank in each list."""
        lines = []
        for user in self.users:
            best, names = user.best_first[0], [run.name for run in self.choice.runs]
            ranks = ", ".join(f"{x.rank(best)} in {name}" for x, name in zip(user.lists, names, strict=True))
            more = f", the best of {len(user.targets)} items," if user.targets[1:] else ""
            lines.append(f"user {plain(user.user)}: {self._title(best)}{more} followed; rank {ranks}")
        return lines

    @property
    def differing(self) -> str:
        """A sentence if ranks differ from those of the evaluation, else an empty text."""
        lists = [x for user in self.users for x in user.lists]
        off = [abs(x.ranks[t].greater - kept.greater) for x in lists for t, kept in x.evaluated.items()]
        if not (count := sum(n > 0 for n in off)):
            return ""
        why = "other batches, GPUs and lower precision round scores in other ways"
        other = "more than a few places mean that the data or the checkpoint has changed"
        return (
            f"{count} of {len(off)} ranks differ from those of the evaluation, by at most {max(off):,}: {why}; {other}."
        )

    @property
    def parts(self) -> list[dict[str, Any]]:
        """Each user for the template: the history, a table of what followed, and one of the lists."""
        names = [tail(run.name, 28) for run in self.choice.runs]
        heads = [Column("place"), *(Column(name, left=True) for name in names)]
        ranks = [Column("what followed", left=True), *(Column(f"rank in {name}") for name in names)]
        parts = []
        for user in self.users:
            right: list[Cells] = [
                [self._cell(target), *(x.rank(target) for x in user.lists)] for target in user.best_first
            ]
            places: list[Cells] = [
                [f"{i}", *("" if item is None else self._cell(item, user) for item in items)]
                for i, items in enumerate(zip_longest(*(x.items for x in user.lists)), start=1)
            ]
            parts.append({
                "user": user.user,
                "about": f"test row {user.row:,}{self._values(user.row)}",
                "earlier": max(len(user.history) - MOST_HISTORY, 0),
                "history": [self._title(item) for item in user.history[-MOST_HISTORY:]],
                "right": PageTable(ranks, right, kind="lists", first=MOST_TARGETS),
                "lists": PageTable(heads, places, kind="lists"),
            })  # fmt: skip
        return parts

    def _values(self, row: int) -> str:
        known = zip(self.choice.runs, self.choice.values, strict=True)
        values = ", ".join(f"{tail(run.name, 28)} {of_row[row]:.4f}" for run, of_row in known if row in of_row)
        return f"; {label(self.choice.metric)}: {values}" if values else ""

    def _title(self, item: str) -> str:
        return plain(self.words.get(item, [item])[0], 60)

    def _cell(self, item: str, user: UserLists | None = None) -> Cell:
        """Return an item in words; in the lists of a user, it is marked if it was right, or is in several lists."""
        _, *about = self.words.get(item, [item])
        chip = kind = ""
        if user is not None and item in user.targets:
            chip, kind = "right", "good"
        elif user is not None and (lists := sum(item in x.items for x in user.lists)) > 1:
            chip = "in both" if len(user.lists) == 2 else f"in {lists} lists"
        below = [Cell(plain(", ".join(about), 60))] if about else []
        return Cell(self._title(item), "wrap", plain(item, 200), chip=chip, chip_kind=kind, below=below)
