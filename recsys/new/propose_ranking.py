"""Propose features and split of data with a label."""

import os
from pathlib import Path

import polars as pl

from recsys.data.features.blocks import LIST
from recsys.new.column_kinds import Column, ConstantKind, sql_name
from recsys.new.find_files import split_of
from recsys.new.gather import Gathered, files_answers
from recsys.new.known_names import NAMES, has_word, names_an_id_of
from recsys.new.label import LabelGuess, NumberGuess, are_grades
from recsys.new.leaks import AFTERWARDS, known_by_name, later_times, leaks, means_of_label, names_splits
from recsys.new.proposal import Proposal
from recsys.new.propose_features import features_of
from recsys.new.questions import Question
from recsys.new.roles import MAX_MISSING_TIMES, basket, copies, group_of, has_one, time_among
from recsys.new.sample import read_sample
from recsys.new.splits import split_at_random, split_by_files, split_by_groups, split_by_time
from recsys.new.statistics import mean

MAX_TESTS = 20  # files that are read to see whether they have labels


def propose_ranking(p: Proposal, label: LabelGuess, gathered: Gathered, root: Path) -> None:
    """Fill in features and split of data with a label.

    Args:
        p: the proposal, whose side tables are known.
    """
    group = group_of(p.columns, label)
    if group is not None:
        group.role, p.within, numbers = "group", group.name, label.column.numbers
        if are_grades(label.column) and numbers is not None:
            p.label = label = NumberGuess(column=label.column, values=numbers, reason=f"grades within a {group.name}")
    time = p.roles.time or _joined_time(p)
    used = [s for s in p.sides if s.features().inputs or any(c.role == "time" for c in s.columns)]
    p.unused += [(s.file, "no column of it makes a feature") for s in p.sides if s not in used]
    p.sides = used
    _leave_out_rows(p, label)
    order = basket(p.columns) if group is None else None
    p.columns = [c for c in p.columns if c.name != LIST]
    known_later = _known_later(p, label, gathered, time, order)
    p.features = features_of([*p.columns, *_joined_columns(p)], known_later, typed=p.typed)
    if p.sides:
        p.source["joins"] = [side.join() for side in p.sides]
    _leave_unlabelled(p, label.column, gathered, root)
    _set_split(p, gathered, root, time, group, order)


def _joined_columns(p: Proposal) -> list[Column]:
    return [c for side in p.sides for c in side.columns]


def _leave_out_rows(p: Proposal, label: LabelGuess) -> None:
    """Leave out rows without a label, which are events of other pages, and rows without an item if none is positive."""
    c, item = label.column, p.roles.item
    if c.missing:
        coded = c.code is not None and not c.nulls
        p.where[f"{sql_name(c.name)} <> {c.code:g}" if coded else f"{sql_name(c.name)} IS NOT NULL"] = "a label"
    elif item is not None and item.missing and not label.values.filter(item.values.is_null()).sum():
        p.leave_out_without([item], "an item")
    for other in p.columns if p.where else ():
        values = other.values.filter(label.values.is_not_null())
        if other is not c and not values.dtype.is_nested() and values.len() and values.n_unique() == 1:
            other.kind = ConstantKind(f"it is always {values[0]} in rows with a label")


