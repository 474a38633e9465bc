"""Look at files and propose the config of a data set."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import polars as pl

from recsys.base.console import say
from recsys.base.errors import NeedsAnswer, UserError
from recsys.data.features.blocks import LIST
from recsys.data.raw.storage import partitions
from recsys.new import choose_split as splits
from recsys.new.choose_label import candidates, choose, names_for_error
from recsys.new.choose_split import Split
from recsys.new.column_kinds import Column, column_of, columns_of, count_partitions
from recsys.new.copies import MOSTLY_KNOWN, elements_of, set_ids_of_items, set_ids_of_lists, set_lists_of_items
from recsys.new.doubts import questions_of
from recsys.new.explode import Exploded, check_rows_within, explode, reader
from recsys.new.find_files import Found, find, split_of
from recsys.new.gather import Gathered, gather
from recsys.new.known_names import ITEMS, LABELS, USERS, rank_of
from recsys.new.label import LabelGuess
from recsys.new.layout import Layout
from recsys.new.missing_codes import set_codes, set_numbers
from recsys.new.propose_features import Features, sql_name, time_sql
from recsys.new.propose_ranking import propose_ranking
from recsys.new.propose_retrieval import propose_retrieval
from recsys.new.questions import Answers, Question, typed
from recsys.new.roles import Roles, assign, incomplete_times, likely_ids, set_item
from recsys.new.sample import Sample, read_sample
from recsys.new.sides import Side, find_sides, outcomes_of
from recsys.new.source import TEXT, rename_columns, source_of
from recsys.new.statistics import mean
from recsys.new.value_marks import Marks

FEWEST_ITEMS = 30  # classes that may be items
WIDE = 30  # numbers without names from which a file may be a matrix of users and items
MOSTLY_ZERO = 0.5  # cells of a matrix, from which 0 stands for no rating
FEW_ROWS = 2_000_000  # of which one epoch makes few steps of 2,048 rows
VERY_FEW_ROWS = 200_000  # of which one epoch makes few steps of 1,024 rows


@dataclass
class Proposal:
    """The config of a data set, and the reasons.

    root: the folder of the files
    source, reasons: the keys of `source:`, and why some have their values, by key
    columns, roles: the columns of the rows, and those that are the user, the item, the time and the weight
    label: the label; None for retrieval models
    split, features: the split, and the features
    rows: the number of rows, estimated
    sides: the side tables, which are joined or describe items
    unused: files of the folder that are neither rows nor side tables, and why
    where: the SQL conditions of the rows to use, and what rows lack that are left out
    group, max_length: for retrieval models, whose rows belong together, and the length of their sequences
    within: the column of groups whose rows stay together; metrics compare the rows of a group
    items: the side table of `items:`
    no_time: why the rows have no time, if they have none
    questions: what the files do not tell, the gravest first
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
    where: dict[str, str] = field(default_factory=dict)
    group: dict[str, Any] | None = None
    max_length: int = 0
    within: str | None = None
    items: Side | None = None
    no_time: str = ""
    questions: list[Question] = field(default_factory=list)

    @property
    def retrieves(self) -> bool:
        """Whether the config is for retrieval models."""
        return self.group is not None

    def leave_out_without(self, columns: Iterable[Column], what: str = "") -> None:
        """Leave out the rows that lack a value of one of these columns. what: what they lack; else the column"""
        self.where |= {f"{sql_name(c.name)} IS NOT NULL": what or c.name for c in columns if c.missing}

    def time_column(self, time: Column, *, typed: bool) -> str:
        """Return the column of a time: the file's, or one that is derived by SQL."""
        assert time.time is not None
        if time.time.sql is None:
            return time.name
        sql = time_sql(time, typed=typed)
        derived = next((name for name, other_sql in self.features.derive.items() if other_sql == sql), None)
        if derived is None:
            derived = f"{time.name}_time"
            self.features.derive[derived] = sql
        return derived

    def command(self, name: str) -> str:
        """Return the command that trains."""
        if self.retrieves:
            return f"python -m recsys.train data={name} model=sasrec"
        single = " model=dcnv2" if len(self.features.inputs) == 1 else ""  # model=dlrm multiplies pairs of vectors
        small = single + (" trainer=until_best" if self.rows < FEW_ROWS else "")
        small += " trainer.batch_size=256" if self.rows < VERY_FEW_ROWS else ""
        return f"python -m recsys.train data={name}{small}"


