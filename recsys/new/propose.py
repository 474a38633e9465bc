"""Look at files, propose the config of a data set, and ask what they do not tell."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import polars as pl

from recsys.base.console import say
from recsys.base.errors import NeedsAnswer, UserError
from recsys.new.column_kinds import Features, ListKind
from recsys.new.find_files import find
from recsys.new.gather import Gathered, describe_sides, gather
from recsys.new.known_names import NAMES, has_word, rank_of
from recsys.new.label import LabelGuess, candidates, choose, distinct_numbers, names_for_error
from recsys.new.leaks import outcome_form
from recsys.new.proposal import Proposal, split_at_random, split_by_files
from recsys.new.propose_features import propose_ranking, propose_retrieval
from recsys.new.questions import Answers, Question, typed
from recsys.new.read_rows import SampledRows, read_rows, source_of
from recsys.new.roles import incomplete_times, likely_ids, rivals_of
from recsys.new.value_marks import Marks
from recsys.new.yaml_text import flow

MAX_COPIES = 0.05  # share of rows that are copies, from which files may hold the same rows
MAX_DAYS = 31  # different values under the name of a time that are no times, such as days of a month
MIN_ROWS = 30  # from which columns can be told apart


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
    rows = read_rows(found, gathered, answers)
    retrieval = rows.roles.user is not None and rows.roles.item is not None
    try:
        label = _label(rows, gathered, answers, retrieval=retrieval)
        if label is None and not retrieval:
            raise NeedsAnswer(f"files={','.join(given)}: {_why_no_label(rows, answers.label)}")
    except NeedsAnswer as e:  # the questions about the files come first
        questions = [f"{q.text} {' or '.join(q.answers)}".rstrip() for q in gathered.questions]
        e.args = ("; ".join([*questions, str(e)]),)
        raise
    source, reasons = source_of(found, gathered, rows)
    no_time = "no time, as you asked" if answers.time is None else "no column certainly holds a time"
    p = Proposal(
        root=found.root,
        source=source,
        reasons=reasons,
        columns=rows.columns,
        roles=rows.roles,
        label=label,
        split=split_at_random(no_time),
        features=Features(),
        rows=rows.sample.rows,
        typed=layout.typed,
        no_time=no_time,
    )
    p.copies, p.questions = _copies(rows, gathered, are_splits=split_by_files(root, files) is not None)
    p.questions += questions_of(p, gathered, rows.marks, answers)
    beside = describe_sides(gathered.sides, root, rows.columns)
    p.unused = [(os.path.relpath(f, root), why) for f, why in gathered.unused] + beside
    if label is None:
        propose_retrieval(p, files)
    else:
        propose_ranking(p, label, gathered, root)
    if p.split.by_files:
        p.source.pop("files")
    if not p.features.inputs:
        why = "; ".join(f"{name}: {why}" for name, why in p.features.left_out[:4])
        raise UserError(f"files={','.join(given)}: no column but the label can be a feature; {why}")
    return p


def _copies(rows: SampledRows, gathered: Gathered, *, are_splits: bool) -> tuple[str, list[Question]]:
    """Return how many rows are copies of others in all columns, and the question whether files hold the same rows.

    Nothing is returned if none is, or columns cannot be compared.
    """
    frame = rows.sample.frame
    try:
        copies = frame.height - frame.hash_rows().n_unique()
    except pl.exceptions.PolarsError:
        return "", []
    text = f"{copies:,} of the {frame.height:,} rows that were looked at are exact copies of others" if copies else ""
    is_asked = not are_splits and len(gathered.files) > 1 and copies > MAX_COPIES * frame.height
    names = ", ".join(f.name for f in gathered.files[:4])
    why = f"{text}: do some of {names} hold rows of another one?"
    return text, [Question(why, "no; if so, name the others by files=[...]", key="files")] if is_asked else []


def _label(rows: SampledRows, gathered: Gathered, answers: Answers, *, retrieval: bool) -> LabelGuess | None:
    """Return the label, and set the role of its column; None if no column is the label."""
    if answers.label is None:
        return None
    positive, untested = answers.positive, gathered.untested
    label = choose(rows.columns, answers.label, retrieval=retrieval, untested=untested, positive=positive)
    for c in rows.columns if answers.label == "auto" else ():
        if c.kind.says_nothing and c.distinct and rank_of(c.name, NAMES.labels) is not None:
            say(f"{c.name} cannot be the label: {c.reason}")
    if label is None:
        return None
    label.column.role = "label"
    return label


def _why_no_label(rows: SampledRows, asked: str | None) -> str:
    """Return why rows without a label, a user and an item cannot be learned from, and which columns to name."""
    columns, roles = rows.columns, rows.roles
    users = [roles.user] if roles.user is not None else likely_ids(columns, NAMES.users)
    items = [c for c in likely_ids(columns, NAMES.items) if c not in users[:1]] if roles.item is None else [roles.item]
    wanted = (("user", users), ("item", items))
    choice = " ".join(typed(role, likely[0].name if likely else "NAME") for role, likely in wanted)
    labels = [c for c in candidates(columns) if c not in (*users[:1], *items[:1])][:4]
    label = " or ".join(typed("label", c.name) for c in labels) or "label=NAME"
    hint = f"type {label}, or, if each row is a choice of an item, label=null with {choice}"
    if lists := [c.name for c in columns if isinstance(c.kind, ListKind) and c.values.dtype.is_nested()]:
        hint = f"if each element of {lists[0]} is a row, write these rows, as polars' explode does; otherwise, {hint}"
    if asked is None:
        return f"no two columns are a user and an item; type {choice} (columns: {names_for_error(columns)})"
    return f"no name says which column is the label; {hint} (columns: {names_for_error(columns)})"


def questions_of(p: Proposal, gathered: Gathered, marks: Marks, answers: Answers) -> Iterator[Question]:
    """Yield the questions that the files leave open, the gravest first."""
    yield from gathered.questions
    layout = gathered.layout
    if layout.is_csv and not layout.sure_of_header:
        text = f"is the first line of {gathered.files[0].name} the names of the columns or a row?"
        guess = "the names of the columns" if layout.header else "a row"
        yield Question(text, guess, ("header=true", "header=false"), key="header")
    if p.label is not None:
        yield from _about_label(p.label, answers)
    time_spent = [c.name for c in p.columns if outcome_form(c.name) in NAMES.spent and c.numbers is not None][:3]
    if p.label is None and time_spent and answers.label == "auto":
        text = f"is {' or '.join(time_spent)} what to predict, or that a user has chosen an item?"
        answer = ("label=null", *(typed("label", name) for name in time_spent))
        yield Question(text, "the choices of items", answer, key="label")
    yield from _about_ids(p, answers)
    if marks.doubt and layout.takes_marks and not layout.typed:
        yield Question(marks.doubt, f"source.decimal: '{marks.decimal}'", key="decimal")
    doubtful = [c for c in p.columns if c.doubt and c.name not in answers.names().values()]
    if doubtful:
        text = "; ".join(f"{c.name}: {c.doubt}" for c in doubtful[:3])
        hint = "no" if all(c.numbers is not None for c in doubtful) else "texts"
        yield Question(text, f"{hint}; mark what is missing by source.column_null_values", key="kind")
    if answers.time == "auto":
        yield from _about_time(p)
    if p.rows < MIN_ROWS:
        text = f"there are {p.rows} rows, too few to tell columns apart: are all guesses right?"
        yield Question(text, "yes", key="rows")


def _about_label(label: LabelGuess, answers: Answers) -> Iterator[Question]:
    """Yield whether this column is the label, and which of its values are positive."""
    if label.doubt and answers.label == "auto":
        guess, *others = (typed("label", name) for name in dict.fromkeys((label.column.name, *label.alternatives)))
        yield Question(label.doubt, guess, (guess, *others, "label=null"), key="label")
    if label.undecided:
        asked, values = typed("label", label.column.name), label.classes
        values = values or [f"{v:g}" for v in distinct_numbers(label.column)]
        offered = [f"{asked} {typed('positive', v)}" for v in values[:4]]
        offered += [f"{asked} positive=null"] if label.classes else []
        yield Question(label.undecided, f"label: {flow(label.settings)}", tuple(offered), key="positive")


def _about_ids(p: Proposal, answers: Answers) -> Iterator[Question]:
    """Yield which columns are the user and the item, if several may be, or a rating has none."""
    lacking: list[str] = []
    for role, column, among in (("user", p.roles.user, NAMES.users), ("item", p.roles.item, NAMES.items)):
        if getattr(answers, role) != "auto":
            continue
        if column is None:
            lacking.append(role)
        elif rivals := rivals_of(column, p.columns, among):
            names = [c.name for c in (column, *rivals)]
            text = f"which column is the {role}: {', '.join(names)}?"
            yield Question(text, typed(role, column.name), tuple(typed(role, name) for name in names[:4]), key=role)
    if p.label is not None and lacking and rank_of(p.label.column.name, NAMES.ratings) is not None:
        free = [c for c in likely_ids(p.columns, ()) if not has_word(c.name, NAMES.codes)]
        free += [c for c in p.columns if not c.role and c.kind.is_number and c.is_whole and c.distinct > MIN_ROWS]
        if len(free) >= len(lacking):
            text = f"which column is the {' and which the '.join(lacking)} of {p.label.column.name}? No name says so"
            guess = " ".join(typed(role, c.name) for role, c in zip(lacking, free, strict=False))
            yield Question(text, "none", (guess, " ".join(f"{role}=null" for role in lacking)), key="user")


def _about_time(p: Proposal) -> Iterator[Question]:
    """Yield whether the time of the rows is one, or whether a column that has the name of one is."""
    time = p.roles.time
    if time is not None and time.time is not None and time.time.doubt:
        answer = (typed("time", time.name), "time=null")
        guess = f"{time.reason}; or correct the YAML"
        yield Question(f"{time.name}: {time.time.doubt}", guess, answer, key="time")
    times = incomplete_times(p.columns if time is None else [time])
    if times:  # too many rows lack a value to leave them out
        name, share = times[0].name, times[0].missing
        text = f"{name} is empty in {share:.0%} of the rows: is it their time? Rows without are left out"
        typed_time = typed("time", name)
        guess, *rest = ("no", "time=null", typed_time) if time is None else (typed_time, typed_time, "time=null")
        yield Question(text, guess, tuple(rest), key="time")
    free = [c for c in p.columns if not c.doubt and c.time is None and not c.role and not c.kind.says_nothing]
    free = [c for c in free if c.distinct > MAX_DAYS and (rank_of(c.name, NAMES.times) is not None or "date" in c.name)]
    if time is None and not times and free:
        named = free[0]
        text = f"is {named.name} a time? Its values, such as {named.examples(1)[0]}, are no times that are known"
        answers = ["time=null", *([typed("time", named.name)] if named.numbers is not None else [])]
        guess = "no; if it is, write 2026-01-31 12:00:00 or unix seconds"
        yield Question(text, guess, tuple(answers), key="time")
