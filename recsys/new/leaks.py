"""Find the columns that give the label away, because they are known only after it."""

from collections.abc import Sequence

import polars as pl

from recsys.new.column_kinds import Column, column_of, watched
from recsys.new.known_names import DURATIONS, RATINGS, has_word
from recsys.new.label import LabelGuess, label_of
from recsys.new.sides import Side
from recsys.new.statistics import counts_of, mean
from recsys.new.value_marks import Marks
from recsys.new.yaml_text import flow

LEAK = 0.99  # AUC of a single column from which it gives the label away
BINS = 50
AVERAGES = ("average", "avg", "mean", "promedio", "durchschnitt", "moyenne", "media")
FEWEST_OF_MEAN = 3  # rows of a key whose mean label is compared
MEAN_OF_LABEL = 0.9  # correlation with the mean label of each key
MOST_CELLS = 4_000_000  # that are compared with the label
MANY = 1000  # columns from which numbers are compared only by their order, which takes less time
FEWEST = 20  # rows of each class for which an AUC means anything, and rows with a value that implies the label
MOST_USUAL = 0.6  # share of positive rows, above which a value with positive rows alone says little
CHANCE = 1e-6  # probability that all rows of a value are positive by chance, below which the value implies the label
FEW_POSITIVE = 1 / 3  # share of positive rows up to which one of many values may imply the label
FEW_VALUES = 20
LARGE_PART = 0.2  # of the positive rows have the value of a column of more than two
HALF_NEGATIVE = 0.5  # of the negative rows have a value with which no row is positive, if positive rows are few
MOST_NEGATIVE = 0.9  # the same, if they are not
DOUBTFUL = 0.05  # probability that such rows are positive by chance, from which it is a question
NEEDED = 0.99  # of the positive rows of an outcome, such as bookings, are positive by another one, such as clicks
MOSTLY_LATER = 0.9  # of the rows with a time
MOST_KINDS = 5  # values of an outcome that is counted, such as 0 to 3 comments
SUSPECT_DURATION = 0.7  # the same, of how long something took: what is predicted, or a property of an item
SUSPECT = 0.93  # AUC of a single column from which it is a question whether it is known before the label
AFTERWARDS = "known only afterwards?"
KNOWN_AFTERWARDS = f"it alone predicts the label (almost) perfectly: {AFTERWARDS}"


def leaks(columns: Sequence[Column], label: LabelGuess) -> dict[str, str]:
    """Return the columns that give the label away on their own: almost perfectly, or by a value that implies it."""
    y = label.values
    if label.kind == "classes":
        return _leaks_of_classes(columns, label)
    if label.kind != "binary":
        return {}
    if _is_rare(y):
        return {}
    columns = [
        *columns,
        *(_as_presence(c) for c in columns if c.kind == "list" and not c.role and c is not label.column),
    ]
    picked = _picked(y, len(columns))
    truth, reasons = y.filter(picked), dict[str, str]()
    for c in watched("comparing with the label", comparable(columns, label)):
        auc = 0.0
        if c.kind == "number" and c.numbers is not None and not c.missing:
            by_value = _auc(c.numbers.filter(picked), truth)
            auc = max(by_value, 1 - by_value)
        if auc < LEAK and (c.kind != "number" or len(columns) <= MANY):
            auc = auc_of_means(as_codes(c).filter(picked), truth)
        if auc >= LEAK:
            reasons[c.name] = KNOWN_AFTERWARDS
        elif (what := implies(c, y)) is not None:
            reasons[c.name] = f"{what} implies the label: {AFTERWARDS}{as_second_label(c, label)}"
        elif (what := _excludes(c, y)) is not None:
            before = _as_first_label(c, label) if what.startswith("the value") else ""
            reasons[c.name] = f"no row with {what} is positive: {AFTERWARDS}{before}"
    return reasons


def _is_rare(y: pl.Series) -> bool:
    """Return True if one of the classes has too few rows for an AUC."""
    return min(float(y.sum() or 0), float((1 - y).sum() or 0)) < FEWEST


