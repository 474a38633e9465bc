"""Propose features and split of data with a label."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from recsys.data.features.blocks import LIST
from recsys.new import choose_split as splits
from recsys.new.column_kinds import Column
from recsys.new.copies import basket, copies
from recsys.new.find_files import split_of
from recsys.new.gather import Gathered, files_answer
from recsys.new.group_keys import EVENT_KEYS, group_of, has_one, queries_of_grades
from recsys.new.known_names import has_word, names_an_id_of
from recsys.new.label import LabelGuess
from recsys.new.leaks import AFTERWARDS, doubtful, later_times, leaks, means_of_label, suspects
from recsys.new.outcomes import afterwards, names_splits, other_outcomes, perhaps_outcomes, predictions, written_with
from recsys.new.propose_features import features_of, sql_name
from recsys.new.questions import Question
from recsys.new.roles import COMPLETE, OTHER_TIMES, time_among
from recsys.new.sample import read_sample
from recsys.new.statistics import mean
from recsys.new.yaml_text import flow

MOST_TESTS = 20  # files that are read to see whether they have labels, or that an answer names

if TYPE_CHECKING:
    from recsys.new.propose import Proposal


def propose_ranking(p: Proposal, gathered: Gathered, root: Path) -> None:
    """Fill in features and split of data with a label.

    Args:
        p: the proposal, whose label and side tables are known.
        gathered: the files of the rows.
        root: the folder of the files.
    """
    typed = gathered.layout.typed
    group = _group(p)
    time = p.roles.time or _joined_time(p)
    _drop_useless_sides(p)
    _set_condition(p)
    order = basket(p.columns) if group is None else None
    known_later = _known_later(p, gathered, time, order)
    p.columns = [c for c in p.columns if c.name != LIST]
    known_later |= _ask_about(p, known_later)
    derive = p.features.derive
    p.features = features_of([*p.columns, *_joined_columns(p)], known_later, typed=typed)
    p.features.derive = derive | p.features.derive
    if group is not None:
        p.within = group.name
    if p.sides:
        p.source["joins"] = [side.join() for side in p.sides]
    _leave_unlabelled(p, gathered, root)
    _set_split(p, gathered, root, time, group, order)


def _group(p: Proposal) -> Column | None:
    """Return the column of queries or displays, and set its role; grades within queries become a regression label."""
    assert p.label is not None
    grades = p.label.column.numbers
    group = queries_of_grades(p.columns, p.label.column)
    if group is not None and grades is not None:
        why = f"grades of the rows of a {group.name}"
        p.label = replace(p.label, values=grades, kind="regression", at_least=None, reason=why)
    group = group or group_of(p.columns, p.label)
    if group is not None:
        group.role = "group"
    return group


def _drop_useless_sides(p: Proposal) -> None:
    """Leave out the side tables that add neither a feature nor the time of the rows."""
    used = [s for s in p.sides if s.has_features or any(c.role == "time" for c in s.columns)]
    p.unused += [(s.file, "no column of it makes a feature") for s in p.sides if s not in used]
    p.sides = used


def _joined_columns(p: Proposal) -> list[Column]:
    return [c for side in p.sides for c in side.columns]


def _set_condition(p: Proposal) -> None:
    """Leave out rows without a label, or without an item: such rows are events of other pages, and never positive."""
    label, item = p.label, p.roles.item
    assert label is not None
    if label.column.missing:
        p.where[_with_label(label.column)] = "a label"
    elif item is not None and item.missing and not label.values.filter(item.values.is_null()).sum():
        p.leave_out_without([item], "an item")
    if p.where:
        for c in p.columns:
            _check_constant(c, label)


def _known_later(p: Proposal, gathered: Gathered, time: Column | None, order: Column | None) -> dict[str, str]:
    """Return the columns that are known only after the label, by their names and values, and why.

    Args:
        p: the proposal.
        gathered: the files of the rows; a file of test rows may lack columns.
        time: the time of the rows.
        order: the column that identifies an order or a basket of several rows.
    """
    label = p.label
    assert label is not None
    side_keys = {side.key for side in p.sides}
    by_files = dict.fromkeys(gathered.untested, "the test file lacks it: known only afterwards?")
    tested = {c.name for c in p.columns if gathered.untested and c.name not in gathered.untested}
    by_files |= {name: why for name, why in copies(p.columns).items() if name not in side_keys}
    if order is not None:
        by_files[order.name] = "it identifies rows that belong together; later rows have other values"
    columns = [c for c in p.columns if c.name != LIST]
    known_later = (
        written_with(columns, label, p.roles.item)
        | other_outcomes(columns, label, tested)
        | afterwards(columns, label)
        | later_times(columns, time)
        | by_files
        | leaks(columns, label)
        | means_of_label(columns, p.sides, label)
    )
    if label.family:
        label_settings = flow({name: {} for name in (label.column.name, *label.family)})
        why = f"its name is like {label.column.name}: an outcome, too? To learn all, write labels: {label_settings}"
        known_later |= dict.fromkeys(label.family, why)
    free = [c for c in columns if c.name not in known_later]
    known_later |= {c.name: f"its name is that of a model's prediction: {AFTERWARDS}" for c in predictions(free)}
    return known_later


def _ask_about(p: Proposal, known_later: Mapping[str, str]) -> dict[str, str]:
    """Ask about the columns that may be known only after the label, and return them and why they are left out."""
    assert p.label is not None
    asked: dict[str, str] = {}

    def free() -> list[Column]:
        return [c for c in p.columns if c.name not in known_later and c.name not in asked]

    for c in names_splits([*free(), *_joined_columns(p)]):
        text = f"{c.name} names splits ({', '.join(c.examples(5))}): are they those to train and test on?"
        guess = "no; to use them, write the rows of each into a file of its own, such as train.csv and test.csv"
        p.questions.append(Question(text, guess))
        asked[c.name] = "it names the splits of whoever made the data"
    asked |= _asked_outcomes(p, free())
    asked |= _asked(p, doubtful(free(), p.label) | suspects(free(), p.label))
    return asked


def _set_split(
    p: Proposal, gathered: Gathered, root: Path, time: Column | None, group: Column | None, order: Column | None
) -> None:
    """Split by the names of files, by time, by groups, by orders or at random: the first that the rows allow.

    Args:
        p: the proposal.
        gathered: the files of the rows.
        root: the folder of the files.
        time: the time of the rows.
        group: the column of queries or displays, whose rows must stay together.
        order: the column of orders or baskets, whose rows must stay together.
    """
    split = splits.by_files(root, gathered.files)
    if split is None and (question := _of_no_split(gathered.files, root)):
        p.questions.append(question)
    divided = group is not None and (time is None or not has_one(group, time))
    if split is None and time is not None and not divided:
        split = splits.by_time(time, p.label, p.time_column(time, typed=gathered.layout.typed))
        p.split = splits.at_random(f"too many rows have the same {time.name} to split by it")
        if split is not None:
            p.leave_out_without([time], "a time")
        if split is not None and group is not None:
            split.why += f"; rows of one {group.name} have one {time.name}, so they stay together"
    if split is None and group is not None:
        rejected = "a split by time would divide them" if time is not None else "a random split would divide them"
        split = splits.by_groups(group.name, f"rows of one {group.name} stay together; {rejected}")
    if split is None and order is not None:
        split = splits.by_groups(order.name, f"rows of one {order.name} stay together")
    p.split = split or p.split


def _asked(p: Proposal, doubts: Mapping[str, str]) -> dict[str, str]:
    """Ask whether columns are known before the label, and return why they are left out. doubts: why, by column"""
    assert p.label is not None
    for name, why in doubts.items():
        text = f"is {name} known before {p.label.column.name}? {why}"
        p.questions.append(Question(text, "no, so it is no feature"))
    return {name: f"{why}: {AFTERWARDS}" for name, why in doubts.items()}


def _leave_unlabelled(p: Proposal, gathered: Gathered, root: Path) -> None:
    """Leave out the files of test rows without a single label: their rows are to be predicted."""
    assert p.label is not None
    c, tests = p.label.column, [f for f in gathered.files if split_of(f, root) == "test"]
    if not p.where or not 1 <= len(tests) <= MOST_TESTS or len(tests) == len(gathered.files):
        return
    for f in tests:
        frame = read_sample([f], gathered.layouts.get(f, gathered.layout)).frame
        if c.name not in frame.columns:
            continue
        unknown = [str(v) for v in (*c.nulls, *(() if c.code is None else (f"{c.code:g}",)))]
        if mean((frame[c.name].is_null() | frame[c.name].cast(pl.String).is_in(unknown)).fill_null(value=True)) == 1:
            gathered.files.remove(f)
            why = f"none of its rows has a {c.name}; predict them with recsys.predict"
            p.unused.append((os.path.relpath(f, root), why))


def _of_no_split(files: Sequence[Path], root: Path) -> Question | None:
    """Return a question if most files belong to a split by their names, and a few do not."""
    by_split: dict[str | None, list[Path]] = {}
    for f in files:
        by_split.setdefault(split_of(f, root), []).append(f)
    rest = by_split.pop(None, [])
    if not rest or not {"train", "test"} <= {*by_split} or len(rest) > len(files) / 2:
        return None
    named = [f for files_of_split in by_split.values() for f in files_of_split]
    text = f"{', '.join(os.path.relpath(f, root) for f in rest[:3])} belongs to no split; are its rows to be used?"
    return Question(text, "yes, in a split of all rows", (files_answer(named),) if len(named) <= MOST_TESTS else ())


def _asked_outcomes(p: Proposal, free: Sequence[Column]) -> dict[str, str]:
    """Return the columns that may be other outcomes of the rows, and ask about them."""
    assert p.label is not None
    outcomes = perhaps_outcomes(free, p.label, p.roles.user, p.roles.item)
    why = "neither the user nor the item has always the same value"
    if names := [n for n in outcomes if n not in p.label.alternatives]:
        text = f"{'is' if len(names) == 1 else 'are'} {' and '.join(names)} known before {p.label.column.name}? {why}"
        p.questions.append(
            Question(text, f"no, so {'it is no feature' if len(names) == 1 else 'they are no features'}")
        )
    return dict.fromkeys(outcomes, f"{why}: {AFTERWARDS}")


def _check_constant(c: Column, label: LabelGuess) -> None:
    """Leave a column out that has one value in all rows with a label."""
    values = c.values.filter(label.values.is_not_null())
    if c is not label.column and not values.dtype.is_nested() and values.len() and values.n_unique() == 1:
        c.kind, c.reason = "constant", f"it is always {values[0]} in rows with a label"


def _with_label(label: Column) -> str:
    """Return the condition of rows with a label."""
    name = sql_name(label.name)
    return f"{name} <> {label.code:g}" if label.code is not None and not label.nulls else f"{name} IS NOT NULL"


def _joined_time(p: Proposal) -> Column | None:
    """Return the time of the rows that a side table holds, as a column of the rows; None if none does.

    Only a table of events or displays holds it; the times of a user or an item, such as its release, are properties.
    """
    by_name = {c.name: c for c in p.columns}
    for side in p.sides:
        if not names_an_id_of(side.key, EVENT_KEYS) and by_name[side.key].role != "group":
            continue
        times = {c.name: c for c in side.columns if c.kind == "time" and not has_word(c.name, OTHER_TIMES)}
        if side.keys is not None and times:
            time = time_among([side.joined(c, by_name[side.key]) for c in times.values()])
            if time is not None and time.missing <= COMPLETE:
                times[time.name].role = time.role = "time"
                return time
    return None
