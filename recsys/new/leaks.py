"""Find the columns that give the label away, because they are known only after it."""

from collections.abc import Iterator, Sequence

import polars as pl

from recsys.new.column_kinds import Column
from recsys.new.find_kinds import MANY, column_of, watched
from recsys.new.known_names import NAMES, has_word
from recsys.new.label import LabelGuess, label_of
from recsys.new.sides import Side
from recsys.new.statistics import counts_of, mean
from recsys.new.value_marks import Marks
from recsys.new.yaml_text import flow

LEAK = 0.99  # AUC of a single column from which it gives the label away
SUSPECT = 0.93  # AUC of a single column from which it is a question whether it is known before the label
SUSPECT_DURATION = 0.7  # the same, of how long something took: what is predicted, or a property of an item
FEWEST = 20  # rows of each class for which an AUC means anything, and rows with a value that implies the label
MOST_USUAL = 0.6  # share of positive rows, above which a value with positive rows alone says little
FEW_POSITIVE = 1 / 3  # share of positive rows up to which one of many values may imply the label
CHANCE = 1e-6  # probability that all rows of a value are positive by chance, below which the value implies the label
DOUBTFUL = 0.05  # probability that such rows are positive by chance, from which it is a question
AFTERWARDS = "known only afterwards?"
KNOWN_AFTERWARDS = f"it alone predicts the label (almost) perfectly: {AFTERWARDS}"


def leaks(columns: Sequence[Column], label: LabelGuess) -> dict[str, str]:
    """Return the columns that give the label away on their own: almost perfectly, or by a value that implies it."""
    y = label.values
    if label.classes:
        return _leaks_of_classes(columns, label)
    if not label.is_binary or _is_rare(y):
        return {}
    columns = list(columns)
    for c in [c for c in columns if c.kind.is_list and not c.role and c is not label.column]:
        # whether a row's list has a value may tell the label, too
        is_list = c.values.dtype.is_nested()
        given = c.values.list.drop_nulls().list.len().fill_null(0) > 0 if is_list else c.values.is_not_null()
        columns.append(column_of(given.alias(c.name), Marks()))
    picked = _picked(y, len(columns))
    truth, reasons = y.filter(picked), dict[str, str]()
    for c in watched("comparing with the label", comparable(columns, label)):
        auc = 0.0
        if c.kind.is_number and c.numbers is not None and not c.missing:
            by_value = _auc(c.numbers.filter(picked), truth)
            auc = max(by_value, 1 - by_value)
        if auc < LEAK and (not c.kind.is_number or len(columns) <= MANY):  # the order of numbers takes less time
            auc = auc_of_means(c.kind.groups(c).filter(picked), truth)
        if auc >= LEAK:
            reasons[c.name] = KNOWN_AFTERWARDS
        elif (what := implies(c, y)) is not None:
            reasons[c.name] = f"{what} implies the label: {AFTERWARDS}{as_second_label(c, label)}"
        elif (what := _excludes(c, y)) is not None:
            hint = as_second_label(c, label, is_first=True) if what.startswith("the value") else ""
            reasons[c.name] = f"no row with {what} is positive: {AFTERWARDS}{hint}"
    return reasons


def _is_rare(y: pl.Series) -> bool:
    """Return True if one of the classes has too few rows for an AUC."""
    return min(float(y.sum() or 0), float((1 - y).sum() or 0)) < FEWEST