@dataclass
class _Rows:
    """The sample of the rows, and what is known of its columns.

    sample: the rows; if they are elements of lists, each element is a row
    exploded: how the lists became rows; None if each raw row is a row
    columns: the columns of the sample, with their kinds and roles
    marks: how numbers and missing values are written
    rename: `source.rename`
    roles: the columns that are the user, the item, the time and the weight
    """

    sample: Sample
    exploded: Exploded | None
    columns: list[Column]
    marks: Marks
    rename: dict[str, str]
    roles: Roles


@dataclass
class _LabelSource:
    """Where the label is read.

    asked: the column that is the label, or auto; None for no label
    derive: the SQL that makes this column, if no file holds it
    joins: the entries of `source.joins` that this SQL needs
    """

    asked: str | None
    derive: dict[str, str] = field(default_factory=dict)
    joins: list[dict[str, Any]] = field(default_factory=list)


def propose(given: Sequence[str], answers: Answers | None = None) -> Proposal:
    """Look at the files, and return the config of their data set.

    Args:
        given: paths, folders and globs.
        answers: what the user says of the data.

    Raises:
        UserError: no file can be read, or nothing in them can be learned.
    """
    answers = answers or Answers()
    found = find(given)
    gathered = gather(found, answers)
    layout, files, root = gathered.layout, gathered.files, Path(found.root)
    number = "1 file" if len(files) == 1 else f"{len(files)} files"
    say(f"looking at {number} ({layout.format}): {files[0]}{' ...' if files[1:] else ''}")
    rows = _read_rows(found, gathered, answers)
    has_user = rows.roles.user is not None or LIST in rows.sample.frame.columns
    retrieval = layout.format == "lists" or (has_user and rows.roles.item is not None)
    label_source = _label_source(rows, gathered, root, answers.label)
    label = _label(rows.columns, label_source.asked, gathered, answers, retrieval=retrieval)
    if label is None and not retrieval:
        why_and_hint = _why_no_label(rows, gathered, root, label_source.asked)
        raise _with_questions(NeedsAnswer(f"files={','.join(given)}: {why_and_hint}"), gathered)
    p = _proposal(found, gathered, rows, label, answers)
    p.features.derive = label_source.derive | ({} if rows.exploded is None else rows.exploded.derive)
    p.sides, not_joined, side_questions = find_sides(gathered.sides, root, rows.columns)
    p.questions += side_questions
    p.unused = [(os.path.relpath(f, root), why) for f, why in gathered.unused] + not_joined
    if label is None:
        propose_retrieval(p, files, typed=layout.typed)
    else:
        propose_ranking(p, gathered, root)
    if label_source.joins:
        p.source["joins"] = label_source.joins + p.source.get("joins", [])
    if p.split.by_files:
        p.source.pop("files")
    if not p.features.inputs:
        why = "; ".join(f"{name}: {why}" for name, why in p.features.left_out[:4])
        raise UserError(f"files={','.join(given)}: no column but the label can be a feature; {why}")
    return p


