"""Find the columns that give the label away, because they are known only after it."""

from collections.abc import Sequence

import polars as pl

from recsys.new.column_kinds import Column, Marks, column_of, watched
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
from recsys.new.label import NO, YES, LabelGuess, label_of
from recsys.new.sides import Side
from recsys.new.statistics import mean
from recsys.new.yaml_text import flow

LEAK = 0.99  # AUC of a single column from which it gives the label away
BINS = 50
AVERAGES = ("average", "avg", "mean", "promedio", "durchschnitt", "moyenne", "media")
FEWEST_OF_MEAN = 3  # rows of a key whose mean label is compared
MEAN_OF_LABEL = 0.9  # correlation with the mean label of each key
MANY = 1000  # columns of which numbers are compared only by their order, which takes less time
FEWEST = 20  # rows of each class for which an AUC means anything, and rows with a value that implies the label
MOST_USUAL = 0.6  # share of positive rows, above which a value with positive rows alone says little
CHANCE = 1e-6  # probability that all rows of a value are positive by chance, below which the value implies the label
FEW_POSITIVE = 1 / 3  # share of positive rows up to which one of many values may imply the label
FEW_VALUES = 20
LARGE_PART = 0.2  # of the positive rows have the value of a column of more than two
HALF_NEGATIVE = 0.5  # of the negative rows have a value with which no row is positive, if positive rows are few
MOST_NEGATIVE = 0.9  # the same, if they are not
DOUBTFUL = 0.05  # probability that such rows are positive by chance, from which it is a question
MOSTLY_LATER = 0.9  # of the rows with a time
MOST_KINDS = 5  # values of an outcome that is counted, such as 0 to 3 comments
SURE_RATINGS = tuple(name for name in RATINGS if name not in ("score", "note", "nota", "vote", "grade", "rate", "star"))
FEWEST_GRADES, MOST_GRADES = 4, 21  # different grades of a rating
GOES_ALONG = 0.3  # correlation of the grades of one review
SUSPECT = 0.93  # AUC of a single column from which it is a question whether it is known before the label
GOES_WITH = 0.55  # AUC of the mean rating by a column's values, from which it may be written with the rating
FEW_REASONS = 0.2  # share of rows without a reason
MOST_OUTCOMES = 3  # columns of yes and no; more of them are likely properties
MIXED = 0.5  # share of users with a yes that have a no, too, from which it is no property of theirs
AFTERWARDS = "known only afterwards?"
WRITTEN = ("title", "text", "review", "summary", "comment", "headline", "body", "yorum", "kommentar", "commentaire")
KNOWN_AFTERWARDS = f"it alone predicts the label (almost) perfectly: {AFTERWARDS}"


