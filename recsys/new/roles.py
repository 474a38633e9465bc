"""Find the columns that identify: the user, the item, and the time of a row."""

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from recsys.base.errors import UserError, did_you_mean
from recsys.new.column_kinds import MAX_GRADES, Column, IdKind, TimeKind, mean
from recsys.new.known_names import NAMES, has_word, names_an_id_of, words
from recsys.new.questions import Answers

MIN_NAMED = 20  # values of a user or an item whose name does not say id, and groups of rows
MAX_MISSING_IDS = 0.5  # rows without a user, an item or a time
MAX_MISSING_TIMES = 0.1  # share of rows without a time that are left out; if there are more, it is a question
MIN_ITEMS = 0.9  # share of the numbers of numbered columns that are values of the item
MIN_SAME = 0.98  # share of the values of a column that each go with one value of another, which they determine


@dataclass
class Roles:
    """The columns with a role, by role: user, item and time of a row; None for a role without a column."""

    user: Column | None = None
    item: Column | None = None
    time: Column | None = None


def assign(columns: Sequence[Column], answers: Answers | None = None) -> Roles:
    """Find the columns with a role, and set it and its reason.

    Raises UserError if the user names a column that is not there, or cannot have its role.
    """
    answers = answers or Answers()
    named = {role: _named(columns, role, name) for role, name in answers.names().items() if role != "label"}
    free = [c for c in columns if c.name != answers.label and c not in named.values()]
    roles = Roles(**named)
    few = 2 if answers.label is None else MIN_NAMED  # without a label, there must be a user and an item
    if answers.time == "auto":
        times = [c for c in free if c.time and c.missing <= MAX_MISSING_TIMES and not has_word(c.name, NAMES.births)]
        incomplete = (c for c in incomplete_times(free) if c.missing < MAX_MISSING_IDS)
        named_times = (c for c in incomplete if has_word(c.name, NAMES.times))
        roles.time = min(times, key=_time_order, default=None) or next(named_times, None)
    if answers.user == "auto":
        roles.user = _id(free, NAMES.users, few) or _id(free, NAMES.sessions, few)
    if answers.item == "auto":
        free = [c for c in free if c is not roles.user]
        unique = (c for c in free if c.kind.is_row_id and names_an_id_of(c.name, NAMES.items))
        roles.item = _id(free, NAMES.items, few)
        if roles.item is None and roles.user is not None:  # the log is small, or its items are new
            roles.item = next(unique, None)
    for role, c in vars(roles).items():
        if c is not None:
            c.role = role
    return roles


def likely_ids(columns: Sequence[Column], among: tuple[str, ...]) -> list[Column]:
    """Return the columns that may identify users, or items, the likeliest first: by name, then in order."""
    free = [c for c in columns if (c.kind.is_id or c.kind.is_code) and not c.role and not c.is_partition]
    free = [c for c in free if c.distinct > (2 if names_an_id_of(c.name, among) else MIN_NAMED) and c.missing < 1]
    free = [c for c in free if not has_word(c.name, (*NAMES.quantities, *NAMES.times, *NAMES.births))]
    return sorted(free, key=lambda c: (not names_an_id_of(c.name, among), not has_word(c.name, among)))


def rivals_of(column: Column, columns: Sequence[Column], among: tuple[str, ...]) -> list[Column]:
    """Return the columns that may be the user or the item instead of `column`, without copies and groups of it."""
    rivals = [c for c in columns if c is not column and not c.role and names_an_id_of(c.name, among)]
    rivals = [c for c in rivals if c.kind.is_id and c.missing < MAX_MISSING_IDS]
    return [c for c in rivals if not determines(column, c) and not determines(c, column)]


