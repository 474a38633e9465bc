"""The lists that runs recommend for test rows, ranked as the evaluation ranks them, and words about items.

recsys.report imports this module, and so torch and Lightning, only if users are to be shown.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import polars as pl
import torch
from torch import Tensor

from recsys.base.console import say
from recsys.base.errors import UserError
from recsys.data.features import GROUP, HISTORY, TARGETS
from recsys.data.features.group_features import TEST
from recsys.data.features.value_types import as_value
from recsys.data.prepare.item_table import items_join
from recsys.data.prepare.prepared import Prepared, parsed_rows
from recsys.data.raw.read_sources import side_table
from recsys.job.run_config import RunConfig
from recsys.online.queries import group_names
from recsys.online.recommender import Recommender, top_k
from recsys.report.comparison import kept_ranks
from recsys.report.runs import ReportedRun
from recsys.report.user_lists import Choice, Rank, RunList, UserLists, UserSection, Words
from recsys.schema.command_schemas import ItemWordsConfig
from recsys.stages.read_tables import read_table
from recsys.training.run_data import prepare_to_measure
from recsys.training.run_dir import open_run
from recsys.training.trainer import loader_on_cpu

SPARE = 100  # rows that are read for each user to show, since a user may have several
COLUMNS = (GROUP, HISTORY, TARGETS)
SHORT = 24  # mean number of letters of a column that is shown below a title


class OpenedRun(NamedTuple):
    """A run with its config and its prepared rows."""

    run: ReportedRun
    cfg: RunConfig
    prepared: Prepared


def read_users(choice: Choice, k: int, items: ItemWordsConfig) -> UserSection:
    """Return the chosen test rows with the k best items of each run, and words about all these items.

    items: a table of items; without a file, the words come from the table of the first run that has one

    Raises UserError if a user has no test row, or if the same test row has other targets in another run.
    """
    table = read_table(items, Path(), "items") if items.file else None
    opened = []
    for run in choice.runs:
        cfg, path = open_run(str(run.path))
        opened.append(OpenedRun(run, cfg, prepare_to_measure(path, cfg.data)))
    rows = _test_rows(opened[0].cfg, choice)
    lists = [_lists(run, rows["row"].to_list(), k) for run in opened]
    users = []
    for row, user, history, targets in rows.iter_rows():
        for of_rows, run in zip(lists, choice.runs, strict=True):
            if not of_rows[row].ranks.keys() <= set(targets):
                why = f"test row {row} of {run.name} has other targets than that of {choice.runs[0].name}"
                raise UserError(f"users: {why}; train both on the same data")
        users.append(UserLists(row, user, history, list(dict.fromkeys(targets)), [x[row] for x in lists]))
    shown = {i for u in users for part in (u.history, u.targets, *(x.items for x in u.lists)) for i in part}
    if table is None:
        table = next((own for run in opened if (own := _table_of_data(run)) is not None), None)
    return UserSection(choice, users, {} if table is None else _words(table, shown))


def _test_rows(cfg: RunConfig, choice: Choice) -> pl.DataFrame:
    """Return the rows to show: the number of each, its user, the items before it and its targets, as text."""
    data = cfg.data
    assert data.group is not None
    wanted = pl.DataFrame({"row": choice.rows[: SPARE * choice.count]}, {"row": pl.Int64})
    if choice.users is not None:
        wanted = pl.DataFrame({GROUP: choice.users}).unique(maintain_order=True)
    found, first = [], 0
    for frame, split in parsed_rows(data):
        test = frame.filter(pl.Series(split == TEST)).select(*COLUMNS).with_row_index("row", first)
        first += test.height
        test = test.with_columns(pl.col("row").cast(pl.Int64), group_names(data.group.by, test[GROUP]))
        found.append(test.join(wanted, on=wanted.columns, how="semi", maintain_order="left"))
    rows = wanted.join(pl.concat(found), on=wanted.columns, maintain_order="left_right").unique(
        GROUP, keep="first", maintain_order=True
    )
    if missing := [user for user in choice.users or () if user not in rows[GROUP]]:
        raise UserError(f"users={missing[0]}: no test row of {data.name} has this {data.group.by}")
    return rows.head(choice.count).select("row", *COLUMNS)


def _lists(opened: OpenedRun, rows: Sequence[int], k: int) -> dict[int, RunList]:
    """Return the list of each test row."""
    recommender, kept = Recommender.load(str(opened.run.path)), kept_ranks(opened.run)
    lists: dict[int, RunList] = {}
    with torch.no_grad():
        for batch in loader_on_cpu(opened.cfg, opened.prepared, "test"):
            here = [row for row in rows if 0 <= row - batch.first_row < batch.rows]
            score = recommender.score_batch(batch) if here else None
            for row in here:
                i = row - batch.first_row
                assert score is not None and batch.targets is not None and batch.history is not None
                targets, history = batch.targets.slice(i, i + 1).values, batch.history.slice(i, i + 1).values
                of_row = None if kept is None else kept.filter(pl.col("query") == row)
                lists[row] = _list(recommender, score(i, i + 1)[0], targets, history, k, of_row)
    return lists


def _list(
    recommender: Recommender, scores: Tensor, targets: Tensor, history: Tensor, k: int, kept: pl.DataFrame | None
) -> RunList:
    """Return the k best items and the ranks of the targets, as the protocol `full` ranks them.

    Args:
        scores: (N,) of the candidates 0 ... N - 1, of which 0 stands for unknown items. It may lack the last ones.
        targets, history: (P,) candidates.
        kept: the ranks of the evaluation: those of unknown targets, then those of the others by ascending id.
    """
    names = recommender.fitted.candidates
    targets = targets[targets > 0].unique()
    scored = torch.full((1 + len(names),), -torch.inf)
    scored[1 : len(scores)] = scores[1:].nan_to_num(-torch.inf, torch.inf, -torch.inf)
    ranked = torch.arange(len(scored)) > 0
    if recommender.filter_history:
        ranked[history] = False
        ranked[targets] = True
    ids, best = top_k(torch.where(ranked, scored, -torch.inf)[None], min(k, len(names)))
    own, others = scored[targets][:, None], scored[ranked]
    counts = zip((others > own).sum(1).tolist(), ((others == own).sum(1) - 1).tolist(), strict=True)
    evaluated: dict[str, Rank] = {}
    of_targets = names.gather(targets.numpy() - 1).to_list()
    if kept is not None and "greater_full" in kept.columns:
        pairs = kept.select("greater_full", "ties_full").tail(len(of_targets)).iter_rows()
        evaluated = {target: Rank(*pair) for target, pair in zip(of_targets, pairs, strict=False)}
    items = names.gather(ids[best > -torch.inf].numpy() - 1).to_list()
    return RunList(items, {target: Rank(*c) for target, c in zip(of_targets, counts, strict=True)}, evaluated)


def _words(table: pl.DataFrame, items: set[str]) -> Words:
    """Return words about items: a title, or the item itself if no column is named so, and up to two short columns.

    table: a table of items, whose first column holds them
    """
    key, *others = table.columns
    text = table.select(as_value(table.schema, key), *map(_as_text, table.select(others)))
    text = text.filter(pl.col(key).is_in(items))
    title = next((n for word in ("title", "name") for n in others if word in n.lower()), key)
    lengths = text.select(pl.col(others).str.len_chars().mean().fill_null(0))
    short = [name for name in others if name != title and lengths[name][0] <= SHORT][:2]
    rows = text.select(key, pl.col(title).fill_null(pl.col(key)).alias("__title__"), *short).iter_rows()
    return {item: [name, *filter(None, about)] for item, name, *about in rows}


def _as_text(column: pl.Series) -> pl.Series:
    return column.cast(pl.List(pl.String)).list.join(" ") if column.dtype == pl.List else column.cast(pl.String)


def _table_of_data(opened: OpenedRun) -> pl.DataFrame | None:
    """Return a run's table of items with all columns of its file, the key first; None if it has none."""
    data = replace(opened.cfg.data, root=opened.prepared.info["root"])
    column = data.sparse_columns[data.item_feature or ""].column
    join = items_join(data) or next((j for j in data.source.joins if j.key == column), None)
    if join is None:
        return None
    key = join.columns.get(join.key, join.key)
    try:
        table = side_table(data, replace(join, key=key, columns={}), "data.items.file")
    except UserError as e:
        say(f"items are shown by their ids: {e}")
        return None
    return table.select(key, pl.exclude(key))
