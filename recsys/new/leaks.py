"""Find the columns that are known only after the label: by one rule about their values, and by their names."""

from collections.abc import Collection, Sequence

import polars as pl

from recsys.new.column_kinds import Column, ListKind
from recsys.new.find_files import ROLES
from recsys.new.known_names import NAMES, has_word, plain, rank_of, words
from recsys.new.label import LabelGuess, are_answers
from recsys.new.roles import determines
from recsys.new.statistics import counts_of, mean

MIN_LEAK = 0.99  # AUC of a single column from which it gives the label away
MIN_SUSPECT = 0.93  # AUC of a single column from which it is a question whether it is known before the label
MIN_ROWS = 20  # of each class for which an AUC means anything, and with a value that implies the label
MAX_CHANCE = 1e-6  # probability that all rows of a value are alike by chance, below which the value implies the label
MAX_KINDS = 5  # different values of an outcome, and of a column that names splits
AFTERWARDS = "known only afterwards?"
SURE_RATINGS = tuple(n for n in NAMES.ratings if n not in ("score", "note", "nota", "vote", "grade", "rate", "star"))


def leaks(columns: Sequence[Column], label: LabelGuess) -> tuple[dict[str, str], dict[str, str]]:
    """Return the columns that give the label away, and those of which it is a question, each with the reason.

    The rule: a column alone orders the rows as the label does (its AUC is 0.99 or more), or has a value, or lacks one,
    in rows of one kind only. An AUC of 0.93 or more, and rows that may be few by chance, are a question.
    """
    y, found, doubts = _binary(label), dict[str, str](), dict[str, str]()
    is_rare = min(mean(y), 1 - mean(y)) * y.drop_nulls().len() < MIN_ROWS
    step = max(y.len() * len(columns) // 4_000_000, 1)
    picked = y.is_not_null() & (pl.int_range(y.len(), eager=True) % step == 0)
    comparable = [c for c in columns if c is not label.column and c.kind.compares and not c.values.dtype.is_nested()]
    for c in comparable:
        auc = 0.0 if is_rare else _auc_of(c, y, picked)
        what, is_sure = _one_sided(c, y)
        if auc >= MIN_LEAK and (label.is_binary or label.classes):
            found[c.name] = f"it alone predicts the label (almost) perfectly: {AFTERWARDS}"
        elif what and is_sure and not is_rare:
            found[c.name] = f"{what}: {AFTERWARDS}"
        elif what and not is_sure and not c.role:
            doubts[c.name] = what
        elif auc >= MIN_SUSPECT and not c.role and not c.kind.is_id:
            doubts[c.name] = f"it alone orders the rows with an AUC of {auc:.2f}"
    return found, doubts


def known_by_name(
    columns: Sequence[Column], label: LabelGuess, tested: Collection[str]
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the columns whose names are those of what follows the label, and those of which it is a question.

    Args:
        tested: the columns that a file of test rows has, which are known before.
    """
    keys = [c for c in columns if c.role in ("user", "item")]
    found, doubts = dict[str, str](), dict[str, str]()
    for c in (c for c in columns if c is not label.column and not c.role and c.name not in tested):
        if rank_of(c.name, NAMES.weights) is not None and c.numbers is not None:
            found[c.name] = f"a weight of rows, by its name; to use it, write weight: {{column: {c.name}}}"
        elif _follows(c, label):
            found[c.name] = f"its name is that of what follows {label.column.name}: {AFTERWARDS}"
        elif any(determines(key, c) for key in keys):
            continue  # a property of the user or the item
        elif _is_said(c, label, has_keys=bool(keys)):
            found[c.name] = f"its name is that of what a user says or does with {label.column.name}: {AFTERWARDS}"
        elif keys and _may_follow(c):
            doubts[c.name] = "neither the user nor the item has always the same value"
    return found, doubts


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
        if are_later.len() >= MIN_ROWS and mean(are_later) >= 0.9:
            later[c.name] = f"it is later than {time.name}: {AFTERWARDS}"
    return later


def names_splits(columns: Sequence[Column]) -> list[Column]:
    """Return the columns whose values are names of splits, such as train and test."""
    few = [c for c in columns if not c.role and c.values.dtype == pl.String and 2 <= c.distinct <= MAX_KINDS]
    known = {word for names in ROLES.values() for word in names} | {"prior"}
    return [c for c in few if {str(v).strip().lower() for v in c.values.drop_nulls().unique()} <= known]


def outcome_form(name: str) -> str:
    """Return the words of a name without a unit of time."""
    return plain(name).removesuffix("_ms").removesuffix("_seconds").removesuffix("_s")


def _binary(label: LabelGuess) -> pl.Series:
    """Return a label of 0 and 1: of classes, whether it is the most frequent one; of numbers, a half of the rows."""
    y = label.values
    if label.is_binary:
        return y
    if label.classes:
        return (y == y.drop_nulls().mode().sort()[0]).cast(pl.Float64)
    return (y > y.median()).cast(pl.Float64)


def _one_sided(c: Column, y: pl.Series) -> tuple[str, bool]:
    """Return which rows of a column are all positive, or all negative and most negative ones, and whether it is sure.

    The rows with a value and without one, with the usual value of a column and with others, are looked at.
    """
    base, counts = mean(y), counts_of(c.values)
    if base in (0, 1) or not counts.height:
        return "", False
    sides = [("a value", c.values.is_not_null()), ("no value", c.values.is_null())] if c.missing else []
    if c.kind.is_single and counts["count"][0] >= c.rows / 2 and counts.height > 1:
        usual = counts["value"][0]
        is_usual = (c.values == usual).fill_null(value=False)
        sides += [(f"the value {usual}", is_usual), (f"another value than {usual}", ~is_usual & c.values.is_not_null())]
    for what, rows in sides:
        labels = y.filter(rows).drop_nulls()
        if labels.len() < 2 or 0 < mean(labels) < 1:
            continue
        is_positive = mean(labels) == 1
        chance = (base if is_positive else 1 - base) ** labels.len()
        if not is_positive and labels.len() < 0.5 * (1 - base) * y.len():
            continue
        if chance < MAX_CHANCE and labels.len() >= MIN_ROWS:
            return f"all {labels.len():,} rows with {what} are {'positive' if is_positive else 'negative'}", True
        if is_positive and chance < 0.05 and c.distinct <= MAX_KINDS:
            return f"all {labels.len():,} rows with {what} are positive", False
    return "", False


def _follows(c: Column, label: LabelGuess) -> bool:
    """Return whether a name is that of another outcome, of how long it took, of its end, or of a prediction of it."""
    form, is_number, parent = outcome_form(c.name), c.numbers is not None, label.column.name.rpartition(".")[0]
    few = c.distinct <= (MAX_KINDS if is_number else 2)
    lasts = is_number and has_word(c.name, NAMES.watched) and has_word(c.name, NAMES.lasting)
    is_over = has_word(c.name, NAMES.after) or (has_word(c.name, NAMES.reasons) and c.missing > 0.2)
    is_beside = parent != "" and c.name.startswith(f"{parent}.")  # as outcome.seen beside outcome.clicked
    is_score = has_word(c.name, NAMES.models) and has_word(c.name, ("score", "scores"))
    is_rate = "p" in words(c.name) and has_word(c.name, ("ctr", "cvr", "click", "conversion"))
    is_prediction = is_number and (is_score or is_rate or has_word(c.name, NAMES.predictions))
    return (form in NAMES.outcomes and few) or form in NAMES.spent or lasts or is_over or is_beside or is_prediction


def _is_said(c: Column, label: LabelGuess, *, has_keys: bool) -> bool:
    """Return whether a name is that of counted outcomes, of a rating, or of what is written with one."""
    form = outcome_form(c.name)
    counted = form.removeprefix("n_").removeprefix("num_").removesuffix("_count").removesuffix("s")
    if rank_of(c.name, SURE_RATINGS) is not None or has_word(c.name, NAMES.surveys):
        return True
    if counted != form and counted in NAMES.outcomes and c.numbers is not None:
        return True
    is_text = c.values.dtype == pl.String or isinstance(c.kind, ListKind)
    is_written = is_text and has_word(c.name, NAMES.written) and words(c.name)[-1:] != ["type"]  # body type
    stem = label.column.name.rpartition("_")[0]  # review_overall and review_taste
    is_rating = rank_of(label.column.name, NAMES.ratings) is not None or has_word(label.column.name, ("overall",))
    return has_keys and is_rating and (is_written or (stem != "" and c.name.startswith(f"{stem}_")))


def _may_follow(c: Column) -> bool:
    """Return whether a column of yes and no, or of how long something took, may be another outcome."""
    if c.is_partition or c.name.startswith("column_") or c.name[-1:].isdigit() or has_word(c.name, NAMES.context):
        return False
    return (c.distinct == 2 and are_answers(c)) or (c.numbers is not None and has_word(c.name, NAMES.durations))


def _auc_of(c: Column, y: pl.Series, picked: pl.Series) -> float:
    """Return the AUC of a column alone: of the mean label by group, as on the other half of the rows."""
    truth = y.filter(picked)
    frame = pl.DataFrame({"code": c.kind.groups(c).filter(picked), "y": truth}).with_row_index("i")
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