def _picked(y: pl.Series, columns: int) -> pl.Series:
    """Return a mask of the rows to compare with the columns: all with a label, or every n-th of many."""
    step = max(y.len() * columns // 4_000_000, 1)
    return y.is_not_null() & (pl.int_range(y.len(), eager=True) % step == 0)


def comparable(columns: Sequence[Column], label: LabelGuess) -> list[Column]:
    """Return the columns whose values can be compared with the label."""
    return [c for c in columns if c is not label.column and c.kind.compares and not c.values.dtype.is_nested()]


def later_times(columns: Sequence[Column], time: Column | None) -> dict[str, str]:
    """Return the columns of times that are later than the time of the row, and why they are left out."""
    moments = time.time.moments if time is not None and time.time is not None else None
    if time is None or moments is None or moments.len() != columns[0].values.len():
        return {}
    is_day, later = bool((moments.dt.truncate("1d") == moments).all()), dict[str, str]()
    for c in columns:
        if c is time or c.time is None or c.time.moments is None:
            continue
        others = c.time.moments.dt.truncate("1d") if is_day else c.time.moments
        are_later = (others > moments).drop_nulls()
        if are_later.len() >= FEWEST and mean(are_later) >= 0.9:
            later[c.name] = f"it is later than {time.name}: {AFTERWARDS}"
    return later


def doubtful(columns: Sequence[Column], label: LabelGuess) -> dict[str, str]:
    """Return the columns that may give the label away, and why this is a question.

    They have a value whose few rows are all positive, by chance or because the label is known, or they alone order the
    rows nearly as the label does.
    """
    if not label.is_binary:
        return {}
    y, doubts = label.values, dict[str, str]()
    free = [c for c in columns if c is not label.column and not c.role]
    two_valued = [c for c in free if c.distinct == 2 or c.missing >= 1 - MOST_USUAL]
    for c in (c for c in two_valued if c.kind.is_single):
        usual = None if c.missing >= 1 - MOST_USUAL else counts_of(c.values)["value"][0]
        rows = c.values.is_not_null() if usual is None else (c.values != usual).fill_null(value=False)
        labels = y.filter(rows).drop_nulls()
        if labels.len() > 1 and mean(labels) == 1 and len(two_valued) * mean(y) ** labels.len() < DOUBTFUL:
            what = "a value" if usual is None else f"another value than {usual}"
            doubts[c.name] = f"all {labels.len()} rows with {what} are positive"
    if _is_rare(y):
        return doubts
    picked = _picked(y, len(columns))
    for c in comparable([c for c in free if c.kind.is_feature and not c.kind.is_id], label):
        auc = auc_of_means(c.kind.groups(c).filter(picked), y.filter(picked))
        if (SUSPECT_DURATION if has_word(c.name, NAMES.durations) else SUSPECT) <= auc < LEAK:
            doubts[c.name] = f"it alone orders the rows with an AUC of {auc:.2f}"
    return doubts


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
        groups = groups.filter(pl.col("len") >= 3)
        for c in side.columns:
            if not c.kind.is_number or c.numbers is None:
                continue
            of_side = pl.DataFrame({"key": side.keys.cast(pl.String), "x": c.numbers})
            both = groups.join(of_side, on="key").drop_nulls()
            near = both.select(pl.corr("x", "y")).item() if both.height >= FEWEST else None
            named = has_word(c.name, NAMES.averages) and has_word(c.name, NAMES.ratings)
            if named or (near is not None and abs(near) >= 0.9):
                what = f"it is the mean {label.column.name} of a {side.key}, also over test rows"
                reasons[c.name] = f"{what}: {AFTERWARDS}"
    return reasons


def _leaks_of_classes(columns: Sequence[Column], label: LabelGuess) -> dict[str, str]:
    """Return the columns whose values are missing in (almost) all rows of one class and in no others, and copies."""
    y, reasons = label.values, dict[str, str]()
    for c in comparable(columns, label):
        if min(c.rows, y.len() - c.rows) >= FEWEST:
            missing = c.values.is_null()
            usual = y.filter(missing).drop_nulls().mode()
            if usual.len() and mean((missing == (y == usual[0])).drop_nulls()) >= LEAK:
                reasons[c.name] = f"it is missing exactly if the label is {label.classes[int(usual[0])]}: {AFTERWARDS}"
        elif c.kind.is_code and len(label.classes) <= c.distinct <= 2 * len(label.classes):
            groups = pl.DataFrame({"x": c.values, "y": y}).drop_nulls().group_by("x", "y").len()
            best = int(groups.group_by("x").agg(pl.col("len").max())["len"].sum())
            if best / max(int(groups["len"].sum()), 1) >= LEAK:
                reasons[c.name] = KNOWN_AFTERWARDS
    return reasons


def _excludes(c: Column, y: pl.Series) -> str | None:
    """Return the values of a column that most negative rows and no positive row have; None if no values are such.

    Such a column is a step before the label, as a click is before a purchase.
    """
    base, negatives = mean(y), float((1 - y).sum() or 0)
    if base > MOST_USUAL:
        return None
    counts = counts_of(c.values)
    groups = [("a value", c.values.is_not_null()), ("a missing value", c.values.is_null())] if c.missing else []
    if c.kind.is_single and counts.height and counts["count"][0] >= c.rows / 2:
        usual = counts["value"][0]
        unusual = f"the value {counts['value'][1]}" if counts.height == 2 else f"a value other than {usual}"
        groups.append((f"the value {usual}", (c.values == usual).fill_null(value=False)))
        groups.append((unusual, (c.values != usual).fill_null(value=False)))
    for what, rows in groups:
        labels = y.filter(rows).drop_nulls()
        written = what == "a value" and c.missing >= 1 - MOST_USUAL  # such as the reason of a refusal
        share = 0 if written else 0.5 if base <= FEW_POSITIVE else 0.9
        if labels.len() >= max(FEWEST, share * negatives) and not labels.sum() and (1 - base) ** labels.len() < CHANCE:
            return what
    return None


def implies(c: Column, y: pl.Series) -> str | None:
    """Return the values of a column that only positive rows have, in a few words; None if no values are such.

    Such values are the other value of two, a value other than the usual one, a value that is not missing, and one of
    few values that makes a good part of the positive rows.
    """
    base, positives, counts = mean(y), float(y.sum() or 0), counts_of(c.values)
    if base > MOST_USUAL or not counts.height:
        return None

    def groups() -> Iterator[tuple[str, pl.Series, float]]:
        if (
            c.kind.is_code
            and not c.kind.is_id
            and (counts.height == 2 or (counts.height <= 20 and base <= FEW_POSITIVE))
        ):
            for v in reversed(counts["value"].to_list()):
                yield f"the value {v}", c.values == v, 0.0 if counts.height == 2 else 0.2
        if c.kind.is_single and counts["count"][0] >= c.rows / 2:
            usual = counts["value"][0]
            yield f"a value other than {usual}", c.values != usual, 0.0
        if c.missing >= 1 - MOST_USUAL:
            yield "a value that is not missing", c.values.is_not_null(), 0.0

    for what, rows, share in groups():
        labels = y.filter(rows.fill_null(value=False)).drop_nulls()
        if labels.len() >= max(FEWEST, share * positives) and mean(labels) == 1 and base ** labels.len() < CHANCE:
            return what
    return None


def as_second_label(c: Column, label: LabelGuess, *, is_first: bool = False) -> str:
    """Return the hint to learn a column of two values as a label, too, or nothing if it makes no label.

    is_first: the label needs the column, as a purchase needs a click; also found if (almost) all positive rows have it
    """
    other = label_of(c) if c.distinct == 2 else None
    if other is None or not other.is_binary:
        return ""

    def needs(one: LabelGuess, needed: LabelGuess) -> bool:
        return label.is_binary and mean(needed.values.filter(one.values == 1).drop_nulls() == 1) > 0.99

    names = {id(label): label.column.name, id(other): c.name}
    first, second = (other, label) if is_first or needs(label, other) else (label, other)
    settings = {names[id(x)]: {k: v for k, v in x.settings.items() if k != "column"} for x in (first, second)}
    if is_first or needs(second, first):
        settings[names[id(second)]]["only_if"] = names[id(first)]
    return f" To learn both, write labels: {flow(settings)}"


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
