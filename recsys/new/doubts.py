"""Find what the files do not tell: the questions that a proposal leaves open."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from recsys.new.column_kinds import Column
from recsys.new.copies import copies, determines
from recsys.new.gather import Gathered
from recsys.new.known_names import ITEMS, RATINGS, SPENT, USERS, names_an_id_of, rank_of
from recsys.new.label import LabelGuess, codes_of
from recsys.new.outcomes import outcome_form
from recsys.new.questions import Answers, Question, typed
from recsys.new.roles import incomplete_times, year_to_come

if TYPE_CHECKING:
    from recsys.new.propose import Proposal

FEW_ROWS = 30  # from which columns can be told apart


def questions_of(p: Proposal, gathered: Gathered, answers: Answers) -> list[Question]:
    """Return the questions that the files leave open, the gravest first."""
    questions = list(gathered.questions)
    dialect = gathered.layout.dialect
    if dialect is not None and not dialect.sure_of_header and gathered.layout.format == "csv":
        taken = "the names of the columns" if dialect.header else "a row"
        text = f"is the first line of {gathered.files[0].name} the names of the columns or a row?"
        questions.append(Question(text, taken, ("header=true", "header=false")))
    if p.label is not None and p.label.doubt and answers.label == "auto":
        alternatives = tuple(typed("label", name) for name in p.label.alternatives)
        guess = typed("label", p.label.column.name)
        questions.append(Question(p.label.doubt, guess, (guess, *alternatives, "label=null")))
    if p.label is not None and p.label.undecided:
        questions.append(_which_are_positive(p.label))
    time_spent = [c.name for c in p.columns if outcome_form(c.name) in SPENT and c.numbers is not None]
    if p.label is None and time_spent and answers.label == "auto":
        text = f"is {' or '.join(time_spent[:3])} what to predict, or that a user has chosen an item?"
        given = tuple(typed("label", name) for name in time_spent[:3])
        questions.append(Question(text, "the choices of items", ("label=null", *given)))
    for role, among in (("user", USERS), ("item", ITEMS)):
        column = getattr(p.roles, role)
        if column is None or getattr(answers, role) != "auto":
            continue
        rivals = _rivals(column, p.columns, among)
        if rivals:
            text = f"which column is the {role}: {', '.join(c.name for c in [column, *rivals])}?"
            questions.append(
                Question(text, typed(role, column.name), tuple(typed(role, c.name) for c in [column, *rivals][:4]))
            )
    if p.label is not None and rank_of(p.label.column.name, RATINGS) is not None:
        questions += _who_rates(p, answers)
    questions += _of_the_future(p.roles.time)
    for c in p.columns:
        if c.mostly and c.name not in answers.names().values():
            text = f"what does {c.name} hold? {c.mostly}"
            questions.append(Question(text, "texts; mark what is missing by source.column_null_values"))
    if answers.time == "auto":
        questions += _of_incomplete_times(p)
    if p.rows < FEW_ROWS:
        questions.append(
            Question(f"there are {p.rows} rows, too few to tell columns apart: are all guesses right?", "yes")
        )
    return questions


def _which_are_positive(label: LabelGuess) -> Question:
    """Return the question which values of a label are positive."""
    values = label.classes or codes_of(label.column)
    chosen = tuple(f"{typed('label', label.column.name)} {typed('positive', v)}" for v in values[:4])
    guess = "each is a class" if label.classes else f"{label.at_least:g} and more"
    null = (f"{typed('label', label.column.name)} positive=null",) if label.classes else ()
    return Question(label.undecided, guess, (*chosen, *null))


def _of_the_future(c: Column | None) -> list[Question]:
    """Return a question if rows have a year to come, as years of the Buddhist calendar seem to be."""
    if c is None or (year := year_to_come(c)) is None:
        return []
    text = f"{c.name} has times of the year {year}: does another calendar, or an error, explain them?"
    return [Question(text, "no", ("time=null",))]


def _of_incomplete_times(p: Proposal) -> list[Question]:
    """Return the question whether the likeliest column is the time, if too many rows lack a value to leave them out."""
    times = incomplete_times(p.columns if p.roles.time is None else [p.roles.time])
    if not times:
        return []
    text = (
        f"{times[0].name} is empty in {times[0].missing:.0%} of the rows: is it their time? Rows without are left out"
    )
    answers = typed("time", times[0].name), "time=null"
    return [Question(text, "no", answers[::-1]) if p.roles.time is None else Question(text, answers[0], answers)]


def _who_rates(p: Proposal, answers: Answers) -> list[Question]:
    """Return a question if no name says which column is the user, or the item, of a rating."""
    lacks = [r for r in ("user", "item") if getattr(p.roles, r) is None and getattr(answers, r) == "auto"]
    free = [c for c in p.columns if not c.role and c.distinct > FEW_ROWS and (c.kind == "id" or c.is_whole)]
    if not lacks or len(free) < len(lacks):
        return []
    guess = " ".join(typed(role, c.name) for role, c in zip(lacks, free, strict=False))
    none = " ".join(f"{role}=null" for role in lacks)
    text = f"which column is the {' and which the '.join(lacks)} of {p.label.column.name}? No name says so"  # type: ignore[union-attr]
    return [Question(text, "none", (guess, none))]


def _rivals(column: Column, columns: Sequence[Column], among: tuple[str, ...]) -> list[Column]:
    """Return the columns that may be the user or the item instead of `column`, without copies and groups of it."""
    renamed = copies(columns)
    rivals = [c for c in columns if c is not column and not c.role and names_an_id_of(c.name, among)]
    rivals = [c for c in rivals if c.name not in renamed and c.kind in ("id", "row id") and c.missing < 0.5]
    return [c for c in rivals if not determines(column, c) and not determines(c, column)]
