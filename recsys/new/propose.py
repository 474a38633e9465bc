"""Look at files and propose the config of a data set."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import polars as pl

from recsys.cli.console import say
from recsys.data.raw.blocks import LIST
from recsys.data.raw.storage import partitions
from recsys.errors import NeedsAnswer, UserError
from recsys.new import choose_split as splits
from recsys.new import label as labels
from recsys.new.choose_split import Split
from recsys.new.column_kinds import Column, column_of, columns_of, count_partitions
from recsys.new.copies import (
    MOSTLY_KNOWN,
    elements_of,
    set_ids_of_items,
    set_ids_of_lists,
    set_lists_of_items,
)
from recsys.new.doubts import questions_of
from recsys.new.explode import Exploded, explode
from recsys.new.find_files import find, split_of
from recsys.new.gather import Gathered, gather
from recsys.new.known_names import ITEMS, LABELS, USERS, rank_of
from recsys.new.label import LabelGuess
from recsys.new.missing_codes import set_codes, set_numbers
from recsys.new.propose_features import Features, sql_name, time_sql
from recsys.new.propose_ranking import propose_ranking
from recsys.new.propose_retrieval import propose_retrieval
from recsys.new.questions import Answers, Question, typed
from recsys.new.roles import Roles, assign, likely_ids, set_item
from recsys.new.rows_within import check_rows_within, reader
from recsys.new.sample import Layout, Sample, read_sample
from recsys.new.sides import Side, find_sides, outcomes_of
from recsys.new.source import TEXT, rename_columns, source_of
from recsys.new.statistics import mean

FEWEST_ITEMS = 30  # classes that may be items
WIDE = 30  # numbers without names from which a file may be a matrix of users and items
MOSTLY_ZERO = 0.5  # cells of a matrix, from which 0 stands for no rating
FEW_ROWS = 200_000  # fewer rows make few steps of 2048 rows


@dataclass
class Proposal:
    """The config of a data set, and the reasons.

    source: the keys of `source:`, with reasons by key
    unused: files of the folder that are neither rows nor side tables, and why
    """

    root: str
    source: dict[str, Any]
    reasons: dict[str, str]
    columns: list[Column]
    roles: Roles
    label: LabelGuess | None
    split: Split
    features: Features
    rows: int
    sides: list[Side] = field(default_factory=list)
    unused: list[tuple[str, str]] = field(default_factory=list)
    where: str | None = None
    group: dict[str, Any] | None = None
    max_length: int = 0
    within: str | None = None  # the column of groups whose rows stay together
    items: Side | None = None
    questions: list[Question] = field(default_factory=list)

    @property
    def retrieves(self) -> bool:
        """Whether the config is for retrieval models."""
        return self.group is not None

    def time_column(self, time: Column, *, typed: bool) -> str:
        """Return the column of a time: the file's, or one that is derived by SQL."""
        assert time.time is not None
        if time.time.sql is None:
            return time.name
        sql = time_sql(time, typed=typed)
        known = next((name for name, other in self.features.derive.items() if other == sql), None)
        if known is None:
            known = f"{time.name}_time"
            self.features.derive[known] = sql
        return known

    def command(self, name: str) -> str:
        """Return the command that trains."""
        if self.retrieves:
            return f"python -m recsys.train data={name} model=sasrec"
        single = " model=dcnv2" if len(self.features.inputs) == 1 else ""  # model=dlrm multiplies pairs of vectors
        small = single + (" trainer.batch_size=256" if self.rows < FEW_ROWS else "")
        return f"python -m recsys.train data={name}{small}"