def _known_later(
    p: Proposal, label: LabelGuess, gathered: Gathered, time: Column | None, order: Column | None
) -> dict[str, str]:
    """Return the columns that are known only after the label, and why; ask about those that may be."""
    side_keys = {side.key for side in p.sides}
    tested = {c.name for c in p.columns if gathered.untested and c.name not in gathered.untested}
    by_values, doubts_of_values = leaks(p.columns, label)
    by_names, doubts_of_names = known_by_name(p.columns, label, tested)
    known_later = dict.fromkeys(gathered.untested, f"the test file lacks it: {AFTERWARDS}")
    known_later |= {name: why for name, why in copies(p.columns).items() if name not in side_keys}
    if order is not None:
        known_later[order.name] = "it identifies rows that belong together; later rows have other values"
    known_later |= later_times(p.columns, time) | by_names | by_values | means_of_label(p.columns, p.sides, label)
    free = [c for c in [*p.columns, *_joined_columns(p)] if c.name not in known_later]
    if splits := names_splits(free):
        text = "; ".join(f"{c.name} names splits ({', '.join(c.examples(5))}): are they those to use?" for c in splits)
        guess = "no; to use them, write the rows of each into a file of its own, such as train.csv and test.csv"
        p.questions.append(Question(text, guess, key="split"))
        known_later |= {c.name: "it names the splits of whoever made the data" for c in splits}
    doubts = {name: why for name, why in (doubts_of_names | doubts_of_values).items() if name not in known_later}
    names = [n for n in doubts if n not in label.alternatives]
    if names:
        which = "; ".join(f"{name}: {doubts[name]}" for name in names[:4])
        text = f"{'is' if len(names) == 1 else 'are'} {', '.join(names)} known before {label.column.name}? {which}"
        p.questions.append(Question(text, "no, so no feature; if so, add a feature of this name", key="leak"))
    return known_later | {name: f"{why}: {AFTERWARDS}" for name, why in doubts.items()}


def _set_split(
    p: Proposal, gathered: Gathered, root: Path, time: Column | None, group: Column | None, order: Column | None
) -> None:
    """Split by the names of files, by time, by groups, by orders or at random: the first that the rows allow.

    The rows of a query or a display (group), and those of an order or a basket (order), must stay together.
    """
    split = split_by_files(root, gathered.files)
    if split is None:
        _ask_about_splits(p, gathered, root)
    divided = group is not None and (time is None or not has_one(group, time))
    if split is None and time is not None and not divided:
        split = split_by_time(time, p.label, p.time_column(time))
        p.split = split_at_random(f"too many rows have the same {time.name} to split by it")
        if split is not None:
            p.leave_out_without([time], "a time")
            if group is not None:
                split.why += f"; rows of one {group.name} have one {time.name}, so they stay together"
    if split is None and group is not None:
        rejected = "a split by time would divide them" if time is not None else "a random split would divide them"
        split = split_by_groups(group.name, f"rows of one {group.name} stay together; {rejected}")
    if split is None and order is not None:
        split = split_by_groups(order.name, f"rows of one {order.name} stay together")
    p.split = split or p.split


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


def _leave_unlabelled(p: Proposal, c: Column, gathered: Gathered, root: Path) -> None:
    """Leave out the files of test rows without a single label: their rows are to be predicted. c: the label"""
    tests = [f for f in gathered.files if split_of(f, root) == "test"]
    if not p.where or not 1 <= len(tests) <= MAX_TESTS or len(tests) == len(gathered.files):
        return
    unknown = [*c.nulls, *([] if c.code is None else [f"{c.code:g}"])]
    for f in tests:
        frame = read_sample([f], gathered.layout).frame
        if c.name in frame.columns:
            lacking = frame[c.name].is_null() | frame[c.name].cast(pl.String).is_in(unknown)
            if mean(lacking.fill_null(value=True)) == 1:
                gathered.files.remove(f)
                why = f"none of its rows has a {c.name}; predict them with recsys.predict"
                p.unused.append((os.path.relpath(f, root), why))


def _joined_time(p: Proposal) -> Column | None:
    """Return the time of the rows that a side table holds, as a column of the rows; None if none does.

    Only a table of events or displays holds it; the times of a user or an item, such as its release, are properties.
    """
    by_name = {c.name: c for c in p.columns}
    for side in p.sides:
        if not names_an_id_of(side.key, (*NAMES.queries, *NAMES.event_keys)) and by_name[side.key].role != "group":
            continue
        times = {c.name: c for c in side.columns if c.time is not None and not has_word(c.name, NAMES.other_times)}
        time = time_among([side.joined(c, by_name[side.key]) for c in times.values()])
        if time is not None and time.missing <= MAX_MISSING_TIMES:
            times[time.name].role = time.role = "time"
            return time
    return None
