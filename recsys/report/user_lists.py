"""Lists of several runs for the same users, side by side, ranked as in the evaluation. Imports torch and Lightning."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl
import torch
from torch import Tensor

from recsys.base.errors import UserError
from recsys.data.features import GROUP
from recsys.data.features.blocks import HISTORY, TARGETS
from recsys.data.features.group_features import TEST
from recsys.data.prepare.item_table import items_join
from recsys.data.prepare.prepared import parsed_rows
from recsys.data.raw.read_sources import side_table
from recsys.evaluation.metrics_table import label
from recsys.evaluation.retrieval_metrics import MISSED
from recsys.online.recommender import Recommender, top_k
from recsys.pages.elements import plain, tail
from recsys.pages.page_table import Cell, Cells, Column, PageTable
from recsys.report.comparison import RANKS, Group, row_metrics
from recsys.report.report_page import not_compared
from recsys.report.runs import ReportedRun
from recsys.schema.command_schemas import ReportConfig
from recsys.stages.read_tables import read_table
from recsys.training.loaders import loader_on_cpu
from recsys.training.run_data import prepare_to_measure
from recsys.training.run_dir import choose_checkpoint, open_run

MAX_RUNS, MAX_HISTORY = 4, 10  # that are shown
SPARE = 100  # rows that are read for each user to show, since a user may have several

Rank = tuple[int, int]  # the numbers of candidates that score higher than a target, and of those that score the same


class RunList(NamedTuple):
    """The best items of a run, best first; the ranks of targets, and those that the evaluation has kept."""

    items: list[str]
    ranks: dict[str, Rank]
    kept: dict[str, Rank]


class UserLists(NamedTuple):
    """A test row: its user, the items before it, the items that followed, and the list of each run."""

    row: int
    user: str
    history: list[str]
    targets: list[str]
    lists: list[RunList]


class UserSection(NamedTuple):
    """Users with their lists; how they were chosen; the title of each item, and short texts about it."""

    runs: Sequence[ReportedRun]
    users: Sequence[UserLists]
    how: str
    words: Mapping[str, Sequence[str]]

    @property
    def differing(self) -> str:
        """A sentence if ranks differ from those of the evaluation, else an empty text."""
        ranks = [
            (x.ranks[t][0], above)
            for u in self.users
            for x in u.lists
            for t, (above, _) in x.kept.items()
            if t in x.ranks
        ]
        off = [abs(a - b) for a, b in ranks if a != b]
        text = f"{len(off)} of {len(ranks)} ranks are up to {max(off, default=0):,} places off those of the evaluation"
        return f"{text}: by rounding or, if it is more than a few, because the data has changed." if off else ""

    def before(self, user: UserLists) -> str:
        """Return the last items of the history in words, oldest first."""
        items, left_out = user.history[-MAX_HISTORY:], len(user.history[:-MAX_HISTORY])
        shown = " · ".join(self._cell(item).text for item in items) or "nothing"
        return f"History, oldest first{f', without {left_out:,} earlier items' if left_out else ''}: {shown}"

    def followed(self, user: UserLists, most: int = 5) -> str:
        """Return the items that followed in words, those with the best ranks first, with their ranks."""
        best = sorted(user.targets, key=lambda t: min(x.ranks.get(t, (np.inf, 0)) for x in user.lists))
        parts = []
        for target in best[:most]:
            found = [x.ranks.get(target) for x in user.lists]
            ranks = [f"{r[0] + 1:,}{f' to {sum(r) + 1:,}' if r[1] else ''}" if r else "none" for r in found]
            whose = ", ".join(f"{rank} in {run.name}" for rank, run in zip(ranks, self.runs, strict=True))
            parts.append(f"{self._cell(target).text} (rank {whose})")
        return " · ".join(parts) + (f" and {len(best) - most} more" if best[most:] else "")

    def table(self, user: UserLists) -> PageTable:
        """Return the lists side by side."""
        heads = [Column("place"), *(Column(tail(run.name, 28), left=True) for run in self.runs)]
        rows: list[Cells] = []
        for items in zip_longest(*(x.items for x in user.lists)):
            rows.append([f"{len(rows) + 1}", *("" if item is None else self._cell(item, user) for item in items)])
        return PageTable(heads, rows, kind="lists")

    def _cell(self, item: str, user: UserLists | None = None) -> Cell:
        """Return an item in words; in the lists of a user, it is marked if it was right, or is in several lists."""
        title, *about = self.words.get(item, [item])
        among = sum(item in x.items for x in user.lists) if user else 0
        several, right = f"in {among} lists" if among > 1 else "", user is not None and item in user.targets
        chip, kind = ("right", "good") if right else (several, "")
        below = [Cell(plain(", ".join(about), 60))] if about else []
        return Cell(plain(title, 60), "wrap", plain(item, 200), chip=chip, chip_kind=kind, below=below)


def user_section(cfg: ReportConfig, groups: Sequence[Group]) -> UserSection:
    """Return the lists of the users that `cfg.users` asks for. Raises UserError if a run or a user has none."""
    if len(groups) != 1 or not groups[0].retrieves:
        why = not_compared(groups)[0] if groups[1:] else "only retrieval runs that have finished have lists"
        raise UserError(f"users: {why}; leave out users, or name retrieval runs that were tested on the same rows")
    lines = groups[0].lines
    every = [line.first for line in lines] if len(lines) > 1 else lines[0].runs  # the first seed of each config
    runs = every[:MAX_RUNS]
    rows, how = order_of_rows(cfg, groups[0], runs)
    how += f" Of {len(every)} runs, the first {MAX_RUNS} are shown." if every[MAX_RUNS:] else ""
    for run in runs:  # before anything is read
        choose_checkpoint(run.path, "best")
    table = item_table(runs) if cfg.items is None else read_table(cfg.items, Path(), "items")
    chosen = rows_of_users(runs[0], rows, cfg.users)
    lists = [_lists(run, list(chosen["row"]), cfg.k) for run in runs]
    users = [UserLists(*row, [of_run[row[0]] for of_run in lists]) for row in chosen.iter_rows()]  # type: ignore[call-arg]
    if any(not x.ranks.keys() <= set(user.targets) for user in users for x in user.lists):
        raise UserError("users: the same test rows have other targets in some of the runs; train them on the same data")
    shown = {i for u in users for part in (u.history, u.targets, *(x.items for x in u.lists)) for i in part}
    return UserSection(runs, users, how, words_about(table, shown))


def order_of_rows(cfg: ReportConfig, group: Group, runs: Sequence[ReportedRun]) -> tuple[Sequence[int], str]:
    """Return the test rows, those to be shown first in front, and how they are ordered, in words."""
    if isinstance(cfg.users, list):
        return range(group.rows), "The users that were named."
    if cfg.pick == "random" or len(runs) == 1:
        return np.random.default_rng(cfg.seed).permutation(group.rows).tolist(), f"Drawn at random, seed {cfg.seed}."
    values = []
    for run in runs[:2]:
        if (ranks := _kept_ranks(run)).is_empty():
            raise UserError(f"users: {run.name} kept no ranks; add pick=random, or name the users: users=[ID,...]")
        means = row_metrics(run, ranks)[1]
        of_row = means.values[:, means.names.index(group.main)].tolist()
        values.append(dict(zip(ranks["query"].unique(maintain_order=True), of_row, strict=True)))
    how = f"The users whose {label(group.main)} differs most between the first two runs, in turn one for whom the first"
    return by_difference(*values), f"{how} is better and one for whom the second is: extremes, unlike with pick=random."


def by_difference(first: Mapping[int, float], second: Mapping[int, float]) -> list[int]:
    """Return the rows by the difference of two values: in turn one where the first is larger, one where it is not."""
    off = {row: value - second[row] for row, value in first.items()}
    rows = sorted(off, key=lambda row: -abs(off[row]))
    turns = zip_longest([row for row in rows if off[row] > 0], [row for row in rows if off[row] < 0])
    return [row for turn in turns for row in turn if row is not None] + [row for row in rows if not off[row]]


def _kept_ranks(run: ReportedRun) -> pl.DataFrame:
    return pl.read_parquet(file, glob=False) if (file := run.path / f"{RANKS}.parquet").exists() else pl.DataFrame()


def rows_of_users(run: ReportedRun, rows: Sequence[int], users: int | list[str] | None) -> pl.DataFrame:
    """Return the first row of each user to show: its number, the user, the items before it and its targets, as text."""
    data = open_run(str(run.path))[0].data
    assert data.group is not None and users is not None
    named, count = (users, len(users)) if isinstance(users, list) else ([], users)
    wanted = pl.DataFrame({GROUP: named} if named else {"row": rows[: SPARE * count]}).unique(maintain_order=True)
    found, first = [], 0
    for frame, split in parsed_rows(data):
        test = frame.filter(pl.Series(split == TEST)).select(GROUP, HISTORY, TARGETS).with_row_index("row", first)
        first += test.height
        found.append(test.cast({"row": pl.Int64}).join(wanted, on=wanted.columns, how="semi", maintain_order="left"))
    every = wanted.join(pl.concat(found), on=wanted.columns, maintain_order="left_right")
    if missing := set(named) - set(every[GROUP]):
        raise UserError(f"users={min(missing)}: no test row of {data.name} has this {data.group.by}")
    of_users = every.unique(GROUP, keep="first", maintain_order=True).head(count)
    return of_users.select("row", GROUP, HISTORY, pl.col(TARGETS).list.unique(maintain_order=True))


def _lists(run: ReportedRun, rows: Sequence[int], k: int) -> dict[int, RunList]:
    """Return the list of each test row, from the batches that the evaluation gives the model."""
    cfg, path = open_run(str(run.path))
    model, kept, lists = Recommender.load(str(path)), _kept_ranks(run), dict[int, RunList]()
    for batch in loader_on_cpu(cfg, prepare_to_measure(path, cfg.data), "test"):
        assert batch.targets is not None and batch.history is not None
        places = {row: row - batch.first_row for row in rows if 0 <= row - batch.first_row < batch.rows}
        if not places:
            continue
        with torch.no_grad():
            score = model.score_batch(batch)
            for row, i in places.items():
                targets, history = (x.slice(i, i + 1).values for x in (batch.targets, batch.history))
                items, ranks = _list(model, score(i, i + 1)[0], targets, history, k, cfg.protocol.rank_repeats)
                # of unknown targets, which have no rank here, then of the others by ascending id
                of_row = kept.filter(query=row).select("^(greater|ties)_full$").rows() if len(kept) else []
                kept_ranks = dict(zip([*ranks][::-1], of_row[::-1], strict=False))
                lists[row] = RunList(items, _without_missed(ranks), _without_missed(kept_ranks))
    return lists


def _without_missed(ranks: dict[str, Rank]) -> dict[str, Rank]:
    return {target: rank for target, rank in ranks.items() if rank[0] != MISSED}


def _list(
    model: Recommender, some: Tensor, targets: Tensor, past: Tensor, k: int, rank_repeats: bool
) -> tuple[list[str], dict[str, Rank]]:
    """Return the k best items and the ranks of targets, by ascending id, as the protocol `full` ranks them.

    Args:
        some: scores (N,) of the candidates 0 ... N - 1; 0 stands for unknown items, and the last ones may be missing.
        rank_repeats: as in `Protocols`.
    """
    names, targets = model.fitted.candidates, targets[targets > 0].unique()
    scores, ranked = torch.full((1 + len(names),), -torch.inf), torch.arange(1 + len(names)) > 0
    scores[1 : len(some)] = some[1:].nan_to_num(-torch.inf, torch.inf, -torch.inf)
    if model.filter_history:
        ranked[past[~torch.isin(past, targets)] if rank_repeats else past] = False
    ids, best = top_k(torch.where(ranked, scores, -torch.inf)[None], min(k, len(names)))
    own, others, found = scores[targets][:, None], scores[ranked], ranked[targets]
    greater, ties = (others > own).sum(1), (others == own).sum(1) - 1
    ranks = zip(torch.where(found, greater, MISSED).tolist(), torch.where(found, ties, 0).tolist(), strict=True)
    items = names.gather(ids[best > -torch.inf].numpy() - 1).to_list()
    return items, dict(zip(names.gather(targets.numpy() - 1), ranks, strict=True))


def item_table(runs: Sequence[ReportedRun]) -> pl.DataFrame:
    """Return the table of items of the first run whose data has one, with all columns of its file, the key first."""
    for run in runs:
        cfg, path = open_run(str(run.path))
        data = replace(cfg.data, root=prepare_to_measure(path, cfg.data).info["root"])
        item = data.sparse_columns[data.item_feature or ""].column
        join = items_join(data) or next((join for join in data.source.joins if join.key == item), None)
        if join is not None:
            key = join.columns.get(join.key, join.key)
            return side_table(data, replace(join, key=key, columns={}), "data.items.file").select(key, pl.exclude(key))
    return pl.DataFrame({"item": [""]})


def words_about(table: pl.DataFrame, items: set[str]) -> dict[str, list[str]]:
    """Return the title of each item, or itself if no column is named so, and two texts. table: the items first"""
    text = table.select(pl.exclude(pl.List, pl.Struct).cast(pl.String))
    key, *others = text.columns
    title = next((n for word in ("title", "name") for n in others if word in n.lower()), key)
    rows = text.filter(pl.col(key).is_in(items)).select(key, pl.coalesce(title, key).alias("__title__"), *others)
    return {item: [name, *[t for t in texts if t and t != name][:2]] for item, name, *texts in rows.iter_rows()}