def propose(given: Sequence[str], answers: Answers | None = None) -> Proposal:
    """Look at the files, and return the config of their data set.

    Args:
        given: paths, folders and globs.
        answers: what the user says of the data.

    Raises:
        UserError: no file can be read, or nothing in them can be learned.
    """
    answers = answers or Answers()
    asked = answers.label
    found = find(given)
    gathered = gather(found, answers)
    layout, files = gathered.layout, gathered.files
    number = "1 file" if len(files) == 1 else f"{len(files)} files"
    say(f"looking at {number} ({layout.format}): {files[0]}{' ...' if files[1:] else ''}")
    sample = read_sample(files, layout, gathered.layouts)
    if sample.frame.height < 2 or not sample.frame.width:
        raise UserError(f"{files[0]}: has no rows, or its columns could not be found; check the file")
    if asked == "auto":
        check_rows_within(sample.frame, files[0], layout)
    made = explode(sample.frame, layout, answers)
    if made is not None and _repeats_label(made, asked):
        made = None
    if made is not None:
        sample = Sample(made.frame, round(sample.rows * made.frame.height / sample.frame.height))
    columns, marks = columns_of(sample.frame)
    folders = [partitions(f, found.root) for f in files]
    count_partitions(columns, {n: [own.get(n) for own in folders] for n in folders[0] if n not in layout.columns})
    rename = rename_columns(columns, layout) if made is None else made.rename
    if made is not None and answers.item in made.rename.values():  # named as in the files
        answers = replace(answers, item=next(new for new, old in made.rename.items() if old == answers.item))
    roles = assign(columns, answers)
    if made is not None and roles.item is None:
        set_item(roles, [c for c in columns if c.name in made.elements])
    set_codes(columns, as_text=layout.format in TEXT)
    if layout.format == "svmlight":
        set_numbers(columns)
    set_ids_of_items(columns)
    set_lists_of_items(columns)
    set_ids_of_lists(columns)
    known = roles.user is not None or LIST in sample.frame.columns
    retrieval = layout.format == "lists" or (known and roles.item is not None)
    outcome = next((c for c in columns if c.name == asked and c.kind == "time" and 0 < c.missing < 1), None)
    derived = {} if outcome is None else {f"has_{outcome.name}": f"{sql_name(outcome.name)} IS NOT NULL"}
    if outcome is not None:  # it is written as its time
        asked = f"has_{outcome.name}"
        columns.append(column_of(outcome.values.is_not_null().alias(asked), marks))
    root, joins = Path(found.root), list[dict[str, Any]]()
    if (file := next((f for f in gathered.sides if os.path.relpath(f, root) == asked), None)) is not None:
        outcomes = outcomes_of(file, str(asked), columns)
        asked, joins = outcomes.label.name, [outcomes.join]
        derived[asked] = outcomes.sql
        columns.append(outcomes.label)
        gathered.sides.remove(file)
    label = None
    if asked is not None:
        untested, positive = gathered.untested, answers.positive
        try:
            label = labels.choose(columns, asked, retrieval=retrieval, untested=untested, positive=positive)
        except NeedsAnswer as e:
            raise _with_questions(e, gathered) from e
    if asked == "auto":
        for c in columns:
            if c.kind == "constant" and rank_of(c.name, LABELS) is not None:
                say(f"{c.name} cannot be the label: {c.reason}")
    if label is not None:
        _check_next_item(label, columns)
        label.column.role = "label"
    elif not retrieval:
        names = labels.names_for_error(columns)
        why = "no two columns are a user and an item" if asked is None else "no name says which column is the label"
        hint = _likely_answers(columns, roles, asked)
        if len(columns) > WIDE and all(c.numbers is not None and c.name.startswith("column_") for c in columns):
            rated = next((f for f in files if split_of(f, root) == "train"), files[0])
            melt = _melted(sample.frame, rated, layout)
            hint = (
                f"if each row is a user and each column an item, write a row for each value: {melt}; otherwise, {hint}"
            )
        error = NeedsAnswer(f"files={','.join(given)}: {why}; {hint} (columns: {names})")
        raise _with_questions(error, gathered)
    source, reasons = source_of(found, gathered, marks, columns, rename)
    if made is not None:
        source["explode"], reasons["explode"] = made.settings, made.why
    split = splits.at_random("no column holds a time")
    p = Proposal(found.root, source, reasons, columns, roles, label, split, Features(), sample.rows)
    p.questions = questions_of(p, gathered, answers)
    p.features.derive = derived | ({} if made is None else made.derive)
    p.sides, not_joined, open_ = find_sides(gathered.sides, root, columns)
    p.questions += open_
    p.unused = [(os.path.relpath(f, root), why) for f, why in gathered.unused] + not_joined
    if label is None:
        propose_retrieval(p, files, typed=layout.typed)
    else:
        propose_ranking(p, gathered, root)
    if joins:
        p.source["joins"] = joins + p.source.get("joins", [])
    if p.split.by_files:
        p.source.pop("files")
    if not p.features.inputs:
        why = "; ".join(f"{n}: {why}" for n, why in p.features.left_out[:4])
        raise UserError(f"files={','.join(given)}: no column but the label can be a feature; {why}")
    return p