def _read_rows(found: Found, gathered: Gathered, answers: Answers) -> _Rows:
    """Read the sample, and find the kinds and the roles of its columns."""
    layout, files = gathered.layout, gathered.files
    sample = read_sample(files, layout, gathered.layouts)
    if sample.frame.height < 2 or not sample.frame.width:
        raise UserError(f"{files[0]}: has no rows, or its columns could not be found; check the file")
    if layout.format == "jsonl":
        later = [n for n in sample.frame.columns if n not in (*layout.columns, *gathered.optional)]
        gathered.optional = (*gathered.optional, *(n for n in later if n not in partitions(files[0], None)))
    if answers.label == "auto":
        check_rows_within(sample.frame, files[0], layout)
    exploded = explode(sample.frame, layout, answers)
    if exploded is not None and _repeats_label(exploded, answers.label):
        exploded = None
    if exploded is not None:
        sample = Sample(exploded.frame, round(sample.rows * exploded.frame.height / sample.frame.height))
    columns, marks = columns_of(sample.frame)
    folders = [partitions(f, found.root) for f in files]
    names = [name for name in folders[0] if name not in layout.columns]
    count_partitions(columns, {name: [values.get(name) for values in folders] for name in names})
    rename = rename_columns(columns, layout) if exploded is None else exploded.rename
    if exploded is not None and answers.item in rename.values():  # named as in the files
        answers = replace(answers, item=next(new for new, old in rename.items() if old == answers.item))
    roles = assign(columns, answers)
    if exploded is not None and roles.item is None:
        set_item(roles, [c for c in columns if c.name in exploded.elements])
    set_codes(columns, as_text=layout.format in TEXT)
    if layout.format == "svmlight":
        set_numbers(columns)
    set_ids_of_items(columns)
    set_lists_of_items(columns)
    set_ids_of_lists(columns)
    return _Rows(sample, exploded, columns, marks, rename, roles)


def _label_source(rows: _Rows, gathered: Gathered, root: Path, asked: str | None) -> _LabelSource:
    """Return where the label is read, and add its column to the rows if the user names a time or a file of outcomes.

    Rows with a value of the time are positive, and so are the rows that the file of outcomes has.
    """
    source = _LabelSource(asked)
    time = next((c for c in rows.columns if c.name == asked and c.kind == "time" and 0 < c.missing < 1), None)
    if time is not None:
        source.asked = f"has_{time.name}"
        source.derive[source.asked] = f"{sql_name(time.name)} IS NOT NULL"
        rows.columns.append(column_of(time.values.is_not_null().alias(source.asked), rows.marks))
    file = next((f for f in gathered.sides if os.path.relpath(f, root) == source.asked), None)
    if file is not None:
        outcomes = outcomes_of(file, str(source.asked), rows.columns)
        source.asked, source.joins = outcomes.label.name, [outcomes.join]
        source.derive[source.asked] = outcomes.sql
        rows.columns.append(outcomes.label)
        gathered.sides.remove(file)
    return source


def _label(
    columns: Sequence[Column], asked: str | None, gathered: Gathered, answers: Answers, *, retrieval: bool
) -> LabelGuess | None:
    """Return the label, and set the role of its column; None if no column is the label.

    Args:
        columns: the columns of the rows.
        asked: the column that is the label, or auto; None for no label.
        gathered: the files, and the questions about them.
        answers: what the user says of the data.
        retrieval: a user and an item are known, so that rows need no label.
    """
    label = None
    if asked is not None:
        untested, positive = gathered.untested, answers.positive
        try:
            label = choose(columns, asked, retrieval=retrieval, untested=untested, positive=positive)
        except NeedsAnswer as e:
            raise _with_questions(e, gathered) from e
    if asked == "auto":
        for c in columns:
            if c.kind == "constant" and rank_of(c.name, LABELS) is not None:
                say(f"{c.name} cannot be the label: {c.reason}")
    if label is not None:
        _check_next_item(label, columns)
        label.column.role = "label"
    return label


def _why_no_label(rows: _Rows, gathered: Gathered, root: Path, asked: str | None) -> str:
    """Return why rows without a label, a user and an item cannot be learned from, and what to type."""
    columns, files = rows.columns, gathered.files
    why = "no two columns are a user and an item" if asked is None else "no name says which column is the label"
    hint = _likely_answers(columns, rows.roles, asked)
    if len(columns) > WIDE and all(c.numbers is not None and c.name.startswith("column_") for c in columns):
        rated = next((f for f in files if split_of(f, root) == "train"), files[0])
        melt = _melted(rows.sample.frame, rated, gathered.layout)
        hint = f"if each row is a user and each column an item, write a row for each value: {melt}; otherwise, {hint}"
    return f"{why}; {hint} (columns: {names_for_error(columns)})"


