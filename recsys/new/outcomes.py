"""Find the columns that, by their names, hold what is known only after the label: other outcomes and their parts."""

from collections.abc import Collection, Sequence

import polars as pl

from recsys.new.column_kinds import Column
from recsys.new.copies import determines
from recsys.new.find_files import ROLES
from recsys.new.known_names import (
    AFTER,
    CONTEXT,
    LASTING,
    MODELS,
    OUTCOMES,
    PREDICTIONS,
    RATINGS,
    REASONS,
    SPENT,
    SURVEYS,
    WATCHED,
    has_word,
    plain,
    rank_of,
    words,
)
from recsys.new.label import LabelGuess, are_answers, label_of
from recsys.new.leaks import (
    AFTERWARDS,
    FEWEST,
    MOST_KINDS,
    as_codes,
    as_second_label,
    auc_of_means,
    comparable,
    implies,
)
from recsys.new.statistics import mean

SURE_RATINGS = tuple(name for name in RATINGS if name not in ("score", "note", "nota", "vote", "grade", "rate", "star"))
FEWEST_GRADES, MOST_GRADES = 4, 21  # different grades of a rating
GOES_ALONG = 0.3  # correlation of the grades of one review
GOES_WITH = 0.55  # AUC of the mean rating by a column's values, from which it may be written with the rating
FEW_REASONS = 0.2  # share of rows without a reason
MOST_OUTCOMES = 3  # columns of yes and no; more of them are likely properties
MIXED = 0.5  # share of users with a yes who also have a no, from which the column is not a property of users
WRITTEN = (
    *("title", "text", "review", "summary", "comment", "headline", "body", "yorum", "kommentar", "commentaire"),
    *("image", "images", "photo", "photos", "picture", "pictures", "video", "videos"),
)


def outcome_form(name: str) -> str:
    """Return the words of a name without a unit of time."""
    return plain(name).removesuffix("_ms").removesuffix("_seconds").removesuffix("_s")


def other_outcomes(columns: Sequence[Column], label: LabelGuess, tested: Collection[str] = ()) -> dict[str, str]:
    """Return the columns that hold what the user did beside the label, by their names: clicks, buys, time spent.

    tested: the columns that a file of test rows has, which are known before
    """
    parents = tuple(f"{name}." for name in ("outcome", "outcomes", "result", "response", "feedback", "label", "labels"))
    reasons = {c.name: f"beside the label in an object: {AFTERWARDS}" for c in columns if c.name.startswith(parents)}
    reasons.pop(label.column.name, None)
    keys = [c for c in columns if c.role in ("user", "item")]
    for c in columns:
        form = outcome_form(c.name)
        if c is not label.column and not c.role and _counts_outcomes(form, c, keys):
            reasons[c.name] = f"it counts outcomes: {AFTERWARDS}"
            continue
        answers = c.distinct == 2 or (c.distinct <= MOST_KINDS and c.numbers is not None)
        spent = form in SPENT or (c.numbers is not None and has_word(c.name, WATCHED) and has_word(c.name, LASTING))
        if c is label.column or c.role or c.name in tested or not ((form in OUTCOMES and answers) or spent):
            continue
        reasons[c.name] = f"another outcome of the row: {AFTERWARDS}{as_second_label(c, label)}"
    item = next((c for c in keys if c.role == "item"), None)
    for c in columns:
        surveyed = rank_of(c.name, SURE_RATINGS) is not None or has_word(c.name, SURVEYS) or _is_rating_like(c, label)
        if c is label.column or c.role or c.name in reasons or not surveyed or (item and determines(item, c)):
            continue
        reasons[c.name] = f"a rating of the row: {AFTERWARDS}"
    return reasons | _parts_of(columns, label, [c for c in columns if c.name in reasons and c.distinct == 2])


def _counts_outcomes(form: str, c: Column, keys: Sequence[Column]) -> bool:
    """Return True for n_clicks and num_likes, unless they are properties of a user or an item."""
    counted = form.removeprefix("n_").removeprefix("num_").removesuffix("_count")
    named = counted != form and counted.removesuffix("s") in OUTCOMES and c.numbers is not None
    return named and not any(determines(key, c) for key in keys)


def _is_rating_like(c: Column, label: LabelGuess) -> bool:
    """Return True for numbers on the scale of a label of ratings that go with it, as the parts of a review do."""
    numbers, ratings = c.numbers, label.column.numbers
    if (
        numbers is None
        or ratings is None
        or not FEWEST_GRADES <= label.column.distinct <= MOST_GRADES
        or c.distinct < FEWEST_GRADES
    ):
        return False
    grades = set(ratings.drop_nulls().unique().to_list())
    if set(numbers.drop_nulls().unique().to_list()) - grades or (
        grades == {*range(len(grades))} and "rating" not in label.reason
    ):
        return False
    both = pl.DataFrame({"x": numbers, "y": ratings}).drop_nulls()
    return both.height >= FEWEST and (both.select(pl.corr("x", "y")).item() or 0) > GOES_ALONG


