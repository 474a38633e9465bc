"""Choose the label of the rows: the column that the user names, or the likeliest one."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise

import polars as pl

from recsys.base.errors import NeedsAnswer, UserError, did_you_mean
from recsys.data.features.blocks import LIST
from recsys.new.column_kinds import Column
from recsys.new.known_names import NAMES, has_word, plain, rank_of, words
from recsys.new.label import (
    MOST_RATINGS,
    BinaryGuess,
    LabelGuess,
    are_answers,
    distinct_numbers,
    is_event,
    label_of,
    of_values,
    spellings_of,
)
from recsys.new.questions import typed
from recsys.new.statistics import mean

CERTAIN_RATINGS = ("rating", "ratings", "stars", "star_rating", "book_rating")  # also with many values
LAST_RATINGS = ("overall", "rating", "stars", "ratings")  # the last words of the name of a rating
FEWEST_ALIKE = 2


@dataclass
class _Choice:
    """A column that is taken for the label because its name or its values say so."""

    column: Column
    reason: str  # why this column
    doubt: str = ""  # why it is not certain; empty if it is
    rivals: Sequence[Column] = ()  # other columns that may be the label instead
    undecided: str = ""  # the question which values are positive; empty to derive it from the column
    family: tuple[str, ...] = ()  # the names of columns that are likely labels as well


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

    Raises:
        UserError: there is no such column, or it cannot be a label.
    """
    if asked != "auto":
        c = next((c for c in columns if c.name == asked), None)
        if c is None:
            raise UserError(f"label={asked}: no such column{did_you_mean(asked, [c.name for c in columns])}")
        label = _label_of(c, positive)
        if label is None:
            derived = f" (a derived column may: {c.sql.format(c.name)})" if c.sql else ""
            why = f"{c.reason or 'it has one value'}{derived}"
            raise UserError(f"label={asked}: {why}, so it cannot be a label; name another")
        label.reason = f"as you asked{label.reason}"
        label.undecided = _undecided(label) if positive == "auto" else ""
        return label
    choice = _likeliest_choice(columns, retrieval=retrieval, untested=untested)
    label = _label_of(choice.column, positive) if choice is not None else None
    if choice is None or label is None:
        return None
    label.reason = choice.reason + label.reason
    label.undecided = (choice.undecided or _undecided(label)) if positive == "auto" else ""
    label.family = choice.family
    if choice.doubt:
        label.doubt = f"is {choice.column.name} the label? {choice.doubt}"
        name_words = set(words(choice.column.name))
        rivals = [c for c in choice.rivals if c is not choice.column]
        rivals.sort(key=lambda c: -len(name_words & set(words(c.name))))
        label.alternatives = tuple(c.name for c in rivals)[:3]
    return label


def _label_of(c: Column, positive: Sequence[str] | str | None) -> LabelGuess | None:
    """Return the column as a label, whose positive values are those that are given, if they are."""
    if isinstance(positive, str) or positive is None:
        return label_of(c)
    texts = set(c.texts.str.strip_chars().to_list())
    if unknown := next((v for v in positive if v not in texts), None):
        raise UserError(f"positive={unknown}: {c.name} has no such value{did_you_mean(unknown, texts)}")
    return of_values(c, positive, "; positive as you asked")