def _proposal(found: Found, gathered: Gathered, rows: _Rows, label: LabelGuess | None, answers: Answers) -> Proposal:
    """Return a proposal without features, with the questions that the rows and the label leave open."""
    source, reasons = source_of(found, gathered, rows.marks, rows.columns, rows.rename)
    if rows.exploded is not None:
        source["explode"], reasons["explode"] = rows.exploded.settings, rows.exploded.why
    no_time = _why_no_time(rows.columns, answers)
    split = splits.at_random(no_time)
    p = Proposal(found.root, source, reasons, rows.columns, rows.roles, label, split, Features(), rows.sample.rows)
    p.no_time = no_time
    p.questions = questions_of(p, gathered, answers)
    return p


def _why_no_time(columns: Sequence[Column], answers: Answers) -> str:
    """Return why a proposal has no time."""
    if answers.time is None:
        return "no time, as you asked"
    named = [f"{c.name} lacks {c.missing:.0%}" for c in incomplete_times(columns)[:2]]
    if named:
        return f"no column has the time of enough rows ({', '.join(named)})"
    return "no column certainly holds a time" if any(c.mostly for c in columns) else "no column holds a time"


def _melted(frame: pl.DataFrame, file: Path, layout: Layout) -> str:
    """Return the command that writes the cells of a matrix of users and items as rows."""
    zeros = mean(pl.Series(frame.select(pl.mean_horizontal(pl.all().cast(pl.Float64, strict=False) == 0))))
    rated = ".filter(pl.col('rating') != 0)" if zeros > MOSTLY_ZERO else ""
    cells = ".with_row_index('user').unpivot(index='user', variable_name='item', value_name='rating')"
    return f"python -c \"import polars as pl; {reader(file, layout)}{cells}{rated}.write_csv('rows.csv')\""


def _likely_answers(columns: Sequence[Column], roles: Roles, asked: str | None) -> str:
    """Return the answers to type if no label, or no user and item, is known: they name the likeliest columns."""
    has_lists = any(c.name == LIST for c in columns)  # each is the items of one user
    named = [c for c in columns if c.name != LIST]
    users = [roles.user] if roles.user is not None else [] if has_lists else likely_ids(named, USERS)
    items = [roles.item] if roles.item is not None else [c for c in likely_ids(named, ITEMS) if c not in users[:1]]
    wanted = [("item", items)] if has_lists else [("user", users), ("item", items)]
    choice = " ".join(typed(role, likely[0].name if likely else "NAME") for role, likely in wanted)
    second_best = [typed(role, c.name) for role, likely in (("user", users), ("item", items)) for c in likely[1:3]]
    choice += f" (or {', '.join(second_best)})" if second_best else ""
    if asked is None:
        return f"type {choice}"
    labels = [c for c in candidates(columns) if c not in (*users[:1], *items[:1])][:4]
    label = " or ".join(typed("label", c.name) for c in labels) or "label=NAME"
    return f"type {label}, or, if each row is a choice of an item, label=null with {choice}"


def _with_questions(error: NeedsAnswer, gathered: Gathered) -> NeedsAnswer:
    """Return the error with the questions about the files before its own."""
    questions = [f"{q.text} {' or '.join(q.answers)}".rstrip() for q in gathered.questions]
    return NeedsAnswer("; ".join([*questions, str(error)]))


def _check_next_item(label: LabelGuess, columns: Sequence[Column]) -> None:
    """Raise UserError if the classes of a label are the elements of a list: the label is the next item of a history."""
    if label.kind != "classes" or len(label.classes) < FEWEST_ITEMS:
        return
    for c in columns:
        if c.kind == "list" and mean(pl.Series(label.classes).is_in(elements_of(c).implode())) > MOSTLY_KNOWN:
            why = f"its values are the elements of {c.name}: the next item of a history, which retrieval models predict"
            hint = f"write one list of both into each row, without {label.column.name}"
            raise UserError(f"label={label.column.name}: {why}; {hint}")


def _repeats_label(exploded: Exploded, asked: str | None) -> bool:
    """Return whether the label would be a column of the whole raw row, so that its lists are histories, not rows."""
    if asked is None:
        return False
    columns, _ = columns_of(exploded.frame.drop(LIST, strict=False))
    roles = assign(columns)
    if roles.item is None:
        set_item(roles, [c for c in columns if c.name in exploded.elements])
    try:
        label = choose(columns, asked, retrieval=roles.item is not None)
    except UserError:
        return False
    return label is not None and label.column.name not in exploded.elements
