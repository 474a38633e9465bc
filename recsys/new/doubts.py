"""Find what the files do not tell: the questions that a proposal leaves open."""

from collections.abc import Iterator, Sequence

from recsys.new.column_kinds import Column
from recsys.new.gather import Gathered
from recsys.new.id_columns import copies, determines
from recsys.new.known_names import NAMES, names_an_id_of, rank_of
from recsys.new.label import distinct_numbers
from recsys.new.outcomes import outcome_form
from recsys.new.proposal import Proposal
from recsys.new.questions import Answers, Question, typed
from recsys.new.roles import incomplete_times, year_to_come

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
