"""Propose features and split of data with a label."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from recsys.data.raw.blocks import LIST
from recsys.new import choose_split as splits
from recsys.new.column_kinds import Column
from recsys.new.copies import basket, copies
from recsys.new.find_files import split_of
from recsys.new.gather import Gathered, files_answer
from recsys.new.group_keys import EVENT_KEYS, group_of, has_one, queries_of_grades
from recsys.new.known_names import has_word, names_an_id_of
from recsys.new.label import LabelGuess
from recsys.new.leaks import (
    AFTERWARDS,
    doubtful,
    later_times,
    leaks,
    means_of_label,
    suspects,
)
from recsys.new.outcomes import afterwards, names_splits, other_outcomes, perhaps_outcomes, predictions, written_with
from recsys.new.propose_features import features_of, sql_name
from recsys.new.questions import Question
from recsys.new.roles import OTHER_TIMES, time_among
from recsys.new.sample import read_sample
from recsys.new.statistics import mean
from recsys.new.yaml_text import flow

MOST_TESTS = 20  # files that are read to see whether they have labels, or that an answer names

if TYPE_CHECKING:
    from recsys.new.propose import Proposal


def propose_ranking(p: Proposal, gathered: Gathered, root: Path) -> None:
    """Fill in features and split of data with a label."""
    label, typed = p.label, gathered.layout.typed
    assert label is not None
    group = queries_of_grades(p.columns, label.column)
    if group is not None and label.column.numbers is not None:
        why = f"grades of the rows of a {group.name}"
        p.label = label = replace(label, values=label.column.numbers, kind="regression", at_least=None, reason=why)
    group = group or group_of(p.columns, label)
    if group is not None:
        group.role = "group"
    time = p.roles.time or _joined_time(p)
    used = [s for s in p.sides if s.has_features or any(c.role == "time" for c in s.columns)]
    p.unused += [(s.file, "no column of it makes a feature") for s in p.sides if s not in used]
    p.sides = used
    joined = [c for side in p.sides for c in side.columns]
    if label.column.missing:
        p.where = _with_label(label.column)
    elif (item := p.roles.item) is not None and item.missing and not label.values.filter(item.values.is_null()).sum():
        p.where = f"{sql_name(item.name)} IS NOT NULL"  # events of other pages, which are never positive
    if p.where is not None:
        for c in p.columns:
            _check_constant(c, label)
    known_later = dict.fromkeys(gathered.untested, "the test file lacks it: known only afterwards?")
    tested = {c.name for c in p.columns if gathered.untested and c.name not in gathered.untested}
    keys = {side.key for side in p.sides}
    known_later |= {name: why for name, why in copies(p.columns).items() if name not in keys}
    order = basket(p.columns) if group is None else None
    if order is not None:
        known_later[order.name] = "it identifies rows that belong together; later rows have other values"
    derive = p.features.derive
    p.columns = [c for c in p.columns if c.name != LIST]
    known_later = (
        written_with(p.columns, label, p.roles.item)
        | other_outcomes(p.columns, label, tested)
        | afterwards(p.columns, label)
        | later_times(p.columns, time)
        | known_later
        | leaks(p.columns, label)
    )
    known_later |= means_of_label(p.columns, p.sides, label)
    if label.family:
        every = flow({name: {} for name in (label.column.name, *label.family)})
        why = f"its name is like {label.column.name}: an outcome, too? To learn all, write labels: {every}"
        known_later |= dict.fromkeys(label.family, why)
    free = [c for c in p.columns if c.name not in known_later]
    known_later |= {c.name: f"its name is that of a model's prediction: {AFTERWARDS}" for c in predictions(free)}
    for c in names_splits([*free, *joined]):
        text = f"{c.name} names splits ({', '.join(c.examples(5))}): are they those to train and test on?"
        guess = "no; to use them, write the rows of each into a file of its own, such as train.csv and test.csv"
        p.questions.append(Question(text, guess))
        known_later[c.name] = "it names the splits of whoever made the data"
    known_later |= _asked_outcomes(p, [c for c in p.columns if c.name not in known_later])
    free = [c for c in p.columns if c.name not in known_later]
    known_later |= _asked(p, doubtful(free, label) | suspects(free, label))
    p.features = features_of([*p.columns, *joined], known_later, typed=typed)
    p.features.derive = derive | p.features.derive
    if group is not None:
        p.within = group.name
    if p.sides:
        p.source["joins"] = [side.join() for side in p.sides]
    _leave_unlabelled(p, gathered, root)
    found = splits.by_files(root, gathered.files)
    if found is None and (odd := _of_no_split(gathered.files, root)):
        p.questions.append(odd)
    divided = group is not None and (time is None or not has_one(group, time))
    if found is None and time is not None and not divided:
        found = splits.by_time(time, label, p.time_column(time, typed=typed))
        p.split = splits.at_random(f"too many rows have the same {time.name} to split by it")
        if found is not None and group is not None:
            found.why += f"; rows of one {group.name} have one {time.name}, so they stay together"
    if found is None and group is not None:
        other = "a split by time would divide them" if time is not None else "a random split would divide them"
        found = splits.by_groups(group.name, f"rows of one {group.name} stay together; {other}")
    if found is None and order is not None:
        found = splits.by_groups(order.name, f"rows of one {order.name} stay together")
    p.split = found or p.split


def _asked(p: Proposal, doubts: Mapping[str, str]) -> dict[str, str]:
    """Ask whether columns are known before the label, and return why they are left out. doubts: why, by column"""
    assert p.label is not None
    for name, why in doubts.items():
        text = f"is {name} known before {p.label.column.name}? {why}"
        p.questions.append(Question(text, "no, so it is no feature"))
    return {name: f"{why}: {AFTERWARDS}" for name, why in doubts.items()}


def _leave_unlabelled(p: Proposal, gathered: Gathered, root: Path) -> None:
    """Leave out the files of test rows none of which has a label: they are to be predicted."""
    assert p.label is not None
    c, tests = p.label.column, [f for f in gathered.files if split_of(f, root) == "test"]
    if p.where is None or not 1 <= len(tests) <= MOST_TESTS or len(tests) == len(gathered.files):
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
    named = [f for own in by_split.values() for f in own]
    text = f"{', '.join(os.path.relpath(f, root) for f in rest[:3])} belongs to no split; are its rows to be used?"
    return Question(text, "yes, in a split of all rows", (files_answer(named),) if len(named) <= MOST_TESTS else ())


def _asked_outcomes(p: Proposal, free: Sequence[Column]) -> dict[str, str]:
    """Return the columns that may be other outcomes of the rows, and ask about them."""
    assert p.label is not None
    found = perhaps_outcomes(free, p.label, p.roles.user, p.roles.item)
    why = "neither the user nor the item has always the same value"
    if names := [n for n in found if n not in p.label.alternatives]:
        text = f"{'is' if len(names) == 1 else 'are'} {' and '.join(names)} known before {p.label.column.name}? {why}"
        p.questions.append(
            Question(text, f"no, so {'it is no feature' if len(names) == 1 else 'they are no features'}")
        )
    return dict.fromkeys(found, f"{why}: {AFTERWARDS}")


def _check_constant(c: Column, label: LabelGuess) -> None:
    """Leave a column out that has one value in all rows with a label."""
    own = c.values.filter(label.values.is_not_null())
    if c is not label.column and not own.dtype.is_nested() and own.len() and own.n_unique() == 1:
        c.kind, c.reason = "constant", f"it is always {own[0]} in rows with a label"


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
        own = {c.name: c for c in side.columns if c.kind == "time" and not has_word(c.name, OTHER_TIMES)}
        if side.keys is not None and own:
            time = time_among([side.joined(c, by_name[side.key]) for c in own.values()])
            if time is not None:
                own[time.name].role = time.role = "time"
                return time
    return None
