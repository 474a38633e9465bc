"""Find the columns that, by their names, hold what is known only after the label: other outcomes and their parts."""

from collections.abc import Collection, Sequence

import polars as pl

from recsys.new.column_kinds import Column
from recsys.new.find_files import ROLES
from recsys.new.known_names import NAMES, has_word, plain, rank_of, words
from recsys.new.label import MOST_RATINGS, LabelGuess, are_answers, distinct_numbers, label_of
from recsys.new.leaks import AFTERWARDS, FEWEST, as_second_label, auc_of_means, comparable, implies
from recsys.new.roles import determines
from recsys.new.statistics import mean

UNSURE_RATINGS = ("score", "note", "nota", "vote", "grade", "rate", "star")
SURE_RATINGS = tuple(name for name in NAMES.ratings if name not in UNSURE_RATINGS)
FEWEST_GRADES = 4  # different grades of a rating
MOST_KINDS = 5  # values of an outcome that is counted, such as 0 to 3 comments
PARENTS = ("outcome.", "outcomes.", "result.", "response.", "feedback.", "label.", "labels.")


def outcome_form(name: str) -> str:
    """Return the words of a name without a unit of time."""
    return plain(name).removesuffix("_ms").removesuffix("_seconds").removesuffix("_s")


def known_by_name(
    columns: Sequence[Column], label: LabelGuess, item: Column | None, tested: Collection[str]
) -> dict[str, str]:
    """Return the columns that are known only after the label by their names, and why.

    Args:
        item: the column of the item, None if unknown.
        tested: the columns that a file of test rows has, which are known before.
    """
    free = [c for c in columns if c is not label.column and not c.role]
    over = [c for c in free if has_word(c.name, NAMES.after) or (has_word(c.name, NAMES.reasons) and c.missing > 0.2)]
    reasons: dict[str, str] = {}
    if item is not None and rank_of(label.column.name, NAMES.ratings) is not None:  # a review: its title and its text
        texts = [c for c in free if has_word(c.name, NAMES.written) and words(c.name)[-1:] != ["type"]]  # body type
        texts = [c for c in texts if (c.values.dtype == pl.String or c.kind.is_list) and c.distinct > 1]
        why = f"it differs between rows of one {item.name}, so it may be written with {label.column.name}: {AFTERWARDS}"
        reasons = {c.name: why for c in texts if not determines(item, c)}
    reasons |= _other_outcomes(columns, label, tested)
    return reasons | {c.name: f"its name says that a matter is over: {AFTERWARDS}" for c in over}


def _other_outcomes(columns: Sequence[Column], label: LabelGuess, tested: Collection[str]) -> dict[str, str]:
    """Return the columns that hold what the user did beside the label: clicks, buys, time spent, ratings."""
    free = [c for c in columns if c is not label.column]
    reasons = {c.name: f"beside the label in an object: {AFTERWARDS}" for c in free if c.name.startswith(PARENTS)}
    keys = [c for c in columns if c.role in ("user", "item")]
    free = [c for c in free if not c.role]
    for c in free:
        form, is_number = outcome_form(c.name), c.numbers is not None
        counted = form.removeprefix("n_").removeprefix("num_").removesuffix("_count")
        counts = counted != form and counted.removesuffix("s") in NAMES.outcomes and is_number  # n_clicks and num_likes
        if counts and not any(determines(key, c) for key in keys):
            reasons[c.name] = f"it counts outcomes: {AFTERWARDS}"
            continue
        few = form in NAMES.outcomes and (c.distinct == 2 or (c.distinct <= MOST_KINDS and is_number))
        lasts = is_number and has_word(c.name, NAMES.watched) and has_word(c.name, NAMES.lasting)
        spent = lasts or form in NAMES.spent
        if c.name not in tested and (few or spent):
            reasons[c.name] = f"another outcome of the row: {AFTERWARDS}{as_second_label(c, label)}"
    item = next((c for c in keys if c.role == "item"), None)
    for c in (c for c in free if c.name not in reasons):
        by_name = rank_of(c.name, SURE_RATINGS) is not None or has_word(c.name, NAMES.surveys)
        if (by_name or _is_rating_like(c, label)) and not (item and determines(item, c)):
            reasons[c.name] = f"a rating of the row: {AFTERWARDS}"
    for outcome in [c for c in columns if c.name in reasons and c.distinct == 2]:
        other = label_of(outcome)
        if other is None or not other.is_binary or not mean(other.values):
            continue
        for c in comparable(columns, label):  # the parts of this outcome: the time of a purchase
            if c is not outcome and not c.role and (what := implies(c, other.values)) is not None:
                reasons[c.name] = f"{what} implies {outcome.name}, another outcome: {AFTERWARDS}"
    return reasons