def _parts_of(columns: Sequence[Column], label: LabelGuess, outcomes: Sequence[Column]) -> dict[str, str]:
    """Return the columns with a value only where another outcome is positive, such as the time of a purchase."""
    reasons = {}
    for outcome in outcomes:
        outcome_label = label_of(outcome)
        if outcome_label is None or outcome_label.kind != "binary" or mean(outcome_label.values) == 0:
            continue
        for c in comparable(columns, label):
            if c is not outcome and not c.role and (what := implies(c, outcome_label.values)) is not None:
                reasons[c.name] = f"{what} implies {outcome.name}, another outcome: {AFTERWARDS}"
    return reasons


def afterwards(columns: Sequence[Column], label: LabelGuess) -> dict[str, str]:
    """Return the columns whose names say that a matter is over, and columns of reasons that many rows lack."""
    free = [c for c in columns if c is not label.column and not c.role]
    over = [c for c in free if has_word(c.name, AFTER) or (has_word(c.name, REASONS) and c.missing > FEW_REASONS)]
    return {c.name: f"its name says that a matter is over: {AFTERWARDS}" for c in over}


def perhaps_outcomes(
    columns: Sequence[Column], label: LabelGuess, user: Column | None, item: Column | None
) -> list[str]:
    """Return the names of columns that may be other outcomes, since they are properties of neither user nor item.

    They are columns of yes and no and, beside a rating, columns of a few values that go with it. Names of what is known
    before, such as promotion, and families of columns, such as one-hot codes, are left out.

    Args:
        columns: the columns of the rows.
        label: the label.
        user, item: the columns of the user and the item, None if unknown.
    """
    keys = [key for key in (user, item) if key is not None]
    if not keys or label.kind != "binary":
        return []
    free = [c for c in columns if c is not label.column and not c.role and not c.is_partition]
    outcomes = [c for c in free if c.distinct == 2 and are_answers(c)]
    if rank_of(label.column.name, RATINGS) is not None:
        few = [
            c
            for c in free
            if c not in outcomes and c.kind == "category" and c.distinct <= MOST_KINDS and c.numbers is None
        ]
        outcomes += [c for c in few if auc_of_means(as_codes(c), label.values.fill_null(0)) > GOES_WITH]
    named = [c for c in outcomes if not c.name.startswith("column_")]  # names in a file without a header say nothing
    outcomes = [c for c in outcomes if not has_word(c.name, CONTEXT) and not _says_part(c, named)]
    outcomes = [c for c in outcomes if not any(_belongs_to(key, c) for key in keys)]
    return [c.name for c in outcomes] if len(outcomes) <= MOST_OUTCOMES else []


def _says_part(c: Column, others: Sequence[Column]) -> bool:
    """Return True for one of several columns whose names begin with the same word: os_ios and os_android."""
    if c not in others:
        return False
    return sum(words(c.name)[:1] == words(o.name)[:1] for o in others) > 1 or c.name[-1:].isdigit()


def _belongs_to(key: Column, c: Column) -> bool:
    """Return True if most users (or items) with a positive row have no other rows, or none has several rows."""
    label = label_of(c)
    if label is None:
        return True
    if label.kind == "classes":
        return determines(key, c)
    rows = (
        pl.DataFrame({"key": key.values, "y": label.values})
        .drop_nulls()
        .group_by("key")
        .agg(pl.len(), pl.col("y").mean())
    )
    some = rows.filter((pl.col("len") > 1) & (pl.col("y") > 0))
    return not some.height or mean(some["y"] < 1) < MIXED


def written_with(columns: Sequence[Column], label: LabelGuess, item: Column | None) -> dict[str, str]:
    """Return the texts that a user writes with a rating: titles and texts that differ between rows of an item."""
    if item is None or rank_of(label.column.name, RATINGS) is None:
        return {}
    texts = [c for c in columns if c is not label.column and not c.role and has_word(c.name, WRITTEN)]
    texts = [c for c in texts if words(c.name)[-1:] != ["type"]]  # body type
    texts = [c for c in texts if (c.values.dtype == pl.String or c.kind == "list") and c.distinct > 1]
    why = f"it differs between rows of one {item.name}, so it may be written with {label.column.name}: {AFTERWARDS}"
    return {c.name: why for c in texts if not determines(item, c)}


def predictions(columns: Sequence[Column]) -> list[Column]:
    """Return the numbers that are another model's predictions, by their names, such as model_score and pctr."""
    numbers = [c for c in columns if not c.role and c.kind == "number" and c.numbers is not None]
    scores = [c for c in numbers if has_word(c.name, MODELS) and has_word(c.name, ("score", "scores"))]
    rates = [c for c in numbers if "p" in words(c.name) and has_word(c.name, ("ctr", "cvr", "click", "conversion"))]
    return [c for c in numbers if c in scores or c in rates or has_word(c.name, PREDICTIONS)]


def names_splits(columns: Sequence[Column]) -> list[Column]:
    """Return the columns whose values are names of splits, such as train and test."""
    few = [c for c in columns if not c.role and c.values.dtype == pl.String and 2 <= c.distinct <= MOST_KINDS]
    known = {word for words_ in ROLES.values() for word in words_} | {"prior"}
    return [c for c in few if {str(v).strip().lower() for v in c.values.drop_nulls().unique()} <= known]