def _likeliest_choice(columns: Sequence[Column], *, retrieval: bool, untested: Collection[str]) -> _Choice | None:
    """Return the column that is likeliest the label: signs are looked for in order, the surest first."""
    free = [c for c in columns if not c.role and c.kind.is_single]
    if (choice := _by_name(free, retrieval=retrieval)) is not None:
        return choice
    if lacking := [c for c in free if c.name in untested]:  # by its name, with two values, or the last
        names = (*NAMES.labels, *NAMES.amounts, *NAMES.ratings, *NAMES.perhaps_amounts)
        ranks = [len(names) if (rank := rank_of(c.name, names)) is None else rank for c in lacking]
        order = [(rank, c.distinct > 2, -i) for i, (rank, c) in enumerate(zip(ranks, lacking, strict=True))]
        return _Choice(lacking[order.index(min(order))], "the test file lacks it")
    if not retrieval and (amount := _named_amount(free, NAMES.amounts)) is not None:
        return _Choice(amount, "its name says so")
    two_valued = [c for c in free if _has_two_values(c) and not has_word(c.name, NAMES.weights) and not c.is_partition]
    if (choice := _only_two_valued(columns, free, two_valued, retrieval=retrieval)) is not None:
        return choice
    few = [c for c in free if 1 < c.distinct <= MOST_RATINGS]
    if (rating := _best_named(few, NAMES.ratings) or _best_named(few, LAST_RATINGS, last=True)) is not None:
        return _Choice(rating, "a rating, by its name")  # such as stars or review_overall
    if (choice := _kinds_of_events(_best_named(few, NAMES.events), retrieval=retrieval)) is not None:
        return choice
    if (rating := _named_amount(free, CERTAIN_RATINGS)) is not None:
        return _Choice(rating, "a rating, by its name")
    if retrieval:
        # the first column of yes and no that differs between rows of a user or an item, or else of states
        answers = [c for c in two_valued if _differs(c, columns)]
        if len(answers) == 1:
            reason = "the only column of yes and no that differs between rows of a user or an item"
            return _Choice(answers[0], reason, f"it is {reason}")
        if answers:
            doubt = (
                f"{', '.join(c.name for c in answers)} hold yes and no that differ between rows of a user or an item"
            )
            return _Choice(answers[0], "the first column of yes and no", doubt, answers)
        for c in free:
            if has_word(c.name, NAMES.statuses) and 2 < c.distinct <= MOST_RATINGS and c.numbers is None:
                reason = f"its values are states: {', '.join(c.examples(4))}"
                return _Choice(c, reason, reason)
        return None
    if (amount := _named_amount(free, NAMES.perhaps_amounts)) is not None:
        return _Choice(amount, "its name may say so", "its name may also be that of a feature", two_valued)
    return _at_an_end(columns, two_valued) if two_valued else None


def _has_two_values(c: Column) -> bool:
    return c.distinct == 2 or len(spellings_of(c)) == 2


def _by_name(free: Sequence[Column], *, retrieval: bool) -> _Choice | None:
    """Return the column with the name of a label, such as clicked; of outcome.clicked, the last part counts.

    It has few values, or a strong name.
    """
    named: list[tuple[bool, int, int]] = []
    for i, c in enumerate(free):
        few = c.distinct <= (MOST_RATINGS if c.numbers is not None else 50) and not (retrieval and c.numbers is None)
        can_be = _has_two_values(c) or few or rank_of(c.name, NAMES.labels[:3]) is not None
        if can_be and (rank := rank_of(c.name.rpartition(".")[2], NAMES.labels)) is not None:
            named.append((c.distinct > 2, rank, i))
    if not named:
        return None
    _, rank, place = min(named)
    column = free[place]
    outcomes = [c for c in free if c is not column and c.distinct == 2 and plain(c.name) in NAMES.outcomes]
    if rank <= NAMES.labels.index("clk") or len(outcomes) < FEWEST_ALIKE:
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
    has_rating = any(rank_of(c.name, NAMES.ratings) is not None and 2 < c.distinct <= MOST_RATINGS for c in free)
    has_events = any(c.distinct > 2 and rank_of(c.name, NAMES.events) is not None and is_event(c) for c in free)
    if len(two_valued) != 1 or has_rating or has_events or (retrieval and not unnamed):
        return None
    [only] = two_valued
    reason = "the only column with two values"
    if unnamed and are_answers(only) and (only is columns[0] or only is columns[-1]):
        return _Choice(only, reason)
    rivals = [*_rare_times(columns), *(c for c in candidates(columns) if c is not only)]
    return _Choice(only, reason, "it alone has two values, and its name is no label's", rivals)


def _rare_times(columns: Sequence[Column]) -> list[Column]:
    """Return the times of few rows, which may be those of an outcome."""
    return [c for c in columns if c.time is not None and c.missing > 0.5]


def _best_named(columns: Sequence[Column], among: tuple[str, ...], *, last: bool = False) -> Column | None:
    """Return the column with the first of these names, or with one as its last word; None if no column has one."""
    names = [words(c.name)[-1] if last and words(c.name) else c.name for c in columns]
    ranked = [(rank, i) for i, name in enumerate(names) if (rank := rank_of(name, among)) is not None]
    return columns[min(ranked)[1]] if ranked else None


def _named_amount(columns: Sequence[Column], among: tuple[str, ...]) -> Column | None:
    """Return the column of many different numbers with one of these names; None if no column has such a name."""
    return _best_named([c for c in columns if c.numbers is not None and c.distinct > MOST_RATINGS], among)


