"""Look at files, propose the config of a data set, and ask what they do not tell."""

import os
from collections.abc import Sequence
from pathlib import Path

import polars as pl

from recsys.base.console import say
from recsys.base.errors import NeedsAnswer, UserError
from recsys.new.ask import questions_of
from recsys.new.choose_label import candidates, choose, names_for_error
from recsys.new.column_kinds import Features, ListKind
from recsys.new.find_files import find
from recsys.new.gather import Gathered, gather
from recsys.new.known_names import NAMES, rank_of
from recsys.new.label import LabelGuess
from recsys.new.proposal import Proposal
from recsys.new.propose_ranking import propose_ranking
from recsys.new.propose_retrieval import propose_retrieval
from recsys.new.questions import Answers, Question, typed
from recsys.new.read_rows import SampledRows, read_rows, source_of
from recsys.new.roles import likely_ids
from recsys.new.sides import describe_sides
from recsys.new.splits import split_at_random, split_by_files

MAX_COPIES = 0.05  # share of rows that are copies, from which files may hold the same rows


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
    beside, questions_of_sides = describe_sides(gathered.sides, root, rows.columns)
    p.questions += questions_of_sides
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
