"""Choose the label of the rows, and say what it is: positive or negative, a number, or one of several classes."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import polars as pl

from recsys.base.errors import UserError, did_you_mean
from recsys.new.column_kinds import MAX_GRADES, Column, counts_of, is_skewed, mean
from recsys.new.known_names import NAMES, has_word, plain, rank_of, words
from recsys.new.roles import determines

MAX_CLASSES = 1000
YES = ("yes", "y", "s", "o", "true", "t", "positive", "1", "1.0", "ja", "j", "oui", "si", "sí", "sim", "да", "是")
NO = ("no", "n", "false", "f", "negative", "0", "0.0", "-1", "nein", "nee", "non", "nao", "não", "нет", "否")
NEGATIONS = {"not", "no", "non", "un", "never", "remove", "removed", "cancel", "cancelled", "undo", "delete", "return"}
LAST_RATINGS = ("overall", "rating", "stars", "ratings")  # the last words of the name of a rating
MAX_NAMED = 50  # values of a text whose name is that of a label
MIN_UNRATED = 0.1  # share of the rows with the rating 0, from which it may stand for no rating


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


@dataclass
class _Choice:
    """A column that is taken for the label because its name or its values say so."""

    column: Column
    reason: str  # why this column
    doubt: str = ""  # why it is not certain; empty if it is
    rivals: Sequence[Column] = ()  # other columns that may be the label instead


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
        if (label := _label_of(c, positive)) is None:
            hint = f", or write a column that says whether {asked} is there" if c.time is not None and c.missing else ""
            why = f"{c.reason or 'it has one value'}, so it cannot be a label"
            raise UserError(f"label={asked}: {why}; name another{hint}")
        label.reason = f"as you asked{label.reason}"
    else:
        choice = _likeliest(columns, retrieval=retrieval, untested=untested)
        if choice is None or (label := _label_of(choice.column, positive)) is None:
            return None
        label.reason = choice.reason + label.reason
        if choice.doubt:
            label.doubt = f"is {choice.column.name} the label? {choice.doubt}"
            label.alternatives = tuple(c.name for c in choice.rivals if c is not choice.column)[:3]
    label.undecided = _undecided(label) if positive == "auto" else ""
    return label


def candidates(columns: Sequence[Column]) -> list[Column]:
    """Return the columns that may be the label, the likeliest first: states and outcomes by name, yes and no, others.

    Later columns come first among equals: labels are usually at the end.
    """
    free = [c for c in columns if not c.role and c.kind.is_single and not c.is_partition]
    free = [c for c in reversed(free) if 2 <= c.distinct <= MAX_GRADES]
    names = (*NAMES.statuses, *NAMES.labels, *NAMES.outcomes, *NAMES.refusals)
    return sorted(free, key=lambda c: (not has_word(c.name, names), not are_answers(c), c.distinct > 2))


def names_for_error(columns: Sequence[Column]) -> str:
    """Return the names of columns; of many, the first and the last ones."""
    names = [c.name for c in columns]
    return ", ".join(names if len(names) <= 12 else [*names[:6], "...", *names[-6:]])


def _label_of(c: Column, positive: Sequence[str] | str | None) -> LabelGuess | None:
    """Return the column as a label, whose positive values are those that are given, if they are."""
    if isinstance(positive, str) or positive is None:
        return label_of(c)
    texts = set(c.texts.str.strip_chars().to_list())
    if unknown := next((v for v in positive if v not in texts), None):
        raise UserError(f"positive={unknown}: {c.name} has no such value{did_you_mean(unknown, texts)}")
    return of_values(c, positive, "; positive as you asked")


def _likeliest(columns: Sequence[Column], *, retrieval: bool, untested: Collection[str]) -> _Choice | None:
    """Return the column that is likeliest the label: signs are looked for in order, the surest first."""
    free = [c for c in columns if not c.role and c.kind.is_single]
    if (choice := _by_name(free, retrieval=retrieval)) is not None:
        return choice
    if lacking := [c for c in free if c.name in untested]:  # by its name, with two values, or the last
        lacking.reverse()
        best = _best_named(lacking, (*NAMES.labels, *NAMES.amounts, *NAMES.ratings, *NAMES.perhaps_amounts))
        return _Choice(best or min(lacking, key=lambda c: c.distinct > 2), "the test file lacks it")
    numbers = [c for c in free if c.numbers is not None and c.distinct > MAX_GRADES]
    if not retrieval and (amount := _best_named(numbers, NAMES.amounts)) is not None:
        return _Choice(amount, "its name says so")
    few = [c for c in free if 1 < c.distinct <= MAX_GRADES]
    rating = _best_named(few, NAMES.ratings) or _best_named(few, LAST_RATINGS, last=True)
    if (rating := rating or _best_named(numbers, LAST_RATINGS)) is not None:
        return _Choice(rating, "a rating, by its name")  # such as stars or review_overall
    if (event := _best_named(few, NAMES.events)) is not None and (is_event(event) or event.numbers is not None):
        doubt = f"its values are {', '.join(event.examples(7))}" if event.distinct > 2 else ""
        return _Choice(event, "kinds of events, by its name", doubt)
    two_valued = [c for c in free if _has_two_values(c) and not has_word(c.name, NAMES.weights) and not c.is_partition]
    if retrieval:  # outcomes differ between rows of a user and of an item
        keys = [c for c in columns if c.role in ("user", "item")]
        free = [c for c in two_valued if are_answers(c) or c.name.startswith("column_")]
        two_valued = [c for c in free if not any(determines(key, c) for key in keys)]
        two_valued += [c for c in few if has_word(c.name, NAMES.statuses) and c.numbers is None and c.distinct > 2]
        doubt = "it differs between rows of one user and of one item, and its name is no label's"
        return _Choice(two_valued[0], "it differs between rows (a guess)", doubt, two_valued) if two_valued else None
    if (amount := _best_named(numbers, NAMES.perhaps_amounts)) is not None and not two_valued:
        return _Choice(amount, "its name may say so", "its name may also be that of a feature", candidates(columns))
    return _without_a_name(columns, two_valued) if two_valued else None


def _has_two_values(c: Column) -> bool:
    return c.distinct == 2 or len(spellings_of(c)) == 2


def _by_name(free: Sequence[Column], *, retrieval: bool) -> _Choice | None:
    """Return the column with the name of a label, such as clicked; of outcome.clicked, the last part counts.

    It has few values, or a strong name. Other outcomes make it a question, unless it is a click.
    """
    named: list[tuple[bool, int, int]] = []
    for i, c in enumerate(free):
        is_text = c.numbers is None
        few = c.distinct <= (MAX_NAMED if is_text else MAX_GRADES) and not (retrieval and is_text)
        can_be = _has_two_values(c) or few or rank_of(c.name, NAMES.labels[:3]) is not None
        if can_be and (rank := rank_of(c.name.rpartition(".")[2], NAMES.labels)) is not None:
            named.append((c.distinct > 2, rank, i))
    if not named:
        return None
    _, rank, place = min(named)
    column = free[place]
    outcomes = [c for c in free if c is not column and c.distinct == 2 and plain(c.name) in NAMES.outcomes]
    is_click = rank <= NAMES.labels.index("clk")
    doubt = "" if is_click or len(outcomes) < 2 else f"{', '.join(c.name for c in outcomes[:4])} are outcomes, too"
    return _Choice(column, "its name says so", doubt, outcomes)


def _best_named(columns: Sequence[Column], among: tuple[str, ...], *, last: bool = False) -> Column | None:
    """Return the column with the first of these names, or with one as its last word; None if no column has one."""
    names = [words(c.name)[-1] if last and words(c.name) else c.name for c in columns]
    ranked = [(rank, i) for i, name in enumerate(names) if (rank := rank_of(name, among)) is not None]
    return columns[min(ranked)[1]] if ranked else None


def _without_a_name(columns: Sequence[Column], two_valued: Sequence[Column]) -> _Choice:
    """Return the last, the first or any column of two values, since labels are usually at an end.

    It is certain only if it alone has two values, and holds yes and no at an end of a file without a header.
    """
    column = next((c for c in (columns[-1], columns[0]) if c in two_valued), candidates(two_valued)[0])
    unnamed = all(c.name.startswith(("column_", "field_")) for c in two_valued)
    reason = "the only column with two values" if len(two_valued) == 1 else "it has two values (a guess)"
    if len(two_valued) == 1 and unnamed and are_answers(column) and column in (columns[0], columns[-1]):
        return _Choice(column, reason)
    doubt = "no name says so; " + (reason if len(two_valued) == 1 else f"{len(two_valued)} columns have two values")
    return _Choice(column, reason, doubt, [*(c for c in two_valued if c is not column), *candidates(columns)])


def _undecided(label: LabelGuess) -> str:
    """Return the question which values of a label are positive, if neither its name nor its values tell."""
    c, values = label.column, distinct_numbers(label.column)
    if label.classes:
        if len(label.classes) > MAX_NAMED:
            what = "are they items, whose next one retrieval models predict?"
            return f"{c.name} has {len(label.classes)} classes: {what}"
        is_state = len(label.classes) <= MAX_GRADES and has_word(c.name, NAMES.statuses)
        return f"which values of {c.name} are positive: {', '.join(label.classes[:8])}?" if is_state else ""
    is_rating = rank_of(c.name, (*NAMES.ratings, *NAMES.labels[:3])) is not None
    if len(values) > 2 and is_rating and c.numbers is not None:
        zeros = mean(c.numbers == 0) if values[0] == 0 and values[1] >= 1 and values[-1] >= 5 else 0
        odd = 0.0 if zeros >= MIN_UNRATED else values[-1] if values[-1] > 5 * max(map(abs, values[:-1])) else None
        if odd is not None:
            hint = f"if so, write source.column_null_values: {{{c.name}: ['{odd:g}']}}"
            return f"does {odd:g} in {c.name} stand for no rating? {hint}"
    gaps = len(values) <= 6 and any(b - a > 1 for a, b in pairwise(values))  # such as 1, 2 and 9
    is_code = gaps or rank_of(c.name, NAMES.events) is not None
    if label.is_binary and len(values) > 2 and not is_rating and is_code:
        return f"which values of {c.name} are positive: {', '.join(f'{v:g}' for v in values)}?"
    return ""
