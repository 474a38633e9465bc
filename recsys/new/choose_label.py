"""Choose the label of the rows: the column that the user names, or the likeliest one."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise

import polars as pl

from recsys.base.errors import NeedsAnswer, UserError, did_you_mean
from recsys.data.features.blocks import LIST
from recsys.new.column_kinds import Column
from recsys.new.known_names import (
    AMOUNTS,
    EVENTS,
    LABELS,
    OUTCOMES,
    PERHAPS_AMOUNTS,
    RATINGS,
    REFUSALS,
    STATUSES,
    WEIGHTS,
    has_word,
    plain,
    rank_of,
    words,
)
from recsys.new.label import (
    MOST_RATINGS,
    LabelGuess,
    are_answers,
    codes_of,
    distinct_numbers,
    is_event,
    is_one_of,
    label_of,
    spellings_of,
)
from recsys.new.questions import typed
from recsys.new.statistics import mean

CERTAIN_RATINGS = ("rating", "ratings", "stars", "star_rating", "book_rating")  # also with many values
FEWEST_THAT_DIFFER = 0.1  # share of users, and of items, whose rows have both values of a label
MOST_NAMED_CLASSES = 50  # different texts under the name of a label
MOST_LETTERS = 300  # of the names of columns in an error
FEWEST_ALIKE = 2
MOST_TIMES = 0.5  # share of rows with a time that may be that of an outcome
LAST_RATINGS = ("overall", "rating", "stars", "ratings")  # the last words of the name of a rating
MOST_CODES = 6  # different numbers that may be codes of answers, such as 1, 2 and 9


@dataclass
class _Choice:
    """A column that is taken for the label because its name or its values say so.

    column: the column
    reason: why this column
    doubt: why it is not certain; empty if it is
    rivals: other columns that may be the label instead
    undecided: the question which values are positive; empty to derive it from the column
    family: the names of columns that are likely labels as well
    """

    column: Column
    reason: str
    doubt: str = ""
    rivals: Sequence[Column] = ()
    undecided: str = ""
    family: tuple[str, ...] = ()

    def label(self) -> LabelGuess | None:
        """Return the label that the column makes, with the reason and the questions; None if it makes no label."""
        label = label_of(self.column)
        if label is None:
            return None
        label.reason = self.reason + label.reason
        label.undecided = self.undecided or _undecided(label)
        label.family = self.family
        if self.doubt:
            label.doubt = f"is {self.column.name} the label? {self.doubt}"
            label.alternatives = tuple(c.name for c in self._rivals_by_name())[:3]
        return label

    def _rivals_by_name(self) -> list[Column]:
        """Return the rivals, those first whose names share most words with the name of the column."""
        name_words = set(words(self.column.name))
        rivals = [c for c in self.rivals if c is not self.column]
        return sorted(rivals, key=lambda c: -len(name_words & set(words(c.name))))


def choose(
    columns: Sequence[Column],
    asked: str,
    *,
    retrieval: bool,
    untested: Collection[str] = (),
    positive: Sequence[str] | str | None = "auto",
) -> LabelGuess | None:
    """Return the label that the user asks for, or the likeliest; None if no column can be one.

    Args:
        columns: the columns of the sample; the roles of user, item and time are set.
        asked: the name of a column, or auto.
        retrieval: a user and an item are known, so that rows need no label.
        untested: the columns that a file of test rows lacks; one of them is the label.
        positive: the positive values of the column `asked`; None for a class of each, or auto.
    """
    if asked != "auto":
        return _asked_label(columns, asked, positive)
    choice = _likeliest_choice(columns, retrieval=retrieval, untested=untested)
    return None if choice is None else choice.label()


def _asked_label(columns: Sequence[Column], asked: str, positive: Sequence[str] | str | None) -> LabelGuess:
    """Return the label that the user names. Raises UserError if there is no such column, or it cannot be a label."""
    column = next((c for c in columns if c.name == asked), None)
    if column is None:
        raise UserError(f"label={asked}: no such column{did_you_mean(asked, [c.name for c in columns])}")
    label = label_of(column) if positive in ("auto", None) else _of_values(column, positive or ())
    if label is None:
        why = f"{column.reason or 'it has one value'}{_derived(column)}"
        raise UserError(f"label={asked}: {why}, so it cannot be a label; name another")
    label.reason = f"as you asked{label.reason}"
    label.undecided = _undecided(label) if positive == "auto" else ""
    return label


def _likeliest_choice(columns: Sequence[Column], *, retrieval: bool, untested: Collection[str]) -> _Choice | None:
    """Return the column that is likeliest the label: signs are looked for in order, the surest first."""
    free = [c for c in columns if not c.role and c.kind in ("category", "number", "id")]
    if (choice := _by_name(free, retrieval=retrieval)) is not None:
        return choice
    if lacking := [c for c in free if c.name in untested]:
        return _Choice(_likeliest(lacking), "the test file lacks it")
    if not retrieval and (amount := _named_amount(free, AMOUNTS)) is not None:
        return _Choice(amount, "its name says so")
    two_valued = [c for c in free if (c.distinct == 2 or len(spellings_of(c)) == 2) and not has_word(c.name, WEIGHTS)]
    two_valued = [c for c in two_valued if not c.is_partition]
    choice = (
        _only_two_valued(columns, free, two_valued, retrieval=retrieval)
        or _rating(free)
        or _kinds_of_events(free, retrieval=retrieval)
    )
    if choice is not None:
        return choice
    if (rating := _named_amount(free, CERTAIN_RATINGS)) is not None:
        return _Choice(rating, "a rating, by its name")
    if retrieval:
        return _answers(columns, two_valued) or _states(free)
    if (amount := _named_amount(free, PERHAPS_AMOUNTS)) is not None:
        return _Choice(amount, "its name may say so", "its name may also be that of a feature", two_valued)
    return _at_an_end(columns, two_valued) if two_valued else None


def _by_name(free: Sequence[Column], *, retrieval: bool) -> _Choice | None:
    """Return the column with the name of a label, such as clicked; of outcome.clicked, the last part counts."""
    named = [
        (rank, c)
        for c in free
        if (rank := rank_of(c.name.rpartition(".")[2], LABELS)) is not None and _can_be(c, retrieval=retrieval)
    ]
    if not named:
        return None
    rank, column = min(named, key=lambda pair: (pair[1].distinct > 2, pair[0]))
    outcomes = [c for c in free if c is not column and c.distinct == 2 and plain(c.name) in OUTCOMES]
    if rank <= LABELS.index("clk") or len(outcomes) < FEWEST_ALIKE:
        return _Choice(column, "its name says so")
    doubt = f"{', '.join(c.name for c in outcomes[:4])} are outcomes, too"
    return _Choice(column, "its name says so", doubt, outcomes)


def _only_two_valued(
    columns: Sequence[Column], free: Sequence[Column], two_valued: Sequence[Column], *, retrieval: bool
) -> _Choice | None:
    """Return the only column with two values, if the rows have no rating and no kinds of events.

    It is certain if it is the first or the last column of a file without a header, and holds yes and no.
    """
    # no name of a file without a header says what a column is
    unnamed = all(c.name.startswith(("column_", "field_")) for c in two_valued)
    has_rating = any(rank_of(c.name, RATINGS) is not None and 2 < c.distinct <= MOST_RATINGS for c in free)
    has_events = any(c.distinct > 2 and rank_of(c.name, EVENTS) is not None and is_event(c) for c in free)
    if len(two_valued) != 1 or has_rating or has_events or (retrieval and not unnamed):
        return None
    [only] = two_valued
    reason = "the only column with two values"
    if unnamed and are_answers(only) and (only is columns[0] or only is columns[-1]):
        return _Choice(only, reason)
    rare_times = [c for c in columns if c.kind == "time" and c.missing > 1 - MOST_TIMES]
    rivals = [*rare_times, *(c for c in candidates(columns) if c is not only)]
    return _Choice(only, reason, "it alone has two values, and its name is no label's", rivals)


def _rating(free: Sequence[Column]) -> _Choice | None:
    """Return the column of few values with the name of a rating, such as stars or review_overall."""
    few = [c for c in free if 1 < c.distinct <= MOST_RATINGS]
    rated = [(rank, c) for c in few if (rank := rank_of(c.name, RATINGS)) is not None]
    if not rated:
        rated = [(rank, c) for c in few if (rank := rank_of(words(c.name)[-1], LAST_RATINGS)) is not None]
    return _Choice(min(rated, key=lambda pair: pair[0])[1], "a rating, by its name") if rated else None


def _kinds_of_events(free: Sequence[Column], *, retrieval: bool) -> _Choice | None:
    """Return the column with the name of events whose values are their kinds, as words or as numbers."""
    few = [c for c in free if 1 < c.distinct <= MOST_RATINGS]
    named = [(rank, c) for c in few if (rank := rank_of(c.name, EVENTS)) is not None]
    if not named:
        return None
    column = min(named, key=lambda pair: pair[0])[1]
    if is_event(column):
        label = label_of(column)
        reason = "kinds of events, by its name"
        if label is None or len(label.positive) != 1 or column.distinct == 2:
            return _Choice(column, reason)
        others = ", ".join(v for v in column.examples(7) if v not in label.positive)
        return _Choice(column, reason, f"it would tell {label.positive[0]} from other kinds of events: {others}")
    if retrieval and column.numbers is not None and column.is_whole:
        reason = "its numbers are kinds of events, and nothing says which ones count"
        return _Choice(column, reason, reason, undecided=_which_values(column))
    return None


def _answers(columns: Sequence[Column], two_valued: Sequence[Column]) -> _Choice | None:
    """Return the first column of yes and no that differs between the rows of a user or an item."""
    answers = [c for c in two_valued if _differs(c, columns)]
    if len(answers) == 1:
        reason = "the only column of yes and no that differs between rows of a user or an item"
        return _Choice(answers[0], reason, f"it is {reason}")
    if answers:
        doubt = f"{', '.join(c.name for c in answers)} hold yes and no that differ between rows of a user or an item"
        return _Choice(answers[0], "the first column of yes and no", doubt, answers)
    return None


def _states(free: Sequence[Column]) -> _Choice | None:
    """Return the first column whose name and text say that its values are states, such as returned and kept."""
    for c in free:
        if has_word(c.name, STATUSES) and 2 < c.distinct <= MOST_RATINGS and c.numbers is None:
            reason = f"its values are states: {', '.join(c.examples(4))}"
            return _Choice(c, reason, reason)
    return None


def _of_values(c: Column, positive: Sequence[str]) -> LabelGuess:
    """Return the label whose positive values the user names. Raises UserError for one that the sample lacks."""
    texts = set(c.values.drop_nulls().cast(pl.String).str.strip_chars().unique().to_list())
    if unknown := next((v for v in positive if v not in texts), None):
        raise UserError(f"positive={unknown}: {c.name} has no such value{did_you_mean(unknown, texts)}")
    return LabelGuess(c, is_one_of(c, positive), positive=list(positive), reason="; positive as you asked")


def _undecided(label: LabelGuess) -> str:
    """Return the question which values of a label are positive, if neither its name nor its values tell."""
    c = label.column
    if label.kind == "classes":
        if len(label.classes) > MOST_RATINGS or not has_word(c.name, STATUSES):
            return ""
        return f"which values of {c.name} are positive: {', '.join(label.classes[:8])}?"
    values = distinct_numbers(c)
    gaps = 2 < len(values) <= MOST_CODES and any(b - a > 1 for a, b in pairwise(values))
    if label.at_least is None or not gaps or rank_of(c.name, (*RATINGS, *LABELS[:3])) is not None:
        return ""
    return _which_values(c)


def _which_values(c: Column) -> str:
    return f"which values of {c.name} are positive: {', '.join(codes_of(c))}?"


def candidates(columns: Sequence[Column]) -> list[Column]:
    """Return the columns that may be the label, the likeliest first: states and outcomes by name, yes and no, others.

    Later columns come first among equals: labels are usually at the end.
    """
    free = [c for c in columns if not c.role and c.kind in ("category", "number", "id") and not c.is_partition]
    free = [c for c in free if 2 <= c.distinct <= MOST_RATINGS and not c.sql and not c.values.dtype.is_nested()]
    unlikely = {c.name: not has_word(c.name, (*STATUSES, *LABELS, *OUTCOMES, *REFUSALS)) for c in free}
    free.reverse()
    return sorted(free, key=lambda c: (unlikely[c.name], not are_answers(c), c.distinct > 2))


def _derived(c: Column) -> str:
    return f" (a derived column may: {c.sql.format(c.name)})" if c.sql else ""


def _differs(c: Column, columns: Sequence[Column]) -> bool:
    """Return True for a column of yes and no that is a property neither of the user nor of the item."""
    if not are_answers(c):
        return False
    for key in columns:
        if key.role in ("user", "item"):
            frame = pl.DataFrame({"key": key.values, "x": c.values}).drop_nulls()
            several = frame.group_by("key").agg(pl.len(), pl.col("x").n_unique().alias("n")).filter(pl.col("len") > 1)
            if several.height and mean(several["n"] > 1) < FEWEST_THAT_DIFFER:
                return False
    return True


def _named_amount(columns: Sequence[Column], among: tuple[str, ...]) -> Column | None:
    """Return the column of many different numbers with one of these names; None if no column has such a name."""
    ranked = [
        (rank, i)
        for i, c in enumerate(columns)
        if (rank := rank_of(c.name, among)) is not None and c.numbers is not None and c.distinct > MOST_RATINGS
    ]
    return columns[min(ranked)[1]] if ranked else None


def _likeliest(lacking: Sequence[Column]) -> Column:
    """Return the likeliest label of the columns that a test file lacks: by its name, with two values, or the last."""
    names = (*LABELS, *AMOUNTS, *RATINGS, *PERHAPS_AMOUNTS)
    ranks = [rank_of(c.name, names) for c in lacking]
    order = [
        (len(names) if r is None else r, c.distinct > 2, -i)
        for i, (r, c) in enumerate(zip(ranks, lacking, strict=True))
    ]
    return lacking[order.index(min(order))]


def names_for_error(columns: Sequence[Column]) -> str:
    """Return the names of columns: all if they are short, otherwise the first and the last ones."""
    names = [c.name for c in columns if c.name != LIST]
    if len(names) <= 12 or len(", ".join(names)) <= MOST_LETTERS:
        return ", ".join(names)
    return ", ".join([*names[:6], "...", *names[-6:]])


def _can_be(c: Column, *, retrieval: bool) -> bool:
    """Return True if a column named like a label can be one: of few values, or of any under a strong name."""
    few = c.distinct <= (MOST_RATINGS if c.numbers is not None else MOST_NAMED_CLASSES)
    two = c.distinct == 2 or len(spellings_of(c)) == 2
    return two or (few and not (retrieval and c.numbers is None)) or rank_of(c.name, LABELS[:3]) is not None


def _at_an_end(columns: Sequence[Column], two_valued: Sequence[Column]) -> _Choice:
    """Return the last or the first column if it has two values, since labels are usually there.

    Raises:
        NeedsAnswer: neither has two values.
    """
    for place, where in ((-1, "the last column"), (0, "the first column")):
        column = columns[place]
        if column in two_valued:
            doubt = f"it is {where}, and {len(two_valued)} columns have two values"
            family = _family(column, two_valued)
            if family:
                doubt += f"; {len(family)} have names like it, may be labels, too, and are no features"
            reason = f"{where} of those with two values (a guess)"
            return _Choice(column, reason, doubt, two_valued, family=tuple(c.name for c in family))
    likely = [c for c in candidates(columns) if c in two_valued]
    described = ", ".join(c.name for c in likely[:8])
    if times := [c.name for c in columns if c.kind == "time" and c.missing > 1 - MOST_TIMES]:
        described += f"; few rows have {', '.join(times[:4])}, and {typed('label', times[-1])} tells those that have"
    raise NeedsAnswer(
        f"label: {len(two_valued)} of {len(columns)} columns have two values ({described}); "
        f"type {' or '.join(typed('label', c.name) for c in likely[:4])}, or another"
    )


def _family(c: Column, two_valued: Sequence[Column]) -> list[Column]:
    """Return the other columns whose names begin, or end, with the same word, if they are several."""
    for place in (0, -1):
        same = [o for o in two_valued if o is not c and words(o.name)[place:][:1] == words(c.name)[place:][:1]]
        if len(words(c.name)) > 1 and len(same) >= FEWEST_ALIKE:
            return same
    return []
