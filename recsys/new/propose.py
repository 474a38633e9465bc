"""Look at files and propose the config of a data set."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import polars as pl

from recsys.cli.console import say
from recsys.data.raw.blocks import LIST
from recsys.data.raw.storage import partitions
from recsys.errors import NeedsAnswer, UserError
from recsys.new import choose_split as splits
from recsys.new import label as labels
from recsys.new.choose_split import Split
from recsys.new.column_kinds import Column, column_of, columns_of, count_partitions
from recsys.new.copies import (
    MOSTLY_KNOWN,
    basket,
    copies,
    elements_of,
    set_ids_of_items,
    set_ids_of_lists,
    set_lists_of_items,
)
from recsys.new.doubts import questions_of
from recsys.new.explode import Exploded, explode
from recsys.new.find_files import find, split_of
from recsys.new.gather import Gathered, files_answer, gather
from recsys.new.group_keys import EVENT_KEYS, group_of, has_one, queries_of_grades
from recsys.new.known_names import ITEMS, LABELS, USERS, has_word, names_an_id_of, rank_of
from recsys.new.label import LabelGuess
from recsys.new.leaks import (
    AFTERWARDS,
    afterwards,
    doubtful,
    later_times,
    leaks,
    means_of_label,
    names_splits,
    other_outcomes,
    perhaps_outcomes,
    predictions,
    suspects,
    written_with,
)
from recsys.new.missing_codes import set_codes
from recsys.new.propose_features import Features, features_of, sql_name, time_sql
from recsys.new.questions import Answers, Question, typed
from recsys.new.roles import OTHER_TIMES, Roles, assign, likely_ids, set_item, time_among
from recsys.new.rows_within import check_rows_within
from recsys.new.sample import Sample, read_sample
from recsys.new.sides import Side, find_sides, outcomes_of
from recsys.new.source import TEXT, rename_columns, source_of
from recsys.new.statistics import mean, quantile
from recsys.new.yaml_text import flow

MOST_TESTS = 20  # files that are read to see whether they have labels, or that an answer names
FEWEST_ITEMS = 30  # classes that may be items
WIDE = 30  # numbers without names from which a file may be a matrix of users and items
MELT = (
    "python -c \"import polars as pl; pl.read_csv('FILE', has_header=False).with_row_index('user')"
    ".unpivot(index='user', variable_name='item', value_name='rating').write_csv('rows.csv')\""
)
FEW_ROWS = 200_000  # fewer rows make few steps of 2048 rows


@dataclass
class Proposal:
    """The config of a data set, and the reasons.

    source: the keys of `source:`, with reasons by key
    unused: files of the folder that are neither rows nor side tables, and why
    """

    root: str
    source: dict[str, Any]
    reasons: dict[str, str]
    columns: list[Column]
    roles: Roles
    label: LabelGuess | None
    split: Split
    features: Features
    rows: int
    sides: list[Side] = field(default_factory=list)
    unused: list[tuple[str, str]] = field(default_factory=list)
    where: str | None = None
    group: dict[str, Any] | None = None
    max_length: int = 0
    within: str | None = None  # the column of groups whose rows stay together
    items: Side | None = None
    questions: list[Question] = field(default_factory=list)

    @property
    def retrieves(self) -> bool:
        """Whether the config is for retrieval models."""
        return self.group is not None

    def command(self, name: str) -> str:
        """Return the command that trains."""
        if self.retrieves:
            return f"python -m recsys.train data={name} model=sasrec"
        single = " model=dcnv2" if len(self.features.inputs) == 1 else ""  # model=dlrm multiplies pairs of vectors
        small = single + (" trainer.batch_size=256" if self.rows < FEW_ROWS else "")
        return f"python -m recsys.train data={name}{small}"


def propose(given: Sequence[str], answers: Answers | None = None) -> Proposal:
    """Look at the files, and return the config of their data set.

    Args:
        given: paths, folders and globs.
        answers: what the user says of the data.

    Raises:
        UserError: no file can be read, or nothing in them can be learned.
    """
    answers = answers or Answers()
    asked = answers.label
    found = find(given)
    gathered = gather(found, answers)
    layout, files = gathered.layout, gathered.files
    number = "1 file" if len(files) == 1 else f"{len(files)} files"
    say(f"looking at {number} ({layout.format}): {files[0]}{' ...' if files[1:] else ''}")
    sample = read_sample(files, layout, gathered.layouts)
    if sample.frame.height < 2 or not sample.frame.width:
        raise UserError(f"{files[0]}: has no rows, or its columns could not be found; check the file")
    if asked == "auto":
        check_rows_within(sample.frame, files[0], layout.format)
    made = explode(sample.frame, layout, answers)
    if made is not None and _repeats_label(made, asked):
        made = None
    if made is not None:
        sample = Sample(made.frame, round(sample.rows * made.frame.height / sample.frame.height))
    columns, marks = columns_of(sample.frame)
    folders = [partitions(f, found.root) for f in files]
    count_partitions(columns, {n: [own.get(n) for own in folders] for n in folders[0] if n not in layout.columns})
    rename = rename_columns(columns, layout) if made is None else made.rename
    if made is not None and answers.item in made.rename.values():  # named as in the files
        answers = replace(answers, item=next(new for new, old in made.rename.items() if old == answers.item))
    roles = assign(columns, answers)
    if made is not None and roles.item is None:
        set_item(roles, [c for c in columns if c.name in made.elements])
    set_codes(columns, as_text=layout.format in TEXT)
    set_ids_of_items(columns)
    set_lists_of_items(columns)
    set_ids_of_lists(columns)
    known = roles.user is not None or LIST in sample.frame.columns
    retrieval = layout.format == "lists" or (known and roles.item is not None)
    outcome = next((c for c in columns if c.name == asked and c.kind == "time" and 0 < c.missing < 1), None)
    derived = {} if outcome is None else {f"has_{outcome.name}": f"{sql_name(outcome.name)} IS NOT NULL"}
    if outcome is not None:  # it is written as its time
        asked = f"has_{outcome.name}"
        columns.append(column_of(outcome.values.is_not_null().alias(asked), marks))
    root, joins = Path(found.root), list[dict[str, Any]]()
    if (file := next((f for f in gathered.sides if os.path.relpath(f, root) == asked), None)) is not None:
        outcomes = outcomes_of(file, str(asked), columns)
        asked, joins = outcomes.label.name, [outcomes.join]
        derived[asked] = outcomes.sql
        columns.append(outcomes.label)
        gathered.sides.remove(file)
    try:
        label = (
            None
            if asked is None
            else labels.choose(
                columns, asked, retrieval=retrieval, untested=gathered.untested, positive=answers.positive
            )
        )
    except NeedsAnswer as e:
        raise _with_questions(e, gathered) from e
    if asked == "auto":
        for c in columns:
            if c.kind == "constant" and rank_of(c.name, LABELS) is not None:
                say(f"{c.name} cannot be the label: {c.reason}")
    if label is not None:
        _check_next_item(label, columns)
        label.column.role = "label"
    elif not retrieval:
        names = labels.names_for_error(columns)
        why = "no two columns are a user and an item" if asked is None else "no name says which column is the label"
        hint = _likely_answers(columns, roles, asked)
        if len(columns) > WIDE and all(c.numbers is not None and c.name.startswith("column_") for c in columns):
            hint = (
                f"if each row is a user and each column an item, write a row for each value: {MELT}; otherwise, {hint}"
            )
        error = NeedsAnswer(f"files={','.join(given)}: {why}; {hint} (columns: {names})")
        raise _with_questions(error, gathered)
    source, reasons = source_of(found, gathered, marks, columns, rename)
    if made is not None:
        source["explode"], reasons["explode"] = made.settings, made.why
    split = splits.at_random("no column holds a time")
    p = Proposal(found.root, source, reasons, columns, roles, label, split, Features(), sample.rows)
    p.questions = questions_of(p, gathered, answers)
    p.features.derive = derived | ({} if made is None else made.derive)
    p.sides, not_joined, open_ = find_sides(gathered.sides, root, columns)
    p.questions += open_
    p.unused = [(os.path.relpath(f, root), why) for f, why in gathered.unused] + not_joined
    if label is None:
        _retrieval(p, files, typed=layout.typed)
    else:
        _ranking(p, gathered, root)
    if joins:
        p.source["joins"] = joins + p.source.get("joins", [])
    if p.split.by_files:
        p.source.pop("files")
    if not p.features.inputs:
        why = "; ".join(f"{n}: {why}" for n, why in p.features.left_out[:4])
        raise UserError(f"files={','.join(given)}: no column but the label can be a feature; {why}")
    return p


def _likely_answers(columns: Sequence[Column], roles: Roles, asked: str | None) -> str:
    """Return what to type if neither a label nor a user and an item are known: the likeliest columns."""
    users = [roles.user] if roles.user is not None else likely_ids(columns, USERS)
    items = [c for c in likely_ids(columns, ITEMS) if c not in users[:1]] if roles.item is None else [roles.item]
    choice = " ".join(typed(r, found[0].name if found else "NAME") for r, found in (("user", users), ("item", items)))
    others = [typed(role, c.name) for role, found in (("user", users), ("item", items)) for c in found[1:3]]
    choice += f" (or {', '.join(others)})" if others else ""
    if asked is None:
        return f"type {choice}"
    likely = [c for c in labels.candidates(columns) if c not in (*users[:1], *items[:1])][:4]
    label = " or ".join(typed("label", c.name) for c in likely) or "label=NAME"
    return f"type {label}, or, if each row is a choice of an item, label=null with {choice}"


def _with_questions(error: NeedsAnswer, gathered: Gathered) -> NeedsAnswer:
    """Return an error that asks, with the questions about the files first."""
    asked = [f"{q.text} {' or '.join(q.answers)}".rstrip() for q in gathered.questions]
    return NeedsAnswer("; ".join([*asked, str(error)]))


def _check_next_item(label: LabelGuess, columns: Sequence[Column]) -> None:
    """Raise UserError if the classes of a label are the elements of a list: the label is the next item of a history."""
    if label.kind != "classes" or len(label.classes) < FEWEST_ITEMS:
        return
    for c in columns:
        if c.kind == "list" and mean(pl.Series(label.classes).is_in(elements_of(c).implode())) > MOSTLY_KNOWN:
            why = f"its values are the elements of {c.name}: the next item of a history, which retrieval models predict"
            hint = f"write one list of both into each row, without {label.column.name}"
            raise UserError(f"label={label.column.name}: {why}; {hint}")


def _repeats_label(made: Exploded, asked: str | None) -> bool:
    """Return whether the label would be that of a whole raw row, whose lists then are histories."""
    if asked is None:
        return False
    columns, _ = columns_of(made.frame.drop(LIST, strict=False))
    roles = assign(columns)
    if roles.item is None:
        set_item(roles, [c for c in columns if c.name in made.elements])
    retrieval = roles.item is not None
    try:
        label = labels.choose(columns, asked, retrieval=retrieval)
    except UserError:
        return False
    return label is not None and label.column.name not in made.elements


def _ranking(p: Proposal, gathered: Gathered, root: Path) -> None:
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
    keys = {side.key for side in p.sides}
    known_later |= {name: why for name, why in copies(p.columns).items() if name not in keys}
    order = basket(p.columns) if group is None else None
    if order is not None:
        known_later[order.name] = "it identifies rows that belong together; later rows have other values"
    derive = p.features.derive
    p.columns = [c for c in p.columns if c.name != LIST]
    known_later = (
        written_with(p.columns, label, p.roles.item)
        | other_outcomes(p.columns, label)
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
    for c in predictions(free):
        why = "its name is that of a model's prediction"
        p.questions.append(Question(f"is {c.name} known before {label.column.name}? {why}", "no, so it is no feature"))
        known_later[c.name] = f"{why}: {AFTERWARDS}"
    for c in names_splits([*free, *joined]):
        text = f"{c.name} names splits ({', '.join(c.examples(5))}): are they those to train and test on?"
        guess = "no; to use them, write the rows of each into a file of its own, such as train.csv and test.csv"
        p.questions.append(Question(text, guess))
        known_later[c.name] = "it names the splits of whoever made the data"
    known_later |= _asked_outcomes(p, [c for c in p.columns if c.name not in known_later])
    free = [c for c in p.columns if c.name not in known_later]
    for name, why in (doubtful(free, label) | suspects(free, label)).items():
        p.questions.append(Question(f"is {name} known before {label.column.name}? {why}", "no, so it is no feature"))
        known_later[name] = f"{why}: {AFTERWARDS}"
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
        found = splits.by_time(time, label, _time_column(p, time, typed=typed))
        p.split = splits.at_random(f"too many rows have the same {time.name} to split by it")
        if found is not None and group is not None:
            found.why += f"; rows of one {group.name} have one {time.name}, so they stay together"
    if found is None and group is not None:
        other = "a split by time would divide them" if time is not None else "a random split would divide them"
        found = splits.by_groups(group.name, f"rows of one {group.name} stay together; {other}")
    if found is None and order is not None:
        found = splits.by_groups(order.name, f"rows of one {order.name} stay together")
    p.split = found or p.split


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


def _time_column(p: Proposal, time: Column, *, typed: bool) -> str:
    """Return the column of the time: the file's, or the one that SQL derives."""
    assert time.time is not None
    if time.time.sql is None:
        return time.name
    sql = time_sql(time, typed=typed)
    known = next((name for name, other in p.features.derive.items() if other == sql), None)
    if known is None:
        known = f"{time.name}_time"
        p.features.derive[known] = sql
    return known