def _kinds_of_events(column: Column | None, *, retrieval: bool) -> _Choice | None:
    """Return the column with the name of events if its values are their kinds, as words or as numbers."""
    if column is None:
        return None
    if is_event(column):
        label = label_of(column)
        reason = "kinds of events, by its name"
        if not isinstance(label, BinaryGuess) or len(label.positive) != 1 or column.distinct == 2:
            return _Choice(column, reason)
        others = ", ".join(v for v in column.examples(7) if v not in label.positive)
        return _Choice(column, reason, f"it would tell {label.positive[0]} from other kinds of events: {others}")
    if retrieval and column.numbers is not None and column.is_whole:
        reason = "its numbers are kinds of events, and nothing says which ones count"
        return _Choice(column, reason, reason, undecided=_which_values(column))
    return None


def _differs(c: Column, columns: Sequence[Column]) -> bool:
    """Return True for a column of yes and no that is a property neither of the user nor of the item."""
    if not are_answers(c):
        return False
    for key in columns:
        if key.role in ("user", "item"):
            frame = pl.DataFrame({"key": key.values, "x": c.values}).drop_nulls()
            several = frame.group_by("key").agg(pl.len(), pl.col("x").n_unique().alias("n")).filter(pl.col("len") > 1)
            if several.height and mean(several["n"] > 1) < 0.1:
                return False
    return True


def _undecided(label: LabelGuess) -> str:
    """Return the question which values of a label are positive, if neither its name nor its values tell."""
    c = label.column
    if label.classes:
        many = len(label.classes) > MOST_RATINGS or not has_word(c.name, NAMES.statuses)
        return "" if many else f"which values of {c.name} are positive: {', '.join(label.classes[:8])}?"
    values = distinct_numbers(c)
    gaps = 2 < len(values) <= 6 and any(b - a > 1 for a, b in pairwise(values))  # codes of answers, such as 1, 2 and 9
    is_ordered = rank_of(c.name, (*NAMES.ratings, *NAMES.labels[:3])) is not None
    return _which_values(c) if label.is_binary and gaps and not is_ordered else ""


def _which_values(c: Column) -> str:
    return f"which values of {c.name} are positive: {', '.join(f'{v:g}' for v in distinct_numbers(c))}?"


def candidates(columns: Sequence[Column]) -> list[Column]:
    """Return the columns that may be the label, the likeliest first: states and outcomes by name, yes and no, others.

    Later columns come first among equals: labels are usually at the end.
    """
    free = [c for c in columns if not c.role and c.kind.is_single and not c.is_partition and not c.sql]
    free = [c for c in free if 2 <= c.distinct <= MOST_RATINGS and not c.values.dtype.is_nested()]
    names = (*NAMES.statuses, *NAMES.labels, *NAMES.outcomes, *NAMES.refusals)
    free.reverse()
    return sorted(free, key=lambda c: (not has_word(c.name, names), not are_answers(c), c.distinct > 2))


def names_for_error(columns: Sequence[Column]) -> str:
    """Return the names of columns: all if they are short, otherwise the first and the last ones."""
    names = [c.name for c in columns if c.name != LIST]
    if len(names) > 12 and len(", ".join(names)) > 300:
        names = [*names[:6], "...", *names[-6:]]
    return ", ".join(names)


def _at_an_end(columns: Sequence[Column], two_valued: Sequence[Column]) -> _Choice:
    """Return the last or the first column if it has two values, since labels are usually there.

    Raises:
        NeedsAnswer: neither has two values.
    """
    for place, where in ((-1, "the last column"), (0, "the first column")):
        column = columns[place]
        if column in two_valued:
            doubt = f"it is {where}, and {len(two_valued)} columns have two values"
            family: list[Column] = []  # the columns whose names begin, or end, with the same word, if they are several
            own, others = words(column.name), [c for c in two_valued if c is not column]
            for which in (slice(0, 1), slice(-1, None)) if len(own) > 1 else ():
                same = [c for c in others if words(c.name)[which] == own[which]]
                family = family or (same if len(same) >= FEWEST_ALIKE else [])
            if family:
                doubt += f"; {len(family)} have names like it, may be labels, too, and are no features"
            reason = f"{where} of those with two values (a guess)"
            return _Choice(column, reason, doubt, two_valued, family=tuple(c.name for c in family))
    likely = [c.name for c in candidates(columns) if c in two_valued]
    described = ", ".join(likely[:8])
    if times := [c.name for c in _rare_times(columns)]:
        described += f"; few rows have {', '.join(times[:4])}, and {typed('label', times[-1])} tells those that have"
    hint = f"type {' or '.join(typed('label', name) for name in likely[:4])}, or another"
    raise NeedsAnswer(f"label: {len(two_valued)} of {len(columns)} columns have two values ({described}); {hint}")