def _melted(frame: pl.DataFrame, file: Path, layout: Layout) -> str:
    """Return the command that writes the cells of a matrix of users and items as rows."""
    zeros = mean(pl.Series(frame.select(pl.mean_horizontal(pl.all().cast(pl.Float64, strict=False) == 0))))
    rated = ".filter(pl.col('rating') != 0)" if zeros > MOSTLY_ZERO else ""
    cells = ".with_row_index('user').unpivot(index='user', variable_name='item', value_name='rating')"
    return f"python -c \"import polars as pl; {reader(file, layout)}{cells}{rated}.write_csv('rows.csv')\""


def _likely_answers(columns: Sequence[Column], roles: Roles, asked: str | None) -> str:
    """Return what to type if neither a label nor a user and an item are known: the likeliest columns."""
    lists = any(c.name == LIST for c in columns)  # each is the items of one user
    named = [c for c in columns if c.name != LIST]
    users = [roles.user] if roles.user is not None else [] if lists else likely_ids(named, USERS)
    items = [c for c in likely_ids(named, ITEMS) if c not in users[:1]] if roles.item is None else [roles.item]
    wanted = [("item", items)] if lists else [("user", users), ("item", items)]
    choice = " ".join(typed(r, found[0].name if found else "NAME") for r, found in wanted)
    others = [typed(role, c.name) for role, found in (("user", users), ("item", items)) for c in found[1:3]]
    choice += f" (or {', '.join(others)})" if others else ""
    if asked is None:
        return f"type {choice}"
    likely = [c for c in labels.candidates(columns) if c not in (*users[:1], *items[:1])][:4]
    label = " or ".join(typed("label", c.name) for c in likely) or "label=NAME"
    return f"type {label}, or, if each row is a choice of an item, label=null with {choice}"


def _with_questions(error: NeedsAnswer, gathered: Gathered) -> NeedsAnswer:
    """Return an error that asks, with the questions about the files first."""
    asked = [f"{q.text} {' or '.join(q.answers)}".rstrip() for q in gathered.questions]
    return NeedsAnswer("; ".join([*asked, str(error)]))


def _check_next_item(label: LabelGuess, columns: Sequence[Column]) -> None:
    """Raise UserError if the classes of a label are the elements of a list: the label is the next item of a history."""
    if label.kind != "classes" or len(label.classes) < FEWEST_ITEMS:
        return
    for c in columns:
        if c.kind == "list" and mean(pl.Series(label.classes).is_in(elements_of(c).implode())) > MOSTLY_KNOWN:
            why = f"its values are the elements of {c.name}: the next item of a history, which retrieval models predict"
            hint = f"write one list of both into each row, without {label.column.name}"
            raise UserError(f"label={label.column.name}: {why}; {hint}")


def _repeats_label(made: Exploded, asked: str | None) -> bool:
    """Return whether the label would be that of a whole raw row, whose lists then are histories."""
    if asked is None:
        return False
    columns, _ = columns_of(made.frame.drop(LIST, strict=False))
    roles = assign(columns)
    if roles.item is None:
        set_item(roles, [c for c in columns if c.name in made.elements])
    retrieval = roles.item is not None
    try:
        label = labels.choose(columns, asked, retrieval=retrieval)
    except UserError:
        return False
    return label is not None and label.column.name not in made.elements
