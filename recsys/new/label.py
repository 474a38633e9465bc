"""Choose the label of a sample's rows, and find the columns that give it away."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from recsys.new.column_kinds import Column
from recsys.new.known_names import EVENT_POSITIVES, EVENTS, REFUSALS, has_word, rank_of, words
from recsys.new.statistics import SKEWED, counts_of, mean, skewness

MOST_RATINGS = 21  # different values of a rating, such as 0 to 10 in half steps
MOST_CLASSES = 1000
YES = ("yes", "y", "s", "o", "true", "t", "positive", "1", "1.0", "ja", "j", "oui", "si", "sí", "sim", "да", "是")
NO = ("no", "n", "false", "f", "negative", "0", "0.0", "-1", "nein", "nee", "non", "nao", "não", "нет", "否")
NEGATIONS = {"not", "no", "non", "un", "never"}
UNDONE = {"remove", "removed", "cancel", "cancelled", "un", "undo", "delete", "return", "no", "not"}
MOST_SPELLINGS = 6  # of yes and no in a column


@dataclass
class LabelGuess:
    """The label of a row, as the YAML writes it, and its values in the sample: 0 and 1, a number, or a class.

    column, values: the column, and the label of each row of the sample
    at_least: the smallest positive number, for a label of numbers
    positive: the positive values, for a label of text
    kind, classes: binary | regression | classes, and the classes in order
    log: whether the logarithm of the number is predicted
    reason: why this column, and why this value is positive
    doubt: the question, if this column is not certainly the label
    undecided: the question, if it is not certain which of its values are positive
    alternatives: other columns that may be the label
    family: columns whose names begin or end like that of a label that is a guess; they may be labels as well
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
        settings: dict[str, Any] = {"column": self.column.name}
        if self.at_least is not None:
            settings["at_least"] = int(self.at_least) if self.at_least == int(self.at_least) else self.at_least
        keys = (("positive", self.positive), ("classes", self.classes), ("log", self.log))
        settings |= {"kind": self.kind} if self.kind != "binary" else {}
        return settings | {key: value for key, value in keys if value}

    @property
    def what(self) -> str:
        """A few words about its values."""
        if self.kind == "binary":
            return f"{self.share:.1%} of the rows are positive".replace("%", " %")
        return "a number" if self.kind == "regression" else f"one of {len(self.classes)} classes"


def codes_of(c: Column) -> list[str]:
    """Return the different numbers of a column in order, as text."""
    return [f"{v:g}" for v in distinct_numbers(c)]


def distinct_numbers(c: Column) -> list[float]:
    """Return the different numbers of a column in order; an empty list for text."""
    return [] if c.numbers is None else sorted(c.numbers.drop_nulls().unique().to_list())


def are_answers(c: Column) -> bool:
    """Return True for values that mean yes or no, in some languages."""
    return {str(v).strip().lower() for v in c.values.drop_nulls().unique()} <= {*YES, *NO}


def is_event(c: Column) -> bool:
    """Return True if a column names kinds of events, such as view and purchase."""
    return c.distinct <= MOST_RATINGS and _positive_event(c) is not None


def _positive_event(c: Column) -> str | None:
    """Return the kind of event to predict; a column of a known name may have more words: clickout item."""
    values = {v: words(v) for v in c.values.drop_nulls().cast(pl.String).unique(maintain_order=True).to_list()}
    event = next(
        (v for word in EVENT_POSITIVES for v, event_words in values.items() if "_".join(event_words) == word), None
    )
    if event is not None or rank_of(c.name, EVENTS) is None:
        return event
    return next(
        (
            v
            for word in EVENT_POSITIVES
            for v, event_words in values.items()
            if word in event_words and not UNDONE & {*event_words}
        ),
        None,
    )


def label_of(c: Column) -> LabelGuess | None:
    """Return the label that a column makes; None for a column of one value, of times, of lists or of too many texts."""
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


def spellings_of(c: Column) -> dict[str, list[str]]:
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


def is_one_of(c: Column, positive: Sequence[str]) -> pl.Series:
    """Return 1 for rows with one of the positive values, 0 for other rows, and null for missing values."""
    return c.values.cast(pl.String).str.strip_chars().is_in(positive).cast(pl.Float64)


def _of_text(c: Column) -> LabelGuess | None:
    counts = counts_of(c.values.cast(pl.String).str.strip_chars())
    values, shares = counts["value"].to_list(), (counts["count"] / c.rows).to_list()
    if len(groups := spellings_of(c)) == 2:
        if "yes" in groups:
            return LabelGuess(
                c, is_one_of(c, groups["yes"]), positive=groups["yes"], reason="; several spellings of yes"
            )
        rarer = min(
            groups.values(), key=lambda texts: sum(share for v, share in zip(values, shares, strict=True) if v in texts)
        )
        why = "; the rarer of two values is positive, with and without a dot at its end"
        return LabelGuess(c, is_one_of(c, rarer), positive=rarer, reason=why)
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
    return LabelGuess(c, is_one_of(c, [positive]), positive=[positive], reason=why)
