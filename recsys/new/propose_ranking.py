"""Propose features and split of data with a label."""

import os
from pathlib import Path

from recsys.new.column_kinds import Column, UnusedKind, sql_name
from recsys.new.find_files import split_of
from recsys.new.gather import Gathered, files_answers
from recsys.new.known_names import NAMES, names_an_id_of
from recsys.new.label import LabelGuess
from recsys.new.leaks import AFTERWARDS, doubtful_names, later_times, leaks, names_splits
from recsys.new.proposal import Proposal
from recsys.new.propose_features import features_of
from recsys.new.questions import Question
from recsys.new.splits import split_at_random, split_by_files, split_by_groups, split_by_time
from recsys.new.yaml_text import flow

MIN_GROUPS = 20
MAX_GROUP = 200  # rows of a query, a display or an order


def propose_ranking(p: Proposal, label: LabelGuess, gathered: Gathered, root: Path) -> None:
    """Fill in features and split of data with a label."""
    _leave_out_rows(p, label)
    known_later = _known_later(p, label, gathered)
    group = _group_of(p)
    if group is not None:
        known_later[group.name] = "it identifies rows that belong together; later rows have other values"
    p.features = features_of(p.columns, known_later, typed=p.typed)
    split, time = split_by_files(root, gathered.files), p.roles.time
    if split is None:
        _ask_about_splits(p, gathered, root)
    if split is None and group is not None:
        split = split_by_groups(group.name, f"rows of one {group.name} stay together")
    elif split is None and time is not None:
        split = split_by_time(time, p.label, p.time_column(time))
        if split is not None:
            p.leave_out_without([time], "a time")
        p.split = split_at_random(f"too many rows have the same {time.name} to split by it")
    p.split = split or p.split


def _leave_out_rows(p: Proposal, label: LabelGuess) -> None:
    """Leave out rows without a label, which are events of other pages, and rows without an item if none is positive."""
    c, item = label.column, p.roles.item
    if c.missing:
        p.where[f"{sql_name(c.name)} IS NOT NULL"] = "a label"
    elif item is not None and item.missing and not label.values.filter(item.values.is_null()).sum():
        p.leave_out_without([item], "an item")
    for other in p.columns if p.where else ():
        values = other.values.filter(label.values.is_not_null())
        if other is not c and not values.dtype.is_nested() and values.len() and values.n_unique() == 1:
            other.kind = UnusedKind(f"it is always {values[0]} in rows with a label")


def _known_later(p: Proposal, label: LabelGuess, gathered: Gathered) -> dict[str, str]:
    """Return the columns that are known only after the label, and why; ask about those that may be."""
    tested = {c.name for c in p.columns if gathered.untested and c.name not in gathered.untested}
    by_values, doubts_of_values = leaks(p.columns, label)
    known_later = dict.fromkeys(gathered.untested, f"the test file lacks it: {AFTERWARDS}")
    known_later |= later_times(p.columns, p.roles.time) | by_values
    if splits := names_splits([c for c in p.columns if c.name not in known_later]):
        text = "; ".join(f"{c.name} names splits ({', '.join(c.examples(5))}): are they those to use?" for c in splits)
        guess = "no; to use them, write the rows of each into a file of its own, such as train.csv and test.csv"
        p.questions.append(Question(text, guess, key="split"))
        known_later |= {c.name: "it names the splits of whoever made the data" for c in splits}
    maybe = [c.name for c in p.columns if c.distinct == 2 and c.name in label.alternatives]
    known_later |= dict.fromkeys(maybe, f"it may be the label: {AFTERWARDS}")
    doubts = doubtful_names(p.columns, label, tested) | doubts_of_values
    if doubts := {name: why for name, why in doubts.items() if name not in known_later}:
        which = "; ".join(f"{name}: {why}" for name, why in [*doubts.items()][:4])
        text = f"{'is' if len(doubts) == 1 else 'are'} {', '.join(doubts)} known before {label.column.name}? {which}"
        p.questions.append(Question(text, "no, so no feature; if so, add a feature of this name", key="leak"))
    return known_later | {name: f"{why}: {AFTERWARDS}" for name, why in doubts.items()}


def _group_of(p: Proposal) -> Column | None:
    """Return the column of queries, displays or orders, by its name, which must not be divided, and ask what it is for.

    Few rows have one value of it.
    """
    names = (*NAMES.queries, *NAMES.event_keys)
    for c in p.columns:
        is_named = c.role == "" and c.kind.is_single and names_an_id_of(c.name, names)
        if is_named and MIN_GROUPS < c.distinct < c.rows <= MAX_GROUP * c.distinct:
            group = flow({"group": {"by": c.name, "together": True}})
            text = f"are the rows of one {c.name} shown together, and compared with each other?"
            p.questions.append(Question(text, f"no; if so, write {group[1:-1]}", key="group"))
            return c
    return None


def _ask_about_splits(p: Proposal, gathered: Gathered, root: Path) -> None:
    """Ask whether the files that belong to no split are to be used, if others are named as test rows."""
    by_split: dict[str | None, list[Path]] = {}
    for f in gathered.files:
        by_split.setdefault(split_of(f, root), []).append(f)
    rest = by_split.pop(None, [])
    if rest and "test" in by_split:
        named = [f for files_of_split in by_split.values() for f in files_of_split]
        some = ", ".join(os.path.relpath(f, root) for f in rest[:3])
        text = f"{some} belongs to no split, beside {named[0].name}; are its rows to be used?"
        sets = [named] if "train" in by_split else [rest]
        p.questions.append(Question(text, "yes, in a split of all rows", files_answers(sets), key="files"))