def _retrieval(p: Proposal, files: Sequence[Path], *, typed: bool) -> None:
    """Fill in groups, sequences, items and split of data without a label: users and the items that they chose."""
    by_name = {c.name: c for c in p.columns}
    user = p.roles.user or by_name.get("user") or by_name["list"]
    item = p.roles.item or by_name["item"]
    p.group = {"by": user.name}
    if p.roles.time is not None:
        p.group["order"] = _time_column(p, p.roles.time, typed=typed)
    if item.missing:
        p.where = f"{sql_name(item.name)} IS NOT NULL"
    longest = int(quantile(user.values.drop_nulls().value_counts()["count"], 0.9))
    p.max_length = min(max(longest, 10), 200)
    p.reasons["sequences"] = f"nine of ten users of the sample have at most {longest} rows"
    p.split = splits.leave_one_out()
    if user.name == "list":  # the reader adds this column
        p.split = splits.of_lists()
        p.columns = [c for c in p.columns if c is not user]
    p.split = splits.by_files(Path(p.root), files) or p.split
    derived = p.features.derive
    p.features = features_of([_as_item(item)], {}, typed=typed)
    p.features.derive = derived
    p.items = next((s for s in p.sides if s.key == item.name and s.items()), None)
    other_names = copies(p.columns)
    used = {item.name, user.name, p.roles.time.name if p.roles.time else ""}
    fixed = _constant_per_user(p.columns, user, used | set(other_names))
    users = [s for s in p.sides if s.key == user.name and s.features().sparse]
    if users:
        p.source["joins"] = [s.join() for s in users]
    for f in features_of([*fixed, *(c for s in users for c in s.columns)], {}, typed=typed).sparse:
        f.settings["per"] = "group"
        p.features.sparse.append(f)
    why = "models of sequences read items; its value is not known before the item"
    rest = [c for c in p.columns if c.name not in used and c not in fixed]
    plain = ("constant", "empty", "row id")
    p.features.left_out += [(c.name, other_names.get(c.name) or (c.reason if c.kind in plain else why)) for c in rest]
    p.unused += [(s.file, "not used by retrieval models") for s in p.sides if s is not p.items and s not in users]


def _as_item(item: Column) -> Column:
    if item.kind not in ("id", "category"):
        item.kind = "id"
    item.role = "item"
    return item


def _constant_per_user(columns: Sequence[Column], user: Column, used: set[str]) -> list[Column]:
    """Return the categories that are the same in all rows of a user: properties of the user."""
    found = []
    for c in columns:
        if c.name in used or c.kind not in ("category", "id"):
            continue
        frame = pl.DataFrame({"user": user.values, "x": c.values})
        per_user = frame.group_by("user").agg(pl.col("x").n_unique().alias("n"), pl.len())
        several = per_user.filter(pl.col("len") > 1)
        if several.height > 10 and several["n"].max() == 1:
            found.append(c)
    return found