def leaks(columns: Sequence[Column], label: LabelGuess) -> dict[str, str]:
    """Return the columns that give the label away on their own: almost perfectly, or by a value that implies it."""
    y = label.values
    if label.kind == "classes":
        return _leaks_of_classes(columns, label)
    if label.kind != "binary":
        return {}
    rows = y.is_not_null()
    if min(float(y.sum() or 0), float((1 - y).sum() or 0)) < FEWEST:
        return {}
    columns = [
        *columns,
        *(_as_presence(c) for c in columns if c.kind == "list" and not c.role and c is not label.column),
    ]
    step = max(y.len() * len(columns) // 4_000_000, 1)
    picked = rows & (pl.int_range(y.len(), eager=True) % step == 0)
    truth, found = y.filter(picked), dict[str, str]()
    for c in watched("comparing with the label", _comparable(columns, label)):
        auc = 0.0
        if c.kind == "number" and c.numbers is not None and not c.missing:
            by_value = _auc(c.numbers.filter(picked), truth)
            auc = max(by_value, 1 - by_value)
        if auc < LEAK and (c.kind != "number" or len(columns) <= MANY):
            auc = _auc_of_means(_codes(c).filter(picked), truth)
        if auc >= LEAK:
            found[c.name] = KNOWN_AFTERWARDS
        elif (what := _implies(c, y)) is not None:
            found[c.name] = f"{what} implies the label: {AFTERWARDS}{_as_second_label(c, label)}"
        elif (what := _excludes(c, y)) is not None:
            before = _as_first_label(c, label) if what.startswith("the value") else ""
            found[c.name] = f"no row with {what} is positive: {AFTERWARDS}{before}"
    return found


def _as_presence(c: Column) -> Column:
    """Return whether a row's list has a value, under the name of the list."""
    given = (
        c.values.is_not_null()
        if not c.values.dtype.is_nested()
        else c.values.list.drop_nulls().list.len().fill_null(0) > 0
    )
    return column_of(given.alias(c.name), Marks())


def outcome_form(name: str) -> str:
    """Return the words of a name without a unit of time."""
    return plain(name).removesuffix("_ms").removesuffix("_seconds").removesuffix("_s")


def other_outcomes(columns: Sequence[Column], label: LabelGuess) -> dict[str, str]:
    """Return the columns that hold what the user did beside the label, by their names: clicks, buys, time spent."""
    parents = tuple(f"{name}." for name in ("outcome", "outcomes", "result", "response", "feedback", "label", "labels"))
    found = {c.name: f"beside the label in an object: {AFTERWARDS}" for c in columns if c.name.startswith(parents)}
    found.pop(label.column.name, None)
    for c in columns:
        form = outcome_form(c.name)
        answers = c.distinct == 2 or (c.distinct <= MOST_KINDS and c.numbers is not None)
        spent = form in SPENT or (c.numbers is not None and has_word(c.name, WATCHED) and has_word(c.name, LASTING))
        if c is label.column or c.role or not ((form in OUTCOMES and answers) or spent):
            continue
        found[c.name] = f"another outcome of the row: {AFTERWARDS}{_as_second_label(c, label)}"
    item = next((c for c in columns if c.role == "item"), None)
    for c in columns:
        surveyed = rank_of(c.name, SURE_RATINGS) is not None or has_word(c.name, SURVEYS) or _is_rating_like(c, label)
        if c is label.column or c.role or c.name in found or not surveyed or (item and determines(item, c)):
            continue
        found[c.name] = f"a rating of the row: {AFTERWARDS}"
    return found | _parts_of(columns, label, [c for c in columns if c.name in found and c.distinct == 2])


def _is_rating_like(c: Column, label: LabelGuess) -> bool:
    """Return True for numbers on the scale of a label of ratings that go with it, as the parts of a review do."""
    own, theirs = c.numbers, label.column.numbers
    if (
        own is None
        or theirs is None
        or not FEWEST_GRADES <= label.column.distinct <= MOST_GRADES
        or c.distinct < FEWEST_GRADES
    ):
        return False
    grades = set(theirs.drop_nulls().unique().to_list())
    if set(own.drop_nulls().unique().to_list()) - grades or (
        grades == {*range(len(grades))} and "rating" not in label.reason
    ):
        return False
    both = pl.DataFrame({"x": own, "y": theirs}).drop_nulls()
    return both.height >= FEWEST and (both.select(pl.corr("x", "y")).item() or 0) > GOES_ALONG


def _parts_of(columns: Sequence[Column], label: LabelGuess, outcomes: Sequence[Column]) -> dict[str, str]:
    """Return the columns with a value only where another outcome is positive, such as the time of a purchase."""
    found = {}
    for other in outcomes:
        made = label_of(other)
        if made is None or made.kind != "binary" or mean(made.values) == 0:
            continue
        for c in _comparable(columns, label):
            if c is not other and not c.role and (what := _implies(c, made.values)) is not None:
                found[c.name] = f"{what} implies {other.name}, another outcome: {AFTERWARDS}"
    return found


def afterwards(columns: Sequence[Column], label: LabelGuess) -> dict[str, str]:
    """Return the columns whose names say that a matter is over, and reasons that many rows lack."""
    free = [c for c in columns if c is not label.column and not c.role]
    found = [c for c in free if has_word(c.name, AFTER) or (has_word(c.name, REASONS) and c.missing > FEW_REASONS)]
    return {c.name: f"its name says that a matter is over: {AFTERWARDS}" for c in found}


def perhaps_outcomes(
    columns: Sequence[Column], label: LabelGuess, user: Column | None, item: Column | None
) -> list[str]:
    """Return the columns that may be outcomes, too: they belong neither to the user nor to the item.

    They are columns of yes and no and, beside a rating, those of a few values that go with it. Names of what is known
    before, such as promotion, and families of columns, such as one-hot codes, are left out.
    """
    keys = [key for key in (user, item) if key is not None]
    if not keys or label.kind != "binary":
        return []
    free = [c for c in columns if c is not label.column and not c.role and not c.is_partition]
    found = [c for c in free if _is_answer(c)]
    if rank_of(label.column.name, RATINGS) is not None:
        few = [
            c
            for c in free
            if c not in found and c.kind == "category" and c.distinct <= MOST_KINDS and c.numbers is None
        ]
        found += [c for c in few if _auc_of_means(_codes(c), label.values.fill_null(0)) > GOES_WITH]
    named = [c for c in found if not c.name.startswith("column_")]  # those of a file without a header say nothing
    found = [c for c in found if not has_word(c.name, CONTEXT) and not _says_part(c, named)]
    found = [c for c in found if not any(_belongs_to(key, c) for key in keys)]
    return [c.name for c in found] if len(found) <= MOST_OUTCOMES else []


def _is_answer(c: Column) -> bool:
    return c.distinct == 2 and {str(v).strip().lower() for v in c.values.drop_nulls().unique()} <= {*YES, *NO}


def _says_part(c: Column, others: Sequence[Column]) -> bool:
    """Return True for one of several columns whose names begin with the same word: os_ios and os_android."""
    if c not in others:
        return False
    return sum(words(c.name)[:1] == words(o.name)[:1] for o in others) > 1 or c.name[-1:].isdigit()


def _belongs_to(key: Column, c: Column) -> bool:
    """Return True if the rows of a key that has a yes have mostly nothing else; also if no key has several rows."""
    made = label_of(c)
    if made is None:
        return True
    if made.kind == "classes":
        return determines(key, c)
    rows = (
        pl.DataFrame({"key": key.values, "y": made.values})
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
    texts = [c for c in texts if c.values.dtype == pl.String and c.distinct > 1]
    why = f"it differs between rows of one {item.name}, so it may be written with {label.column.name}: {AFTERWARDS}"
    return {c.name: why for c in texts if not determines(item, c)}


def later_times(columns: Sequence[Column], time: Column | None) -> dict[str, str]:
    """Return the times that are later than that of the row: something has happened by then."""
    found: dict[str, str] = {}
    if time is None or time.time is None or time.time.moments is None or time.values.len() != columns[0].values.len():
        return found
    for c in columns:
        if c is time or c.time is None or c.time.moments is None:
            continue
        own, day = c.time.moments, time.time.moments.dt.truncate("1d")
        if bool((day == time.time.moments).all()):  # the time of the row is a day
            own = own.dt.truncate("1d")
        later = (own > time.time.moments).drop_nulls()
        if later.len() >= FEWEST and mean(later) >= MOSTLY_LATER:
            found[c.name] = f"it is later than {time.name}: {AFTERWARDS}"
    return found


def doubtful(columns: Sequence[Column], label: LabelGuess) -> dict[str, str]:
    """Return the columns with a value that few rows have, all of them positive: by chance, or as the label is known."""
    if label.kind != "binary":
        return {}
    base, found = mean(label.values), {}
    two = [
        c for c in columns if c is not label.column and not c.role and (c.distinct == 2 or c.missing >= 1 - MOST_USUAL)
    ]
    for c in two:
        if c.kind not in ("category", "id", "number"):
            continue
        counts = c.values.drop_nulls().value_counts(sort=True)
        usual = None if c.missing >= 1 - MOST_USUAL else counts[c.name][0]
        rows = c.values.is_not_null() if usual is None else (c.values != usual).fill_null(value=False)
        labels = label.values.filter(rows).drop_nulls()
        if labels.len() > 1 and mean(labels) == 1 and len(two) * base ** labels.len() < DOUBTFUL:
            what = "a value" if usual is None else f"another value than {usual}"
            found[c.name] = f"all {labels.len()} rows with {what} are positive"
    return found


def suspects(columns: Sequence[Column], label: LabelGuess) -> dict[str, str]:
    """Return the numbers that alone order the rows nearly as the label does, though not perfectly."""
    if label.kind != "binary":
        return {}
    known = label.values.is_not_null()
    truth, found = label.values.filter(known), dict[str, str]()
    if min(float(truth.sum() or 0), float((1 - truth).sum() or 0)) < FEWEST:
        return {}
    for c in (c for c in _comparable(columns, label) if not c.role and c.kind in ("number", "category", "numbers")):
        auc = _auc_of_means(_codes(c).filter(known), truth)
        if SUSPECT <= auc < LEAK:
            found[c.name] = f"it alone orders the rows with an AUC of {auc:.2f}"
    return found


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


def means_of_label(columns: Sequence[Column], sides: Sequence[Side], label: LabelGuess) -> dict[str, str]:
    """Return the columns of side tables that hold the mean label of their key, as an average of ratings does.

    Such a mean counts the test rows, too.
    """
    y = label.column.numbers if label.column.numbers is not None else label.values
    by_name, found = {c.name: c for c in columns}, dict[str, str]()
    for side in sides:
        if side.keys is None:
            continue
        key = by_name[side.key].values.cast(pl.String)
        groups = pl.DataFrame({"key": key, "y": y}).drop_nulls().group_by("key").agg(pl.len(), pl.col("y").mean())
        groups = groups.filter(pl.col("len") >= FEWEST_OF_MEAN)
        for c in side.columns:
            if c.kind != "number" or c.numbers is None:
                continue
            theirs = pl.DataFrame({"key": side.keys.cast(pl.String), "x": c.numbers})
            both = groups.join(theirs, on="key").drop_nulls()
            near = both.select(pl.corr("x", "y")).item() if both.height >= FEWEST else None
            named = has_word(c.name, AVERAGES) and has_word(c.name, RATINGS)
            if named or (near is not None and abs(near) >= MEAN_OF_LABEL):
                found[c.name] = f"it is the mean {label.column.name} of a {side.key}, also over test rows: {AFTERWARDS}"
    return found


def _comparable(columns: Sequence[Column], label: LabelGuess) -> list[Column]:
    kinds = ("constant", "empty", "nested", "vector")
    return [c for c in columns if c is not label.column and c.kind not in kinds and not c.values.dtype.is_nested()]


def _leaks_of_classes(columns: Sequence[Column], label: LabelGuess) -> dict[str, str]:
    """Return the columns whose values are missing in (almost) all rows of one class and in no others, and copies."""
    y, found = label.values, dict[str, str]()
    for c in _comparable(columns, label):
        if min(c.rows, y.len() - c.rows) >= FEWEST:
            missing = c.values.is_null()
            usual = y.filter(missing).drop_nulls().mode()
            if usual.len() and mean((missing == (y == usual[0])).drop_nulls()) >= LEAK:
                found[c.name] = f"it is missing exactly if the label is {label.classes[int(usual[0])]}: {AFTERWARDS}"
        elif c.kind in ("category", "id") and 2 <= c.distinct <= 2 * len(label.classes):
            groups = pl.DataFrame({"x": c.values, "y": y}).drop_nulls().group_by("x", "y").len()
            best = int(groups.group_by("x").agg(pl.col("len").max())["len"].sum())
            if best / max(int(groups["len"].sum()), 1) >= LEAK and c.distinct >= len(label.classes):
                found[c.name] = KNOWN_AFTERWARDS
    return found


def _groups(c: Column) -> list[tuple[str, pl.Series]]:
    """Return sets of rows: those with and without a value, and those with and without the usual value."""
    counts = c.values.drop_nulls().value_counts(sort=True)
    groups = [("a value", c.values.is_not_null()), ("a missing value", c.values.is_null())] if c.missing else []
    if c.kind in ("number", "category", "id") and counts.height and counts["count"][0] >= c.rows / 2:
        usual = counts[c.name][0]
        two = counts.height == 2
        other = f"the value {counts[c.name][1]}" if two else f"a value other than {usual}"
        groups.append((f"the value {usual}", (c.values == usual).fill_null(value=False)))
        groups.append((other, (c.values != usual).fill_null(value=False)))
    return groups


def _excludes(c: Column, y: pl.Series) -> str | None:
    """Return the values of a column with which no row is positive, though most negative rows have them; or None.

    Such a column is a step before the label, as a click is before a purchase.
    """
    base, negatives = mean(y), float((1 - y).sum() or 0)
    if base > MOST_USUAL:
        return None
    part = HALF_NEGATIVE if base <= FEW_POSITIVE else MOST_NEGATIVE
    for what, rows in _groups(c):
        labels = y.filter(rows).drop_nulls()
        written = what == "a value" and c.missing >= 1 - MOST_USUAL  # such as the reason of a refusal
        if (
            labels.len() >= max(FEWEST, 0 if written else part * negatives)
            and not labels.sum()
            and (1 - base) ** labels.len() < CHANCE
        ):
            return what
    return None


def _implies(c: Column, y: pl.Series) -> str | None:
    """Return the values of a column with which every row is positive, in a few words; None if there are none.

    Such values are the other value of two, a value other than the usual one, a value that is not missing, and one of
    few values that makes a good part of the positive rows.
    """
    base, positives = mean(y), float(y.sum() or 0)
    if base > MOST_USUAL:
        return None
    counts = c.values.drop_nulls().value_counts(sort=True)
    if not counts.height:
        return None
    groups: list[tuple[str, pl.Series, float]] = []
    if c.missing >= 1 - MOST_USUAL:
        groups.append(("a value that is not missing", c.values.is_not_null(), 0.0))
    if c.kind in ("number", "category", "id") and counts["count"][0] >= c.rows / 2:
        usual = counts[c.name][0]
        groups.append((f"a value other than {usual}", (c.values != usual).fill_null(False), 0.0))
    if c.kind == "category" and (counts.height == 2 or (counts.height <= FEW_VALUES and base <= FEW_POSITIVE)):
        share = 0.0 if counts.height == 2 else LARGE_PART
        groups += [(f"the value {v}", (c.values == v).fill_null(False), share) for v in counts[c.name].to_list()]
    for what, rows, share in reversed(groups):
        labels = y.filter(rows).drop_nulls()
        if labels.len() >= max(FEWEST, share * positives) and mean(labels) == 1 and base ** labels.len() < CHANCE:
            return what
    return None


def _as_second_label(c: Column, label: LabelGuess) -> str:
    """Return how a column of two values becomes a second label of the rows where the first is positive."""
    second = label_of(c) if c.distinct == 2 else None
    if second is None:
        return ""
    first = {k: v for k, v in label.settings.items() if k != "column"}
    own = {k: v for k, v in second.settings.items() if k != "column"} | {"only_if": label.column.name}
    return f" To learn both, write labels: {flow({label.column.name: first, c.name: own})}"


def _as_first_label(c: Column, label: LabelGuess) -> str:
    """Return how a column of two values becomes the first of two labels, where the label follows it."""
    first = label_of(c) if c.distinct == 2 else None
    if first is None or first.kind != "binary":
        return ""
    before = {k: v for k, v in first.settings.items() if k != "column"}
    own = {k: v for k, v in label.settings.items() if k != "column"} | {"only_if": c.name}
    return f" To learn both, write labels: {flow({c.name: before, label.column.name: own})}"


def _codes(c: Column) -> pl.Series:
    """Return a column as a few groups of rows: its values, or ranges of its numbers; missing values are one."""
    if c.kind in ("time", "text", "row id"):
        return c.values.is_null().cast(pl.String)
    if c.kind == "number" and c.numbers is not None:
        return (c.numbers.rank("average") / c.numbers.len() * BINS).floor().cast(pl.Int32).cast(pl.String)
    return c.values.cast(pl.String)


def _auc_of_means(codes: pl.Series, truth: pl.Series) -> float:
    """Return the AUC on one half of the rows of the mean label by group on the other half."""
    frame = pl.DataFrame({"code": codes, "y": truth}).with_row_index("i")
    base = mean(truth)
    fit, held_out = frame.filter(pl.col("i") % 2 == 0), frame.filter(pl.col("i") % 2 == 1)
    means = fit.group_by("code").agg(((pl.col("y").sum() + base) / (pl.len() + 1)).alias("p"))
    scored = held_out.join(means, on="code", how="left", nulls_equal=True, maintain_order="left")
    return _auc(scored["p"].fill_null(base), scored["y"])


def _auc(scores: pl.Series, truth: pl.Series) -> float:
    """Return the probability that a positive row has a higher score than a negative one; 0.5 without one of them."""
    positives = float(truth.sum())
    negatives = truth.len() - positives
    if not positives or not negatives:
        return 0.5
    ranks = float((scores.rank("average") * truth).sum())
    return (ranks - positives * (positives + 1) / 2) / (positives * negatives)
