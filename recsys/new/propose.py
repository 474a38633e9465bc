"""Look at files, propose the config of a data set, and ask what they do not tell."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import polars as pl

from recsys.base.console import say
from recsys.base.errors import NeedsAnswer, UserError
from recsys.data.features.blocks import LIST
from recsys.data.raw.raw_files import partitions
from recsys.new import proposal as splits
from recsys.new.choose_label import candidates, choose, names_for_error
from recsys.new.column_kinds import Column, Features, ListKind, sql_name
from recsys.new.explode import Exploded, check_rows_within, explode
from recsys.new.find_files import Found, find, split_of
from recsys.new.find_kinds import column_of, columns_of, count_partitions, set_codes
from recsys.new.gather import Gathered, gather
from recsys.new.known_names import NAMES, names_an_id_of, rank_of
from recsys.new.label import LabelGuess, distinct_numbers
from recsys.new.outcomes import outcome_form
from recsys.new.proposal import Proposal
from recsys.new.propose_ranking import propose_ranking
from recsys.new.propose_retrieval import propose_retrieval
from recsys.new.questions import Answers, Question, typed
from recsys.new.raw_bytes import Sample
from recsys.new.roles import (
    MOSTLY_KNOWN,
    Roles,
    assign,
    copies,
    determines,
    incomplete_times,
    likely_ids,
    set_item,
    set_kinds_by_items,
    year_to_come,
)
from recsys.new.sample import read_sample
from recsys.new.sides import find_sides, outcomes_of
from recsys.new.source import rename_columns, set_quantities, source_of
from recsys.new.statistics import mean
from recsys.new.value_marks import Marks

FEW_ROWS = 30  # from which columns can be told apart


def questions_of(p: Proposal, gathered: Gathered, answers: Answers) -> Iterator[Question]:
    """Yield the questions that the files leave open, the gravest first."""
    yield from gathered.questions
    layout, label = gathered.layout, p.label
    if layout.is_csv and not layout.sure_of_header:
        text = f"is the first line of {gathered.files[0].name} the names of the columns or a row?"
        yield Question(text, "the names of the columns" if layout.header else "a row", ("header=true", "header=false"))
    if label is not None and label.doubt and answers.label == "auto":
        guess, *others = (typed("label", name) for name in (label.column.name, *label.alternatives))
        yield Question(label.doubt, guess, (guess, *others, "label=null"))
    if label is not None and label.undecided:
        asked, values = typed("label", label.column.name), label.classes
        values = values or [f"{v:g}" for v in distinct_numbers(label.column)]
        offered = [f"{asked} {typed('positive', v)}" for v in values[:4]]
        offered += [f"{asked} positive=null"] if label.classes else []
        yield Question(label.undecided, label.guess, tuple(offered))
    time_spent = [c.name for c in p.columns if outcome_form(c.name) in NAMES.spent and c.numbers is not None][:3]
    if label is None and time_spent and answers.label == "auto":
        text = f"is {' or '.join(time_spent)} what to predict, or that a user has chosen an item?"
        yield Question(text, "the choices of items", ("label=null", *(typed("label", name) for name in time_spent)))
    for role, column, among in (("user", p.roles.user, NAMES.users), ("item", p.roles.item, NAMES.items)):
        if column is None or getattr(answers, role) != "auto":
            continue
        if rivals := _rivals(column, p.columns, among):
            names = [c.name for c in (column, *rivals)]
            text = f"which column is the {role}: {', '.join(names)}?"
            yield Question(text, typed(role, column.name), tuple(typed(role, name) for name in names[:4]))
    lacks = [r for r in ("user", "item") if getattr(p.roles, r) is None and getattr(answers, r) == "auto"]
    if label is not None and lacks and rank_of(label.column.name, NAMES.ratings) is not None:
        free = [c for c in p.columns if not c.role and c.distinct > FEW_ROWS]
        free = [c for c in free if (c.kind.is_id and c.kind.is_code) or c.is_whole]
        if len(free) >= len(lacks):
            text = f"which column is the {' and which the '.join(lacks)} of {label.column.name}? No name says so"
            guess = " ".join(typed(role, c.name) for role, c in zip(lacks, free, strict=False))
            yield Question(text, "none", (guess, " ".join(f"{role}=null" for role in lacks)))
    time = p.roles.time
    if time is not None and (year := year_to_come(time)) is not None:  # as in the Buddhist calendar
        text = f"{time.name} has times of the year {year}: does another calendar, or an error, explain them?"
        yield Question(text, "no", ("time=null",))
    for c in p.columns:
        if c.mostly and c.name not in answers.names().values():
            text = f"what does {c.name} hold? {c.mostly}"
            yield Question(text, "texts; mark what is missing by source.column_null_values")
    times = incomplete_times(p.columns if time is None else [time])
    if answers.time == "auto" and times:  # too many rows lack a value to leave them out
        name, share = times[0].name, times[0].missing
        text = f"{name} is empty in {share:.0%} of the rows: is it their time? Rows without are left out"
        typed_time = typed("time", name)
        taken = ("no", ("time=null", typed_time)) if time is None else (typed_time, (typed_time, "time=null"))
        yield Question(text, *taken)
    if p.rows < FEW_ROWS:
        yield Question(f"there are {p.rows} rows, too few to tell columns apart: are all guesses right?", "yes")


def _rivals(column: Column, columns: Sequence[Column], among: tuple[str, ...]) -> list[Column]:
    """Return the columns that may be the user or the item instead of `column`, without copies and groups of it."""
    renamed = copies(columns)
    rivals = [c for c in columns if c is not column and not c.role and names_an_id_of(c.name, among)]
    rivals = [c for c in rivals if c.name not in renamed and c.kind.is_id and c.missing < 0.5]
    return [c for c in rivals if not determines(column, c) and not determines(c, column)]


FEWEST_ITEMS = 30  # classes that may be items
WIDE = 30  # numbers without names from which a file may be a matrix of users and items


@dataclass
class _Rows:
    """The sample of the rows, and what is known of its columns."""

    sample: Sample  # if rows are elements of lists, each element is a row
    exploded: Exploded | None  # how the lists became rows; None if each raw row is a row
    columns: list[Column]
    marks: Marks
    rename: dict[str, str]  # `source.rename`
    roles: Roles
    asked: str | None  # the column that is the label, or auto; None for no label
    derive: dict[str, str] = field(default_factory=dict)  # the SQL that makes this column, if no file holds it
    joins: list[dict[str, Any]] = field(default_factory=list)  # the entries of `source.joins` that this SQL needs


def propose(given: Sequence[str], answers: Answers | None = None) -> Proposal:
    """Look at the files, and return the config of their data set.

    Args:
        given: paths, folders and globs.

    Raises:
        UserError: no file can be read, or nothing in them can be learned.
    """
    answers, found = answers or Answers(), find(given)
    gathered, root = gather(found, answers), Path(found.root)
    layout, files = gathered.layout, gathered.files
    number = "1 file" if len(files) == 1 else f"{len(files)} files"
    say(f"looking at {number} ({layout.format}): {files[0]}{' ...' if files[1:] else ''}")
    rows = _read_rows(found, gathered, answers)
    has_user = rows.roles.user is not None or LIST in rows.sample.frame.columns
    retrieval = layout.holds_items or (has_user and rows.roles.item is not None)
    _find_label_source(rows, gathered, root)
    try:
        label = _label(rows, gathered, answers, retrieval=retrieval)
        if label is None and not retrieval:
            raise NeedsAnswer(f"files={','.join(given)}: {_why_no_label(rows, gathered, root)}")
    except NeedsAnswer as e:  # the questions about the files come first
        questions = [f"{q.text} {' or '.join(q.answers)}".rstrip() for q in gathered.questions]
        e.args = ("; ".join([*questions, str(e)]),)
        raise
    source, reasons = source_of(found, gathered, rows.marks, rows.columns, rows.rename)
    if rows.exploded is not None:
        source["explode"], reasons["explode"] = rows.exploded.settings, rows.exploded.why
        rows.derive |= rows.exploded.derive
    no_time = "no column certainly holds a time" if any(c.mostly for c in rows.columns) else "no column holds a time"
    if answers.time is None:
        no_time = "no time, as you asked"
    elif named := [f"{c.name} lacks {c.missing:.0%}" for c in incomplete_times(rows.columns)[:2]]:
        no_time = f"no column has the time of enough rows ({', '.join(named)})"
    p = Proposal(
        root=found.root,
        source=source,
        reasons=reasons,
        columns=rows.columns,
        roles=rows.roles,
        label=label,
        split=splits.at_random(no_time),
        features=Features(derive=rows.derive),
        rows=rows.sample.rows,
        typed=layout.typed,
        no_time=no_time,
        copies=_copies(rows.sample.frame),
    )
    p.questions += questions_of(p, gathered, answers)
    p.sides, not_joined, side_questions = find_sides(gathered.sides, root, rows.columns)
    p.questions += side_questions
    p.unused = [(os.path.relpath(f, root), why) for f, why in gathered.unused] + not_joined
    if label is None:
        propose_retrieval(p, files)
    else:
        propose_ranking(p, label, gathered, root)
    if rows.joins:
        p.source["joins"] = rows.joins + p.source.get("joins", [])
    if p.split.by_files:
        p.source.pop("files")
    if not p.features.inputs:
        why = "; ".join(f"{name}: {why}" for name, why in p.features.left_out[:4])
        raise UserError(f"files={','.join(given)}: no column but the label can be a feature; {why}")
    return p


def _copies(frame: pl.DataFrame) -> str:
    """Return how many rows are copies of others in all columns; empty if none is, or columns cannot be compared."""
    try:
        copies = frame.height - frame.hash_rows().n_unique()
    except pl.exceptions.PolarsError:
        return ""
    return f"{copies:,} of the {frame.height:,} rows that were looked at are exact copies of others" if copies else ""


def _read_rows(found: Found, gathered: Gathered, answers: Answers) -> _Rows:
    """Read the sample, and find the kinds and the roles of its columns."""
    layout, files = gathered.layout, gathered.files
    sample = read_sample(files, layout, gathered.layouts)
    if sample.frame.height < 2 or not sample.frame.width:
        raise UserError(f"{files[0]}: has no rows, or its columns could not be found; check the file")
    if layout.names_fields and layout.typed:  # rows of JSON
        folders = partitions(files[0], None)
        later = [n for n in sample.frame.columns if n not in (*layout.columns, *gathered.optional, *folders)]
        gathered.optional = (*gathered.optional, *later)
    if answers.label == "auto":
        check_rows_within(sample.frame, files[0], layout)
    exploded = explode(sample.frame, layout, answers)
    if exploded is not None and _repeats_label(exploded, answers.label):
        exploded = None
    if exploded is not None:
        sample = Sample(exploded.frame, round(sample.rows * exploded.frame.height / sample.frame.height))
    columns, marks = columns_of(sample.frame)
    values = [partitions(f, found.root) for f in files]
    count_partitions(columns, {n: [v.get(n) for v in values] for n in values[0] if n not in layout.columns})
    rename = rename_columns(columns, layout) if exploded is None else exploded.rename
    if exploded is not None and answers.item in rename.values():  # named as in the files
        answers = replace(answers, item=next(new for new, old in rename.items() if old == answers.item))
    roles = assign(columns, answers)
    if exploded is not None and roles.item is None:
        set_item(roles, [c for c in columns if c.name in exploded.elements])
    set_codes(columns, as_text=layout.takes_marks)
    set_quantities(columns, layout)
    set_kinds_by_items(columns)
    return _Rows(sample, exploded, columns, marks, rename, roles, answers.label)


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


def _find_label_source(rows: _Rows, gathered: Gathered, root: Path) -> None:
    """Add the label to the rows if the user names a time or a file of outcomes.

    Rows with a value of the time are positive, and so are the rows that the file of outcomes has.
    """
    time = next((c for c in rows.columns if c.name == rows.asked and c.time is not None and 0 < c.missing < 1), None)
    file = next((f for f in gathered.sides if os.path.relpath(f, root) == rows.asked), None)
    if time is not None:
        rows.asked = f"has_{time.name}"
        rows.derive[rows.asked] = f"{sql_name(time.name)} IS NOT NULL"
        rows.columns.append(column_of(time.values.is_not_null().alias(rows.asked), rows.marks))
    elif file is not None:
        outcomes = outcomes_of(file, str(rows.asked), rows.columns)
        rows.asked, rows.joins = outcomes.label.name, [outcomes.join]
        rows.derive[rows.asked] = outcomes.sql
        rows.columns.append(outcomes.label)
        gathered.sides.remove(file)


def _label(rows: _Rows, gathered: Gathered, answers: Answers, *, retrieval: bool) -> LabelGuess | None:
    """Return the label, and set the role of its column; None if no column is the label.

    Raises UserError if the classes of a label are the elements of a list: the label is the next item of a history.
    """
    if rows.asked is None:
        return None
    positive, untested = answers.positive, gathered.untested
    label = choose(rows.columns, rows.asked, retrieval=retrieval, untested=untested, positive=positive)
    for c in rows.columns if rows.asked == "auto" else ():
        if c.kind.says_nothing and c.distinct and rank_of(c.name, NAMES.labels) is not None:
            say(f"{c.name} cannot be the label: {c.reason}")
    if label is None:
        return None
    for c in rows.columns if len(label.classes) >= FEWEST_ITEMS else ():
        if not isinstance(c.kind, ListKind):
            continue
        if mean(pl.Series(label.classes).is_in(c.kind.elements(c).implode())) > MOSTLY_KNOWN:
            why = f"its values are the elements of {c.name}: the next item of a history, which retrieval models predict"
            hint = f"write one list of both into each row, without {label.column.name}"
            raise UserError(f"label={label.column.name}: {why}; {hint}")
    label.column.role = "label"
    return label


def _why_no_label(rows: _Rows, gathered: Gathered, root: Path) -> str:
    """Return why rows without a label, a user and an item cannot be learned from, and what to type."""
    columns, files, frame = rows.columns, gathered.files, rows.sample.frame
    why = "no two columns are a user and an item" if rows.asked is None else "no name says which column is the label"
    hint = _likely_answers(columns, rows.roles, rows.asked)
    if len(columns) > WIDE and all(c.numbers is not None and c.name.startswith("column_") for c in columns):
        file = next((f for f in files if split_of(f, root) == "train"), files[0])
        zeros = mean(pl.Series(frame.select(pl.mean_horizontal(pl.all().cast(pl.Float64, strict=False) == 0))))
        rated = ".filter(pl.col('rating') != 0)" if zeros > 0.5 else ""
        cells = ".with_row_index('user').unpivot(index='user', variable_name='item', value_name='rating')"
        read = gathered.layout.polars_call(file)
        melt = f"python -c \"import polars as pl; {read}{cells}{rated}.write_csv('rows.csv')\""
        hint = f"if each row is a user and each column an item, write a row for each value: {melt}; otherwise, {hint}"
    return f"{why}; {hint} (columns: {names_for_error(columns)})"


def _likely_answers(columns: Sequence[Column], roles: Roles, asked: str | None) -> str:
    """Return the answers to type if no label, or no user and item, is known: they name the likeliest columns."""
    has_lists = any(c.name == LIST for c in columns)  # each is the items of one user
    named = [c for c in columns if c.name != LIST]
    users = [roles.user] if roles.user is not None else [] if has_lists else likely_ids(named, NAMES.users)
    items = [c for c in likely_ids(named, NAMES.items) if c not in users[:1]] if roles.item is None else [roles.item]
    wanted = [("item", items)] if has_lists else [("user", users), ("item", items)]
    choice = " ".join(typed(role, likely[0].name if likely else "NAME") for role, likely in wanted)
    second_best = [typed(role, c.name) for role, likely in (("user", users), ("item", items)) for c in likely[1:3]]
    choice += f" (or {', '.join(second_best)})" if second_best else ""
    if asked is None:
        return f"type {choice}"
    labels = [c for c in candidates(columns) if c not in (*users[:1], *items[:1])][:4]
    label = " or ".join(typed("label", c.name) for c in labels) or "label=NAME"
    return f"type {label}, or, if each row is a choice of an item, label=null with {choice}"
