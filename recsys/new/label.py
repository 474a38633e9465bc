"""Choose the label of a sample's rows, and find the columns that give it away."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import polars as pl

from recsys.data.raw.blocks import LIST
from recsys.errors import NeedsAnswer, UserError, did_you_mean
from recsys.new.column_kinds import Column
from recsys.new.known_names import (
    AMOUNTS,
    EVENT_POSITIVES,
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
from recsys.new.questions import typed
from recsys.new.statistics import SKEWED, mean, skewness

MOST_RATINGS = 21  # different values of a rating, such as 0 to 10 in half steps
CERTAIN_RATINGS = ("rating", "ratings", "stars", "star_rating", "book_rating")  # also with many values
FEWEST_THAT_DIFFER = 0.1  # share of users, and of items, whose rows have both values of a label
MOST_CLASSES = 1000
MOST_NAMED_CLASSES = 50  # different texts under the name of a label
MOST_LETTERS = 300  # of the names of columns in an error
YES = ("yes", "y", "s", "o", "true", "t", "positive", "1", "1.0", "ja", "j", "oui", "si", "sí", "sim", "да", "是")
NO = ("no", "n", "false", "f", "negative", "0", "0.0", "-1", "nein", "nee", "non", "nao", "não", "нет", "否")
NEGATIONS = {"not", "no", "non", "un", "never"}
UNDONE = {"remove", "removed", "cancel", "cancelled", "un", "undo", "delete", "return", "no", "not"}
FEWEST_ALIKE = 2
MOST_TIMES = 0.5  # share of rows with a time that may be that of an outcome
LAST_RATINGS = ("overall", "rating", "stars", "ratings")  # the last words of the name of a rating
MOST_CODES = 6  # different numbers that may be codes of answers, such as 1, 2 and 9
MOST_SPELLINGS = 6  # of yes and no in a column


@dataclass
class LabelGuess:
    """The label of a row, as the YAML writes it, and its values in the sample: 0 and 1, a number, or a class.

    reason: why this column, and why this value is positive
    doubt: the question, if this column is not certainly the label
    undecided: the question, if it is not certain which of its values are positive
    alternatives: other columns that may be the label
    family: columns whose names begin or end like that of a label that is a guess; they may be labels, too
    """

    column: Column
    values: pl.Series
    at_least: float | None = None
    positive: list[str] = field(default_factory=list)
    kind: str = "binary"
    classes: list[str] = field(default_factory=list)
    log: bool = False
    reason: str = ""
    doubt: str = ""
    undecided: str = ""
    alternatives: tuple[str, ...] = ()
    family: tuple[str, ...] = ()

    @property
    def share(self) -> float:
        """The share of positive rows."""
        return mean(self.values)

    @property
    def settings(self) -> dict[str, Any]:
        """The keys of `label:`."""
        found: dict[str, Any] = {"column": self.column.name}
        if self.at_least is not None:
            found["at_least"] = int(self.at_least) if self.at_least == int(self.at_least) else self.at_least
        keys = (("positive", self.positive), ("classes", self.classes), ("log", self.log))
        found |= {"kind": self.kind} if self.kind != "binary" else {}
        return found | {key: value for key, value in keys if value}

    @property
    def what(self) -> str:
        """A few words about its values."""
        if self.kind == "binary":
            return f"{self.share:.1%} of the rows are positive".replace("%", " %")
        return "a number" if self.kind == "regression" else f"one of {len(self.classes)} classes"


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
        found = next((c for c in columns if c.name == asked), None)
        if found is None:
            raise UserError(f"label={asked}: no such column{did_you_mean(asked, [c.name for c in columns])}")
        made = label_of(found) if positive in ("auto", None) else _of_values(found, positive or ())
        if made is None:
            why = f"{found.reason or 'it has one value'}{_derived(found)}"
            raise UserError(f"label={asked}: {why}, so it cannot be a label; name another")
        made.reason = f"as you asked{made.reason}"
        made.undecided = _undecided(made) if positive == "auto" else ""
        return made
    free = [c for c in columns if not c.role and c.kind in ("category", "number", "id")]
    leaf = {c.name: c.name.rpartition(".")[2] for c in free}  # of outcome.clicked: clicked
    named = [
        (rank, c)
        for c in free
        if (rank := rank_of(leaf[c.name], LABELS)) is not None and _can_be(c, retrieval=retrieval)
    ]
    if named:
        rank, best = min(named, key=lambda pair: (pair[1].distinct > 2, pair[0]))
        others = [c for c in free if c is not best and c.distinct == 2 and plain(c.name) in OUTCOMES]
        made = _with_reason(best, "its name says so")
        if rank <= LABELS.index("clk") or len(others) < FEWEST_ALIKE:
            return made
        return _doubted(made, f"{', '.join(c.name for c in others[:4])} are outcomes, too", others)
    if lacking := [c for c in free if c.name in untested]:
        return _with_reason(_likeliest(lacking), "the test file lacks it")
    if not retrieval and (amount := _named_amount(free, AMOUNTS)) is not None:
        return _with_reason(amount, "its name says so")
    events = [c for c in free if c.distinct > 2 and rank_of(c.name, EVENTS) is not None and is_event(c)]
    two = [c for c in free if (c.distinct == 2 or len(_spellings(c)) == 2) and not has_word(c.name, WEIGHTS)]
    two = [c for c in two if not c.is_partition]
    unnamed = all(
        c.name.startswith(("column_", "field_")) for c in two
    )  # a file without a header: no name says what it is
    has_rating = any(rank_of(c.name, RATINGS) is not None and 2 < c.distinct <= MOST_RATINGS for c in free)
    if len(two) == 1 and not has_rating and not events and (unnamed or not retrieval):
        only = _with_reason(two[0], "the only column with two values")
        unnamed = unnamed and are_answers(two[0])
        at_an_end = two[0] is columns[0] or two[0] is columns[-1]
        later = [c for c in columns if c.kind == "time" and c.missing > 1 - MOST_TIMES]
        others = [*later, *(c for c in candidates(columns) if c is not two[0])]
        doubt = "it alone has two values, and its name is no label's"
        return only if unnamed and at_an_end else _doubted(only, doubt, others)
    for names, why in ((RATINGS, "a rating"), (EVENTS, "kinds of events")):
        few = [c for c in free if 1 < c.distinct <= MOST_RATINGS]
        rated = [(rank, c) for c in few if (rank := rank_of(c.name, names)) is not None]
        if not rated and why == "a rating":  # review_overall
            rated = [(rank, c) for c in few if (rank := rank_of(words(c.name)[-1], LAST_RATINGS)) is not None]
        first = min(rated, key=lambda pair: pair[0])[1] if rated else None
        if first is not None and (why == "a rating" or is_event(first)):
            made = _with_reason(first, f"{why}, by its name")
            if why == "a rating" or made is None or len(made.positive) != 1 or first.distinct == 2:
                return made
            rest = ", ".join(v for v in first.examples(7) if v not in made.positive)
            return _doubted(made, f"it would tell {made.positive[0]} from other kinds of events: {rest}")
        if first is not None and retrieval and first.numbers is not None and first.is_whole:
            why = "its numbers are kinds of events, and nothing says which ones count"
            made = _with_reason(first, why)
            if made is not None:
                made.undecided = _which_values(first)
            return _doubted(made, why)
    if (rating := _named_amount(free, CERTAIN_RATINGS)) is not None:
        return _with_reason(rating, "a rating, by its name")
    answers = [c for c in two if _differs(c, columns)] if retrieval else []
    if len(answers) == 1:
        why = "the only column of yes and no that differs between rows of a user or an item"
        return _doubted(_with_reason(answers[0], why), f"it is {why}")
    if answers:
        why = f"{', '.join(c.name for c in answers)} hold yes and no that differ between rows of a user or an item"
        return _doubted(_with_reason(answers[0], "the first column of yes and no"), why, answers)
    if retrieval:
        states = [
            c for c in free if has_word(c.name, STATUSES) and 2 < c.distinct <= MOST_RATINGS and c.numbers is None
        ]
        why = f"its values are states: {', '.join(states[0].examples(4))}" if states else ""
        return _doubted(_with_reason(states[0], why), why) if states else None
    if (amount := _named_amount(free, PERHAPS_AMOUNTS)) is not None:
        return _doubted(_with_reason(amount, "its name may say so"), "its name may also be that of a feature", two)
    return _at_an_end(columns, two) if two else None


def _of_values(c: Column, positive: Sequence[str]) -> LabelGuess:
    """Return the label whose positive values the user names. Raises UserError for one that the sample lacks."""
    texts = set(c.values.drop_nulls().cast(pl.String).str.strip_chars().unique().to_list())
    if unknown := next((v for v in positive if v not in texts), None):
        raise UserError(f"positive={unknown}: {c.name} has no such value{did_you_mean(unknown, texts)}")
    return LabelGuess(c, _is_one_of(c, positive), positive=list(positive), reason="; positive as you asked")


def _undecided(label: LabelGuess) -> str:
    """Return the question which values of a label are positive, if neither its name nor its values tell."""
    c = label.column
    if label.kind == "classes":
        if len(label.classes) > MOST_RATINGS or not has_word(c.name, STATUSES):
            return ""
        return f"which values of {c.name} are positive: {', '.join(label.classes[:8])}?"
    values = _numbers_of(c)
    gaps = 2 < len(values) <= MOST_CODES and any(b - a > 1 for a, b in pairwise(values))
    if label.at_least is None or not gaps or rank_of(c.name, (*RATINGS, *LABELS[:3])) is not None:
        return ""
    return _which_values(c)


def _which_values(c: Column) -> str:
    return f"which values of {c.name} are positive: {', '.join(codes_of(c))}?"


def codes_of(c: Column) -> list[str]:
    """Return the different numbers of a column in order, as text."""
    return [f"{v:g}" for v in _numbers_of(c)]


def _numbers_of(c: Column) -> list[float]:
    return [] if c.numbers is None else sorted(c.numbers.drop_nulls().unique().to_list())


def candidates(columns: Sequence[Column]) -> list[Column]:
    """Return the columns that may be the label, the likeliest first: states and outcomes by name, yes and no, others.

    Later columns come first among equals: labels are usually at the end.
    """
    free = [c for c in columns if not c.role and c.kind in ("category", "number", "id") and not c.is_partition]
    free = [c for c in free if 2 <= c.distinct <= MOST_RATINGS and not c.sql and not c.values.dtype.is_nested()]
    named = {c.name: not has_word(c.name, (*STATUSES, *LABELS, *OUTCOMES, *REFUSALS)) for c in free}
    free.reverse()
    return sorted(free, key=lambda c: (named[c.name], not are_answers(c), c.distinct > 2))


def _doubted(label: LabelGuess | None, why: str, others: Sequence[Column] = ()) -> LabelGuess | None:
    """Return a label that is a guess, with the question."""
    if label is not None:
        label.doubt = f"is {label.column.name} the label? {why}"
        own = set(words(label.column.name))
        near = sorted((c for c in others if c is not label.column), key=lambda c: -len(own & set(words(c.name))))
        label.alternatives = tuple(c.name for c in near)[:3]
    return label


def _derived(c: Column) -> str:
    return f" (a derived column may: {c.sql.format(c.name)})" if c.sql else ""


def are_answers(c: Column) -> bool:
    """Return True for values that mean yes or no, in some languages."""
    return {str(v).strip().lower() for v in c.values.drop_nulls().unique()} <= {*YES, *NO}


def _differs(c: Column, columns: Sequence[Column]) -> bool:
    """Return True for yes and no that are neither properties of the user nor of the item."""
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
    """Return the column of many numbers with one of these names, None if there is none."""
    ranked = [
        (rank, i)
        for i, c in enumerate(columns)
        if (rank := rank_of(c.name, among)) is not None and c.numbers is not None and c.distinct > MOST_RATINGS
    ]
    return columns[min(ranked)[1]] if ranked else None


def _likeliest(lacking: Sequence[Column]) -> Column:
    """Return which of the columns that a test file lacks is the label: by its name, of two values, or the last."""
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
    two = c.distinct == 2 or len(_spellings(c)) == 2
    return two or (few and not (retrieval and c.numbers is None)) or rank_of(c.name, LABELS[:3]) is not None


def is_event(c: Column) -> bool:
    """Return True if a column names kinds of events, such as view and purchase."""
    return c.distinct <= MOST_RATINGS and _positive_event(c) is not None


def _positive_event(c: Column) -> str | None:
    """Return the kind of event to predict; a column of a known name may have more words: clickout item."""
    values = {v: words(v) for v in c.values.drop_nulls().cast(pl.String).unique(maintain_order=True).to_list()}
    found = next((v for word in EVENT_POSITIVES for v, own in values.items() if "_".join(own) == word), None)
    if found is not None or rank_of(c.name, EVENTS) is None:
        return found
    return next(
        (v for word in EVENT_POSITIVES for v, own in values.items() if word in own and not UNDONE & {*own}), None
    )


def _at_an_end(columns: Sequence[Column], two: Sequence[Column]) -> LabelGuess | None:
    """Return the last or first column if it has two values; labels are usually there."""
    names = [c.name for c in columns]
    for place, where in ((-1, "the last column"), (0, "the first column")):
        if columns[place] in two:
            why = f"it is {where}, and {len(two)} columns have two values"
            made = _with_reason(columns[place], f"{where} of those with two values (a guess)")
            if made is not None and (family := _family(columns[place], two)):
                made.family = tuple(c.name for c in family)
                why += f"; {len(family)} have names like it, may be labels, too, and are no features"
            return _doubted(made, why, two)
    likely = [c for c in candidates(columns) if c in two]
    near = ", ".join(c.name for c in likely[:8])
    if times := [c.name for c in columns if c.kind == "time" and c.missing > 1 - MOST_TIMES]:
        near += f"; few rows have {', '.join(times[:4])}, and {typed('label', times[-1])} tells those that have"
    raise NeedsAnswer(
        f"label: {len(two)} of {len(names)} columns have two values ({near}); "
        f"type {' or '.join(typed('label', c.name) for c in likely[:4])}, or another"
    )


def _family(c: Column, two: Sequence[Column]) -> list[Column]:
    """Return the other columns whose names begin, or end, with the same word, if they are several."""
    for place in (0, -1):
        same = [o for o in two if o is not c and words(o.name)[place:][:1] == words(c.name)[place:][:1]]
        if len(words(c.name)) > 1 and len(same) >= FEWEST_ALIKE:
            return same
    return []


def _with_reason(c: Column, why: str) -> LabelGuess | None:
    made = label_of(c)
    if made is not None:
        made.reason, made.undecided = why + made.reason, _undecided(made)
    return made


def label_of(c: Column) -> LabelGuess | None:
    """Return the label that a column makes; None if it has one value, or values that no threshold divides."""
    if c.values.dtype.is_nested() or c.distinct < 2 or c.kind in ("constant", "empty", "time") or c.sql:
        return None
    if c.values.dtype == pl.Boolean:
        return LabelGuess(c, c.values.cast(pl.Float64))
    if c.numbers is None:
        return _of_text(c)
    distinct = sorted(c.numbers.drop_nulls().unique().to_list())
    if distinct == [0.0, 1.0]:
        return LabelGuess(c, c.numbers)
    if len(distinct) == 2:
        return LabelGuess(
            c,
            (c.numbers >= distinct[1]).cast(pl.Float64),
            at_least=distinct[1],
            reason="; the larger of two values is positive",
        )
    if len(distinct) > MOST_RATINGS:
        log = distinct[0] >= 0 and skewness(c.numbers) > SKEWED
        why = "; its many values are predicted as numbers" + (
            ", by their logarithm since they are skewed" if log else ""
        )
        return LabelGuess(c, c.numbers, kind="regression", log=log, reason=why)
    limit = _threshold(c.numbers.drop_nulls(), distinct)
    values = (c.numbers >= limit).cast(pl.Float64)
    why = f"; {limit:g} or more of {distinct[0]:g} to {distinct[-1]:g} is positive (a guess)"
    return LabelGuess(c, values, at_least=limit, reason=why)


def _threshold(x: pl.Series, distinct: Sequence[float]) -> float:
    """Return 4 of ratings up to 5; otherwise the smallest value that at most half of the rows reach."""
    if distinct[-1] == 5 and distinct[0] >= 0 and 0.02 < mean(x >= 4) < 0.98:
        return 4.0
    return next((v for v in distinct if mean(x >= v) <= 0.5), distinct[-1])


def _spellings(c: Column) -> dict[str, list[str]]:
    """Return the values by what they mean: yes and no (true and 1), or text without a dot at its end, as in adult.test.

    Return nothing if this joins no values.
    """
    if c.values.dtype == pl.String and 2 < c.distinct <= MOST_SPELLINGS:
        texts = sorted(set(c.values.drop_nulls().str.strip_chars().to_list()))
        answers = {"yes": [t for t in texts if t.lower() in YES], "no": [t for t in texts if t.lower() in NO]}
        if all(answers.values()) and sum(map(len, answers.values())) == len(texts):
            return answers
    if c.values.dtype != pl.String or c.numbers is not None or not 2 < c.distinct <= 4:
        return {}
    groups: dict[str, list[str]] = {}
    for v in sorted(set(c.values.drop_nulls().str.strip_chars().to_list())):
        groups.setdefault(v.removesuffix("."), []).append(v)
    return groups if len(groups) < c.distinct else {}


def _is_one_of(c: Column, positive: Sequence[str]) -> pl.Series:
    return c.values.cast(pl.String).str.strip_chars().is_in(positive).cast(pl.Float64)


def _of_text(c: Column) -> LabelGuess | None:
    counts = c.values.drop_nulls().cast(pl.String).str.strip_chars().value_counts(sort=True)
    values, shares = counts[c.name].to_list(), (counts["count"] / c.rows).to_list()
    if len(groups := _spellings(c)) == 2:
        if "yes" in groups:
            return LabelGuess(
                c, _is_one_of(c, groups["yes"]), positive=groups["yes"], reason="; several spellings of yes"
            )
        rarer = min(
            groups.values(), key=lambda texts: sum(share for v, share in zip(values, shares, strict=True) if v in texts)
        )
        why = "; the rarer of two values is positive, with and without a dot at its end"
        return LabelGuess(c, _is_one_of(c, rarer), positive=rarer, reason=why)
    if len(values) == 2:
        positive, why = values[-1], "; the rarer of two values is positive"
        yes = [v for v in values if v.lower() in YES] if are_answers(c) else []
        if yes:  # by its meaning, however frequent
            positive, why = yes[0], ""
        if yes and has_word(c.name, REFUSALS) and not NEGATIONS & {*words(c.name)}:
            positive, why = next(v for v in values if v != yes[0]), "; yes means that the user did not want the item"
    elif is_event(c):
        positive = (_positive_event(c) or "").strip()
        why = f"; one of {len(values)} values is positive (a guess): " + ", ".join(values[:6])
    elif len(values) <= MOST_CLASSES:
        classes = pl.Series(values)
        numbers = c.values.cast(pl.String).str.strip_chars().replace_strict(classes, range(len(values)), default=None)
        why = "; the values of the sample are its classes"
        return LabelGuess(c, numbers.cast(pl.Float64), kind="classes", classes=values, reason=why)
    else:
        return None
    return LabelGuess(c, _is_one_of(c, [positive]), positive=[positive], reason=why)
