"""The items most like the most popular ones, of several runs side by side. Imports torch and Lightning."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from recsys.base.errors import UserError
from recsys.online.recommender import Recommender
from recsys.online.similar_items import similar_items
from recsys.pages.elements import plain, tail
from recsys.pages.page_table import Cell, Column, PageTable
from recsys.report.comparison import Group
from recsys.report.user_lists import MAX_RUNS, item_table, words_about
from recsys.schema.command_schemas import ReportConfig
from recsys.stages.read_tables import read_table


class SimilarSection(NamedTuple):
    """A row for each popular item with those that each run holds to be like it; why some runs say nothing."""

    table: PageTable
    notes: Sequence[str]


def similar_section(cfg: ReportConfig, groups: Sequence[Group]) -> SimilarSection:
    """Return the items most like `cfg.similar` popular ones. Raises UserError if no run says which items are alike."""
    runs = [line.first for group in groups if group.retrieves for line in group.lines][:MAX_RUNS]
    if not runs:
        raise UserError("similar: only retrieval runs that have finished relate items; leave it out")
    popular, notes, columns = list[str](), list[str](), dict[str, dict[str, list[str]]]()
    for run in runs:
        try:
            recommender = Recommender.load(str(run.path))
            popular = (
                popular or recommender.fitted.candidates.head(min(cfg.similar or 0, recommender.nameable)).to_list()
            )
            lists = similar_items(recommender, popular, cfg.k)
            columns[run.name] = {str(item): [*map(str, items)] for item, items, _ in lists.iter_rows()}
        except UserError as e:
            notes.append(f"{run.name}: {e}")
    if not columns:
        raise UserError(f"similar: {notes[0]}")
    shown = {*popular}.union(*(own for column in columns.values() for own in column.values()))
    words = words_about(item_table(runs) if cfg.items is None else read_table(cfg.items, Path(), "items"), shown)

    def title(item: str) -> str:
        return plain(words.get(item, [item])[0], 60)

    rows = [
        [Cell(title(item), "wrap"), *(Cell(" · ".join(map(title, of[item])), "wrap") for of in columns.values())]
        for item in popular
    ]
    heads = [Column("item, the most frequent first", left=True), *(Column(tail(n, 28), left=True) for n in columns)]
    return SimilarSection(PageTable(heads, rows, kind="lists"), notes)