def _is_rating_like(c: Column, label: LabelGuess) -> bool:
    """Return True for numbers on the scale of a label of ratings that go with it, as the parts of a review do."""
    grades = distinct_numbers(label.column)
    if c.numbers is None or c.distinct < FEWEST_GRADES or not FEWEST_GRADES <= len(grades) <= MOST_RATINGS:
        return False
    counted = grades == [*range(len(grades))] and "rating" not in label.reason
    if counted or not {*distinct_numbers(c)} <= {*grades}:
        return False
    both = pl.DataFrame({"x": c.numbers, "y": label.column.numbers}).drop_nulls()
    return both.height >= FEWEST and (both.select(pl.corr("x", "y")).item() or 0) > 0.3


def perhaps_outcomes(columns: Sequence[Column], label: LabelGuess, keys: Sequence[Column]) -> list[str]:
    """Return the names of columns that may be other outcomes, since they are properties of neither user nor item.

    They are columns of yes and no and, beside a rating, columns of a few values that go with it. Names of what is known
    before, such as promotion, and families of columns, such as one-hot codes, are left out.

    Args:
        keys: the columns of the user and the item.
    """
    if not keys or not label.is_binary:
        return []
    free = [c for c in columns if c is not label.column and not c.role and not c.is_partition]
    outcomes = [c for c in free if c.distinct == 2 and are_answers(c)]
    if rank_of(label.column.name, NAMES.ratings) is not None:
        few = [c for c in free if c.kind.is_code and c.distinct <= MOST_KINDS and c.numbers is None]
        few = [c for c in few if c not in outcomes]
        outcomes += [c for c in few if auc_of_means(c.kind.groups(c), label.values.fill_null(0)) > 0.55]
    named = [c for c in outcomes if not c.name.startswith("column_")]  # names in a file without a header say nothing
    heads = [words(c.name)[:1] for c in named]
    parts = [c for c in named if heads.count(words(c.name)[:1]) > 1 or c.name[-1:].isdigit()]  # os_ios and os_android
    outcomes = [c for c in outcomes if not has_word(c.name, NAMES.context) and c not in parts]
    outcomes = [c for c in outcomes if not any(_belongs_to(key, c) for key in keys)]
    return [c.name for c in outcomes] if len(outcomes) <= 3 else []  # more are likely properties


def _belongs_to(key: Column, c: Column) -> bool:
    """Return True if most users (or items) with a positive row have no other rows, or none has several rows."""
    label = label_of(c)
    if label is None:
        return True
    if label.classes:
        return determines(key, c)
    rows = pl.DataFrame({"key": key.values, "y": label.values}).drop_nulls().group_by("key")
    some = rows.agg(pl.len(), pl.col("y").mean()).filter((pl.col("len") > 1) & (pl.col("y") > 0))
    return not some.height or mean(some["y"] < 1) < 0.5


def predictions(columns: Sequence[Column]) -> dict[str, str]:
    """Return the numbers that are another model's predictions, by their names, such as model_score and pctr."""
    names = [c.name for c in columns if not c.role and c.kind.is_number and c.numbers is not None]
    scores = [n for n in names if has_word(n, NAMES.models) and has_word(n, ("score", "scores"))]
    rates = [n for n in names if "p" in words(n) and has_word(n, ("ctr", "cvr", "click", "conversion"))]
    predicted = [n for n in names if n in scores or n in rates or has_word(n, NAMES.predictions)]
    return dict.fromkeys(predicted, f"its name is that of a model's prediction: {AFTERWARDS}")


def names_splits(columns: Sequence[Column]) -> list[Column]:
    """Return the columns whose values are names of splits, such as train and test."""
    few = [c for c in columns if not c.role and c.values.dtype == pl.String and 2 <= c.distinct <= MOST_KINDS]
    known = {word for names in ROLES.values() for word in names} | {"prior"}
    return [c for c in few if {str(v).strip().lower() for v in c.values.drop_nulls().unique()} <= known]
