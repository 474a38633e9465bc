"""Find the columns that are known only after the label: by one rule about their values, and by their names."""

from collections.abc import Collection, Sequence

import polars as pl

from recsys.new.column_kinds import MAX_GRADES, Column, UniqueKind, counts_of, mean
from recsys.new.find_files import ROLES
from recsys.new.known_names import NAMES, has_word, plain, rank_of
from recsys.new.label import LabelGuess, are_answers
from recsys.new.roles import determines

MIN_LEAK = 0.99  # AUC of a single column from which it gives the label away
MIN_SUSPECT = 0.93  # AUC of a single column from which it is a question whether it is known before the label
MIN_ROWS = 20  # of each class for which an AUC means anything, and with a value that implies the label
MAX_CHANCE = 1e-6  # probability that all rows of a value are alike by chance, below which the value implies the label
MAX_KINDS = 5  # different values of a column that names splits
AFTERWARDS = "known only afterwards?"


def leaks(columns: Sequence[Column], label: LabelGuess) -> tuple[dict[str, str], dict[str, str]]:
    """Return the columns that give the label away, and those of which it is a question, each with the reason.

    The rule: a column alone orders the rows as the label does (its AUC is 0.99 or more), or has a value, or lacks one,
    in rows of one kind only. An AUC of 0.93 or more, and rows that may be few by chance, are a question.
    """
    y, found, doubts = label.values, dict[str, str](), dict[str, str]()
    if not label.is_binary:  # whether a class is the most frequent one, or a number is in the upper half
        y = ((y == y.drop_nulls().mode().sort()[0]) if label.classes else (y > y.median())).cast(pl.Float64)
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


def doubtful_names(columns: Sequence[Column], label: LabelGuess, tested: Collection[str]) -> dict[str, str]:
    """Return the columns that may follow the label by their names, or as properties of neither user nor item, and why.

    Args:
        tested: the columns that a file of test rows has, which are known before.
    """
    keys, doubts = [c for c in columns if c.role in ("user", "item")], dict[str, str]()
    free = [c for c in columns if c is not label.column and not c.role and c.name not in tested]
    for c in (c for c in free if c.kind.compares and (c.time is not None or not isinstance(c.kind, UniqueKind))):
        unlikely = c.is_partition or c.name.startswith("column_") or c.name[-1:].isdigit()
        takes = c.numbers is not None and has_word(c.name, NAMES.durations)
        may_follow = takes or (c.distinct == 2 and are_answers(c) and not has_word(c.name, NAMES.context))
        is_named = _is_named_later(c, label)
        if not is_named and (unlikely or not may_follow or not keys):
            continue
        if not any(determines(key, c) for key in keys):
            doubts[c.name] = "by its name" if is_named else "neither the user nor the item has always the same value"
    return doubts


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


def _is_named_later(c: Column, label: LabelGuess) -> bool:
    """Return whether a name is that of another outcome, of a count or a time of it, of a rating or of what is said."""
    form, is_number, parent = outcome_form(c.name), c.numbers is not None, label.column.name.rpartition(".")[0]
    counted = form.removeprefix("n_").removeprefix("num_").removesuffix("_count").removesuffix("s")
    stem = label.column.name.rpartition("_")[0]  # as review_taste beside review_overall
    is_part = stem not in ("", "column") and c.name.startswith(f"{stem}_") and label.column.distinct > 2
    is_beside = parent != "" and c.name.startswith(f"{parent}.")  # as outcome.seen beside outcome.clicked
    if has_word(c.name, (*NAMES.after, *NAMES.weights)) or form in NAMES.spent or is_part or is_beside:
        return True
    if not is_number:
        return form in NAMES.outcomes and c.distinct == 2
    names_outcome = {form, counted} & {*NAMES.outcomes} and c.distinct <= MAX_GRADES
    return bool(names_outcome) or rank_of(c.name, NAMES.ratings) is not None or has_word(c.name, NAMES.watched)


def _auc_of(c: Column, y: pl.Series, picked: pl.Series) -> float:
    """Return the AUC of a column alone: of the mean label by group, as on the other half of the rows."""
    truth = y.filter(picked)
    frame = pl.DataFrame({"code": c.kind.groups(c).filter(picked), "y": truth}).with_row_index("i")
    base = mean(truth)
    fit, held_out = frame.filter(pl.col("i") % 2 == 0), frame.filter(pl.col("i") % 2 == 1)
    means = fit.group_by("code").agg(((pl.col("y").sum() + base) / (pl.len() + 1)).alias("p"))
    scored = held_out.join(means, on="code", how="left", nulls_equal=True, maintain_order="left")
    positives = float(scored["y"].sum())
    negatives = scored.height - positives
    ranks = float((scored["p"].fill_null(base).rank("average") * scored["y"]).sum())
    return (ranks - positives * (positives + 1) / 2) / (positives * negatives) if positives and negatives else 0.5