def _named(columns: Sequence[Column], role: str, name: str) -> Column:
    """Return the column that the user names for a role."""
    c = next((c for c in columns if c.name == name), None)
    if c is None:
        raise UserError(f"{role}={name}: no such column{did_you_mean(name, [c.name for c in columns])}")
    if role == "time":
        if c.time is None and c.numbers is None:
            raise UserError(f"time={name}: holds neither times nor numbers that grow with time ({c.reason})")
        c.kind = c.time or TimeKind("numbers that grow with time")
        c.kind.doubt = ""
    elif c.values.dtype.is_nested() or c.kind.says_nothing or (c.numbers is not None and not c.is_whole):
        raise UserError(f"{role}={name}: cannot identify {'an' if role == 'item' else 'a'} {role}: {c.reason}")
    else:
        c.kind = IdKind("as you asked")
    return c


def _time_order(c: Column) -> tuple[bool, bool, int, int]:
    rank = next((NAMES.times.index(w) for w in words(c.name) if w in NAMES.times), len(NAMES.times))
    other = has_word(c.name, (*NAMES.other_times, *NAMES.after))
    return other, c.missing > 0.005, rank, -c.distinct


def incomplete_times(columns: Sequence[Column]) -> list[Column]:
    """Return the columns that may hold the time of a row, which too many rows lack, the likeliest first."""
    others = (*NAMES.births, *NAMES.other_times, *NAMES.after)
    times = [c for c in columns if c.time is not None and c.missing > MAX_MISSING_TIMES]
    return sorted((c for c in times if not has_word(c.name, others)), key=_time_order)


def _id(columns: Sequence[Column], among: tuple[str, ...], few: int) -> Column | None:
    """Return the column whose name says that it identifies users or items, the one with most values if several."""
    ids = [c for c in columns if c.kind.is_single and names_an_id_of(c.name, among) and c.missing < MAX_MISSING_IDS]
    ids = [c for c in ids if c.distinct > (2 if c.kind.is_id or has_word(c.name, NAMES.id_words) else few)]
    best = max((c for c in ids if not c.kind.is_number or c.is_whole), key=lambda c: c.distinct, default=None)
    if best is not None and best.kind.is_number:
        best.kind = IdKind("its name says that it is an id")
    return best


def name_unnamed(columns: Sequence[Column]) -> list[str] | None:
    """Return names for the columns of a log without a header: user, item and, if there, rating and timestamp.

    Return None if it has another column.
    """
    times = [c for c in columns if c.time is not None]
    ids = [c for c in columns if c not in times and c.kind.is_single and (c.numbers is None or c.is_whole)]
    ids = [c for c in ids if MIN_NAMED < c.distinct < c.rows or (c.kind.is_id and c.kind.is_code)]
    if len(ids) < 2 or ids[0] is not columns[0]:
        return None
    roles = {id(ids[0]): "user", id(max(ids[1:], key=lambda c: c.distinct)): "item"}
    roles |= {id(c): "timestamp" for c in times[:1]}
    rest = [c for c in columns if id(c) not in roles]
    roles |= {id(c): "rating" for c in rest if c.numbers is not None and 2 <= c.distinct <= MAX_GRADES}
    is_log = len({*roles.values()}) == len(roles) == len(columns)
    return [roles[id(c)] for c in columns] if is_log else None


def determines(one: Column, other: Column) -> bool:
    """Return True if (nearly) each value of `one` goes with one value of `other`, as each track has one artist."""
    x, y = (c.values.hash() if c.values.dtype.is_nested() else c.values.cast(pl.String) for c in (one, other))
    frame = pl.DataFrame({"x": x, "y": y}).drop_nulls()
    several = frame.group_by("x").agg(pl.len(), pl.col("y").n_unique().alias("n")).filter(pl.col("len") > 1)
    return several.height > 0 and mean(several["n"] == 1) > MIN_SAME


def set_kinds_by_items(columns: Sequence[Column]) -> None:
    """Take whole numbers for ids if they are values of the item, and many of them, such as hist_1 to hist_10."""
    for item in (c for c in columns if c.role == "item" and c.numbers is not None):
        numbers = [c for c in columns if not c.role and c.kind.is_number and c.is_whole]
        for c in (c for c in numbers if not has_word(c.name, NAMES.quantities) and c.distinct >= 0.5 * item.distinct):
            if mean(c.texts.is_in(item.texts.implode())) >= MIN_ITEMS:
                c.kind = IdKind(f"its values are those of {item.name}")