def _picked(y: pl.Series, columns: int) -> pl.Series:
    """Return a mask of the rows to compare with the columns: all with a label, or every n-th of many."""
    step = max(y.len() * columns // MOST_CELLS, 1)
    return y.is_not_null() & (pl.int_range(y.len(), eager=True) % step == 0)


def _as_presence(c: Column) -> Column:
    """Return whether a row's list has a value, under the name of the list."""
    given = (
        c.values.is_not_null()
        if not c.values.dtype.is_nested()
        else c.values.list.drop_nulls().list.len().fill_null(0) > 0
    )
    return column_of(given.alias(c.name), Marks())


def later_times(columns: Sequence[Column], time: Column | None) -> dict[str, str]:
    """Return the columns of times that are later than the time of the row, and why they are left out."""
    later: dict[str, str] = {}
    if time is None or time.time is None or time.time.moments is None or time.values.len() != columns[0].values.len():
        return later
    for c in columns:
        if c is time or c.time is None or c.time.moments is None:
            continue
        moments, day = c.time.moments, time.time.moments.dt.truncate("1d")
        if bool((day == time.time.moments).all()):  # the time of the row is a day
            moments = moments.dt.truncate("1d")
        are_later = (moments > time.time.moments).drop_nulls()
        if are_later.len() >= FEWEST and mean(are_later) >= MOSTLY_LATER:
            later[c.name] = f"it is later than {time.name}: {AFTERWARDS}"
    return later


def doubtful(columns: Sequence[Column], label: LabelGuess) -> dict[str, str]:
    """Return the columns with a value whose few rows are all positive, by chance or because the label is known."""
    if label.kind != "binary":
        return {}
    base, doubts = mean(label.values), {}
    two_valued = [
        c for c in columns if c is not label.column and not c.role and (c.distinct == 2 or c.missing >= 1 - MOST_USUAL)
    ]
    for c in two_valued:
        if c.kind not in ("category", "id", "number"):
            continue
        counts = counts_of(c.values)
        usual = None if c.missing >= 1 - MOST_USUAL else counts["value"][0]
        rows = c.values.is_not_null() if usual is None else (c.values != usual).fill_null(value=False)
        labels = label.values.filter(rows).drop_nulls()
        if labels.len() > 1 and mean(labels) == 1 and len(two_valued) * base ** labels.len() < DOUBTFUL:
            what = "a value" if usual is None else f"another value than {usual}"
            doubts[c.name] = f"all {labels.len()} rows with {what} are positive"
    return doubts


def suspects(columns: Sequence[Column], label: LabelGuess) -> dict[str, str]:
    """Return the numbers that alone order the rows nearly as the label does, though not perfectly."""
    if label.kind != "binary":
        return {}
    if _is_rare(label.values):
        return {}
    picked, reasons = _picked(label.values, len(columns)), dict[str, str]()
    truth = label.values.filter(picked)
    for c in (c for c in comparable(columns, label) if not c.role and c.kind in ("number", "category", "numbers")):
        auc = auc_of_means(as_codes(c).filter(picked), truth)
        if (SUSPECT_DURATION if has_word(c.name, DURATIONS) else SUSPECT) <= auc < LEAK:
            reasons[c.name] = f"it alone orders the rows with an AUC of {auc:.2f}"
    return reasons


def means_of_label(columns: Sequence[Column], sides: Sequence[Side], label: LabelGuess) -> dict[str, str]:
    """Return the columns of side tables that hold the mean label of their key, as an average of ratings does.

    Such a mean counts the test rows as well.
    """
    y = label.column.numbers if label.column.numbers is not None else label.values
    by_name, reasons = {c.name: c for c in columns}, dict[str, str]()
    for side in sides:
        if side.keys is None:
            continue
        key = by_name[side.key].values.cast(pl.String)
        groups = pl.DataFrame({"key": key, "y": y}).drop_nulls().group_by("key").agg(pl.len(), pl.col("y").mean())
        groups = groups.filter(pl.col("len") >= FEWEST_OF_MEAN)
        for c in side.columns:
            if c.kind != "number" or c.numbers is None:
                continue
            side_values = pl.DataFrame({"key": side.keys.cast(pl.String), "x": c.numbers})
            both = groups.join(side_values, on="key").drop_nulls()
            near = both.select(pl.corr("x", "y")).item() if both.height >= FEWEST else None
            named = has_word(c.name, AVERAGES) and has_word(c.name, RATINGS)
            if named or (near is not None and abs(near) >= MEAN_OF_LABEL):
                reasons[c.name] = (
                    f"it is the mean {label.column.name} of a {side.key}, also over test rows: {AFTERWARDS}"
                )
    return reasons


def comparable(columns: Sequence[Column], label: LabelGuess) -> list[Column]:
    """Return the columns whose values can be compared with the label."""
    kinds = ("constant", "empty", "nested", "vector")
    return [c for c in columns if c is not label.column and c.kind not in kinds and not c.values.dtype.is_nested()]


def _leaks_of_classes(columns: Sequence[Column], label: LabelGuess) -> dict[str, str]:
    """Return the columns whose values are missing in (almost) all rows of one class and in no others, and copies."""
    y, reasons = label.values, dict[str, str]()
    for c in comparable(columns, label):
        if min(c.rows, y.len() - c.rows) >= FEWEST:
            missing = c.values.is_null()
            usual = y.filter(missing).drop_nulls().mode()
            if usual.len() and mean((missing == (y == usual[0])).drop_nulls()) >= LEAK:
                reasons[c.name] = f"it is missing exactly if the label is {label.classes[int(usual[0])]}: {AFTERWARDS}"
        elif c.kind in ("category", "id") and 2 <= c.distinct <= 2 * len(label.classes):
            groups = pl.DataFrame({"x": c.values, "y": y}).drop_nulls().group_by("x", "y").len()
            best = int(groups.group_by("x").agg(pl.col("len").max())["len"].sum())
            if best / max(int(groups["len"].sum()), 1) >= LEAK and c.distinct >= len(label.classes):
                reasons[c.name] = KNOWN_AFTERWARDS
    return reasons


def _groups(c: Column) -> list[tuple[str, pl.Series]]:
    """Return sets of rows: those with and without a value, and those with and without the usual value."""
    counts = counts_of(c.values)
    groups = [("a value", c.values.is_not_null()), ("a missing value", c.values.is_null())] if c.missing else []
    if c.kind in ("number", "category", "id") and counts.height and counts["count"][0] >= c.rows / 2:
        usual = counts["value"][0]
        two = counts.height == 2
        unusual = f"the value {counts['value'][1]}" if two else f"a value other than {usual}"
        groups.append((f"the value {usual}", (c.values == usual).fill_null(value=False)))
        groups.append((unusual, (c.values != usual).fill_null(value=False)))
    return groups


def _excludes(c: Column, y: pl.Series) -> str | None:
    """Return the values of a column that most negative rows and no positive row have; None if no values are such.

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


def implies(c: Column, y: pl.Series) -> str | None:
    """Return the values of a column that only positive rows have, in a few words; None if no values are such.

    Such values are the other value of two, a value other than the usual one, a value that is not missing, and one of
    few values that makes a good part of the positive rows.
    """
    base, positives = mean(y), float(y.sum() or 0)
    if base > MOST_USUAL:
        return None
    counts = counts_of(c.values)
    if not counts.height:
        return None
    groups: list[tuple[str, pl.Series, float]] = []
    if c.missing >= 1 - MOST_USUAL:
        groups.append(("a value that is not missing", c.values.is_not_null(), 0.0))
    if c.kind in ("number", "category", "id") and counts["count"][0] >= c.rows / 2:
        usual = counts["value"][0]
        groups.append((f"a value other than {usual}", (c.values != usual).fill_null(False), 0.0))
    if c.kind == "category" and (counts.height == 2 or (counts.height <= FEW_VALUES and base <= FEW_POSITIVE)):
        share = 0.0 if counts.height == 2 else LARGE_PART
        groups += [(f"the value {v}", (c.values == v).fill_null(False), share) for v in counts["value"].to_list()]
    for what, rows, share in reversed(groups):
        labels = y.filter(rows).drop_nulls()
        if labels.len() >= max(FEWEST, share * positives) and mean(labels) == 1 and base ** labels.len() < CHANCE:
            return what
    return None


def as_second_label(c: Column, label: LabelGuess) -> str:
    """Return the hint to learn a column of two values as a second label, or nothing if it makes no label."""
    second = label_of(c) if c.distinct == 2 else None
    if second is None or second.kind != "binary":
        return ""
    first_settings, second_settings = ({k: v for k, v in x.settings.items() if k != "column"} for x in (label, second))
    if label.kind == "binary" and _needs(label.values, second.values):
        return _as_first_label(c, label)
    if label.kind == "binary" and _needs(second.values, label.values):
        second_settings["only_if"] = label.column.name
    return f" To learn both, write labels: {flow({label.column.name: first_settings, c.name: second_settings})}"


def _needs(one: pl.Series, needed: pl.Series) -> bool:
    """Return True if (almost) all rows that `one` takes for positive are positive by `needed` as well."""
    return mean(needed.filter(one == 1).drop_nulls() == 1) > NEEDED


def _as_first_label(c: Column, label: LabelGuess) -> str:
    """Return the hint to learn a column of two values as a first label, which the label of the rows follows."""
    first = label_of(c) if c.distinct == 2 else None
    if first is None or first.kind != "binary":
        return ""
    first_settings = {k: v for k, v in first.settings.items() if k != "column"}
    label_settings = {k: v for k, v in label.settings.items() if k != "column"} | {"only_if": c.name}
    return f" To learn both, write labels: {flow({c.name: first_settings, label.column.name: label_settings})}"


def as_codes(c: Column) -> pl.Series:
    """Return a group of each row: its value, or the range of its number. Missing values are a group of their own."""
    if c.kind in ("time", "text", "row id"):
        return c.values.is_null().cast(pl.String)
    if c.kind == "number" and c.numbers is not None:
        return (c.numbers.rank("average") / c.numbers.len() * BINS).floor().cast(pl.Int32).cast(pl.String)
    return c.values.cast(pl.String)


def auc_of_means(codes: pl.Series, truth: pl.Series) -> float:
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
