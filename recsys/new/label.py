"""What a column is as the label of the rows: positive or negative, a number, or one of several classes."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from recsys.new.column_kinds import Column, counts_of, is_skewed, mean
from recsys.new.known_names import NAMES, has_word, rank_of, words

MAX_GRADES = 21  # different values of a rating, such as 0 to 10 in half steps
MAX_CLASSES = 1000
YES = ("yes", "y", "s", "o", "true", "t", "positive", "1", "1.0", "ja", "j", "oui", "si", "sí", "sim", "да", "是")
NO = ("no", "n", "false", "f", "negative", "0", "0.0", "-1", "nein", "nee", "non", "nao", "não", "нет", "否")
NEGATIONS = {"not", "no", "non", "un", "never", "remove", "removed", "cancel", "cancelled", "undo", "delete", "return"}


@dataclass(kw_only=True)
class LabelGuess:
    """The label of a row, as the YAML writes it, and its values in the sample."""

    column: Column
    values: pl.Series  # 0 and 1, a number, or the number of a class
    settings: dict[str, Any] = field(default_factory=dict)  # the keys of `label:` but the column
    reason: str = ""  # why this column, and why this value is positive
    doubt: str = ""  # the question, if this column is not certainly the label
    undecided: str = ""  # the question, if it is not certain which of its values are positive
    alternatives: tuple[str, ...] = ()  # other columns that may be the label

    @property
    def is_binary(self) -> bool:
        """Whether rows are positive or negative."""
        return "kind" not in self.settings

    @property
    def classes(self) -> list[str]:
        """The values of the column in order, if each is a class."""
        return self.settings.get("classes", [])  # type: ignore[no-any-return]

    @property
    def what(self) -> str:
        """A few words about its values."""
        if not self.is_binary:
            return f"one of {len(self.classes)} classes" if self.classes else "a number"
        return f"{mean(self.values):.1%} of the rows are positive".replace("%", " %")


def distinct_numbers(c: Column) -> list[float]:
    """Return the different numbers of a column in order; an empty list for text."""
    return [] if c.numbers is None else sorted(c.numbers.drop_nulls().unique().to_list())


def are_answers(c: Column) -> bool:
    """Return True for values that mean yes or no, in some languages."""
    return {str(v).strip().lower() for v in c.values.drop_nulls().unique()} <= {*YES, *NO}


def is_event(c: Column) -> bool:
    """Return True if a column names kinds of events, such as view and purchase."""
    return c.distinct <= MAX_GRADES and _positive_event(c) is not None


def label_of(c: Column) -> LabelGuess | None:
    """Return the label that a column makes; None for a column of one value, of times, of lists or of too many texts."""
    if c.values.dtype.is_nested() or c.distinct < 2 or c.kind.says_nothing or c.time is not None:
        return None
    if c.values.dtype == pl.Boolean:
        return LabelGuess(column=c, values=c.values.cast(pl.Float64))
    if c.numbers is None:
        return _of_text(c)
    distinct = distinct_numbers(c)
    if distinct == [0.0, 1.0]:
        return LabelGuess(column=c, values=c.numbers)
    if len(distinct) > MAX_GRADES:
        log = {"log": True} if distinct[0] >= 0 and is_skewed(c.numbers) else {}
        why = "; its many values are predicted as numbers" + (
            ", by their logarithm since they are skewed" if log else ""
        )
        return LabelGuess(column=c, values=c.numbers, settings={"kind": "regression"} | log, reason=why)
    x = c.numbers.drop_nulls()
    if len(distinct) == 2:
        limit, why = distinct[1], "; the larger of two values is positive"
    else:  # 4 of ratings up to 5, otherwise the smallest value that at most half of the rows reach
        is_rating = distinct[-1] == 5 and distinct[0] >= 0 and 0.02 < mean(x >= 4) < 0.98
        limit = 4.0 if is_rating else next((v for v in distinct if mean(x >= v) <= 0.5), distinct[-1])
        why = f"; {limit:g} or more of {distinct[0]:g} to {distinct[-1]:g} is positive (a guess)"
    settings = {"at_least": int(limit) if limit == int(limit) else limit}
    return LabelGuess(column=c, values=(c.numbers >= limit).cast(pl.Float64), settings=settings, reason=why)


def spellings_of(c: Column) -> dict[str, list[str]]:
    """Return the values by what they mean: yes and no (true and 1), or text without a dot at its end, as in adult.test.

    Return nothing if this joins no values.
    """
    if c.values.dtype != pl.String or not 2 < c.distinct <= 6:
        return {}
    texts = sorted(set(c.values.drop_nulls().str.strip_chars().to_list()))
    answers = {"yes": [t for t in texts if t.lower() in YES], "no": [t for t in texts if t.lower() in NO]}
    if all(answers.values()) and sum(map(len, answers.values())) == len(texts):
        return answers
    groups: dict[str, list[str]] = {}
    for text in texts:
        groups.setdefault(text.removesuffix("."), []).append(text)
    return groups if c.numbers is None and len(groups) == 2 else {}


def of_values(c: Column, positive: Sequence[str], reason: str) -> LabelGuess:
    """Return the label that is 1 for rows with one of the positive values, and null for missing values."""
    values = c.values.cast(pl.String).str.strip_chars().is_in(positive).cast(pl.Float64)
    return LabelGuess(column=c, values=values, settings={"positive": list(positive)}, reason=reason)


def _positive_event(c: Column) -> str | None:
    """Return the kind of event to predict; a column of a known name may have more words: clickout item."""
    values = {v: words(v) for v in c.values.drop_nulls().cast(pl.String).unique(maintain_order=True).to_list()}
    pairs = [(word, v, event) for word in NAMES.event_positives for v, event in values.items()]
    whole = (v for word, v, event in pairs if "_".join(event) == word)
    if (event := next(whole, None)) is not None or rank_of(c.name, NAMES.events) is None:
        return event
    return next((v for word, v, event in pairs if word in event and not NEGATIONS & {*event}), None)


def _of_text(c: Column) -> LabelGuess | None:
    texts = c.values.cast(pl.String).str.strip_chars()
    counts = dict(counts_of(texts).iter_rows())
    values = list(counts)
    if groups := spellings_of(c):
        rarer = min(groups.values(), key=lambda spellings: sum(counts.get(v, 0) for v in spellings))
        return of_values(c, groups.get("yes", rarer), "; several spellings of two values")
    if len(values) == 2:
        yes = [v for v in values if v.lower() in YES] if are_answers(c) else []
        if yes and has_word(c.name, NAMES.refusals) and not NEGATIONS & {*words(c.name)}:
            no = [v for v in values if v != yes[0]]
            return of_values(c, no, "; yes means that the user did not want the item")
        # yes by its meaning, however frequent
        return of_values(c, yes[:1] or values[-1:], "" if yes else "; the rarer of two values is positive")
    if is_event(c):
        why = f"; one of {len(values)} values is positive (a guess): " + ", ".join(values[:6])
        return of_values(c, [(_positive_event(c) or "").strip()], why)
    if len(values) > MAX_CLASSES:
        return None
    numbers = texts.replace_strict(pl.Series(values), range(len(values)), default=None).cast(pl.Float64)
    why = "; the values of the sample are its classes"
    return LabelGuess(column=c, values=numbers, settings={"kind": "classes", "classes": values}, reason=why)
