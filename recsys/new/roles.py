"""Find the columns that identify the user and the item of a row, its time and its weight."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from recsys.base.errors import UserError, did_you_mean
from recsys.new.column_kinds import Column
from recsys.new.known_names import (
    AFTER,
    BIRTHS,
    ID_WORDS,
    ITEMS,
    QUANTITIES,
    SESSIONS,
    TIMES,
    USERS,
    WEIGHTS,
    has_word,
    names_an_id_of,
    rank_of,
    words,
)
from recsys.new.label import MOST_RATINGS, is_event
from recsys.new.questions import Answers
from recsys.new.statistics import largest, least, mean
from recsys.new.time_formats import TimeGuess

MOST_STARS = 10  # of a rating
MOST_UNNAMED = 8  # columns of a log without a header
ID_KINDS = ("id", "category", "number")
FEWEST_NAMED = 20  # values of a user or an item whose name does not say id
OTHER_TIMES = (
    *("birth", "born", "signup", "alta", "sign", "registration", "registered", "release", "released", "joined"),
    *("updated", "modified", "end", "expiry", "expiration", "expires", "init", "member", "delivered"),
    *("closed", "closing", "resolved", "completed", "finished", "cancelled", "converted", "conversion", "refund"),
    *("refunded", "paid", "shipped", "returned"),
)
COUNTED_TIMES = (*TIMES, "days", "hours", "minute", "second", "step", "tick", "epoch", "period", "week", "month")
FEWEST_COUNTED = 0.3  # share of rows with a value of their own, as the rows of few files are counted
COUNTED = 0.95  # share of steps of one, in the pieces of files that a sample has
MOST_OF_A_CYCLE = 31  # numbers of days or hours in a smaller range may be those of a month or a day
MOSTLY_OF_DAY = 0.8  # time zones move some events to the next day
MOST_MISSING_IDS = 0.5  # rows without a user, an item or a time
COMPLETE = 0.005  # share of missing times up to which a column is preferred
MOST_MISSING_TIMES = 0.1  # share of rows without a time that are left out; if there are more, it is a question


@dataclass
class Roles:
    """The columns with a role, by role: user, item, time and weight of a row; None for a role without a column."""

    user: Column | None = None
    item: Column | None = None
    time: Column | None = None
    weight: Column | None = None


def assign(columns: Sequence[Column], answers: Answers | None = None) -> Roles:
    """Find the columns with a role, and set it and its reason.

    Raises UserError if the user names a column that is not there, or cannot have its role.
    """
    answers = answers or Answers()
    named = {role: _named(columns, role, name) for role, name in answers.names().items() if role != "label"}
    free = [c for c in columns if c.name != answers.label and c not in named.values()]
    roles = Roles(**named)
    few = 2 if answers.label is None else FEWEST_NAMED  # without a label, there must be a user and an item
    if answers.time == "auto":
        roles.time = time_among(free) or _days(free) or next((c for c in incomplete_times(free) if _likely(c)), None)
    if answers.user == "auto":
        roles.user = _id(free, USERS, few) or _id(free, SESSIONS, few)
    if answers.item == "auto":
        free = [c for c in free if c is not roles.user]
        roles.item = _id(free, ITEMS, few) or (_unique_item(free) if roles.user is not None else None)
    roles.weight = next((c for c in free if c.kind == "number" and rank_of(c.name, WEIGHTS) is not None), None)
    for name in ("user", "item", "time", "weight"):
        c = getattr(roles, name)
        if c is not None:
            c.role = name
    return roles


def likely_ids(columns: Sequence[Column], among: tuple[str, ...]) -> list[Column]:
    """Return the columns that may identify users, or items, the likeliest first: by name, then in order."""
    free = [c for c in columns if c.kind in ("id", "category", "row id") and not c.role and not c.is_partition]
    free = [c for c in free if c.distinct > (2 if names_an_id_of(c.name, among) else FEWEST_NAMED)]
    free = [c for c in free if c.missing < 1 and not has_word(c.name, (*QUANTITIES, *TIMES, *BIRTHS))]
    return sorted(
        free,
        key=lambda c: (
            not names_an_id_of(c.name, among),
            not has_word(c.name, among),
            not ID_WORDS & {*words(c.name)},
            c.kind == "row id",
        ),
    )


def _named(columns: Sequence[Column], role: str, name: str) -> Column:
    """Return the column that the user names for a role."""
    c = next((c for c in columns if c.name == name), None)
    if c is None:
        raise UserError(f"{role}={name}: no such column{did_you_mean(name, [c.name for c in columns])}")
    if role == "time":
        if c.time is None and c.numbers is None:
            raise UserError(f"time={name}: holds neither times nor numbers that grow with time ({c.reason})")
        _set_time(c)
    elif c.values.dtype.is_nested() or c.kind in ("constant", "empty") or (c.numbers is not None and not c.is_whole):
        raise UserError(f"{role}={name}: cannot identify {'an' if role == 'item' else 'a'} {role}: {c.reason}")
    else:
        c.kind, c.reason = "id", "as you asked"
    return c


def _set_time(c: Column) -> None:
    c.kind, c.time = "time", c.time or TimeGuess(None, "numbers that grow with time")
    c.reason = c.time.what


def _days(columns: Sequence[Column]) -> Column | None:
    """Return the column of whole numbers that count days or moments, by its name; None if no column does."""
    counted = [
        c
        for c in columns
        if c.kind in ID_KINDS
        and c.is_whole
        and c.missing <= MOST_MISSING_TIMES
        and rank_of(c.name, COUNTED_TIMES) is not None
        and c.numbers is not None
        and largest(c.numbers) - least(c.numbers) > MOST_OF_A_CYCLE
    ]
    best = min(counted, key=lambda c: (rank_of(c.name, COUNTED_TIMES), -c.distinct), default=None)
    if best is not None:
        _set_time(best)
    return best


def _unique_item(columns: Sequence[Column]) -> Column | None:
    """Return the column that names an item if each row has another one: the log is small, or its items are new."""
    return next((c for c in columns if c.kind == "row id" and names_an_id_of(c.name, ITEMS)), None)


def time_among(columns: Sequence[Column]) -> Column | None:
    """Return the column that likeliest holds the time of a row; None if no column can."""
    times = [c for c in columns if c.kind == "time" and c.missing <= MOST_MISSING_TIMES]
    times = [c for c in times if not has_word(c.name, BIRTHS)]
    best = min(times, key=_time_order, default=None)
    if best is not None and best.is_partition:  # a folder for each day: the rows may have the time of that day
        return next((c for c in times if not c.is_partition and _are_of_days(c, best)), best)
    return best


def _are_of_days(c: Column, days: Column) -> bool:
    """Return True if nearly all times of a column are moments of the day that another column holds."""
    if c.time is None or c.time.moments is None or days.time is None or days.time.moments is None:
        return False
    return mean(c.time.moments.dt.date() == days.time.moments.dt.date()) > MOSTLY_OF_DAY


def _time_order(c: Column) -> tuple[bool, bool, bool, int, int]:
    rank = next((TIMES.index(w) for w in words(c.name) if w in TIMES), len(TIMES))
    other = has_word(c.name, (*OTHER_TIMES, *AFTER))
    return year_to_come(c) is not None, other, c.missing > COMPLETE, rank, -c.distinct


def _likely(c: Column) -> bool:
    """Return True if most rows have a value of a column of times, and its name says that it is the row's."""
    return c.missing < MOST_MISSING_IDS and has_word(c.name, TIMES)


def incomplete_times(columns: Sequence[Column]) -> list[Column]:
    """Return the columns that may hold the time of a row, which too many rows lack, the likeliest first."""
    times = [c for c in columns if c.kind == "time" and c.missing > MOST_MISSING_TIMES]
    return sorted((c for c in times if not has_word(c.name, (*BIRTHS, *OTHER_TIMES, *AFTER))), key=_time_order)


def year_to_come(c: Column) -> int | None:
    """Return the last year of a column of times if it is to come; None otherwise."""
    moments = c.time.moments if c.time is not None else None
    if moments is None or (year := largest(moments.dt.year())) <= datetime.now(UTC).year + 1:
        return None
    return int(year)


def _id(columns: Sequence[Column], among: tuple[str, ...], few: int) -> Column | None:
    """Return the column whose name says that it identifies users or items, the one with most values if several."""
    ids = [c for c in columns if c.kind in ID_KINDS and names_an_id_of(c.name, among)]
    ids = [c for c in ids if c.missing < MOST_MISSING_IDS]
    ids = [c for c in ids if c.distinct > (2 if c.kind == "id" or ID_WORDS & {*words(c.name)} else few)]
    best = max(ids, key=lambda c: c.distinct, default=None)
    if best is not None and best.kind == "number":
        if not best.is_whole:
            return None
        best.kind, best.reason = "id", "its name says that it is an id"
    return best


def set_item(roles: Roles, elements: Sequence[Column]) -> None:
    """Take the column of a list's elements with most values for the item, if no name says which one it is."""
    ids = [c for c in elements if not c.role and c.kind in (*ID_KINDS, "row id") and c.distinct > FEWEST_NAMED]
    best = max((c for c in ids if c.numbers is None or c.is_whole), key=lambda c: c.distinct, default=None)
    if best is not None:
        best.kind, best.role, best.reason = "id", "item", "the element of a list with most values (a guess)"
        roles.item = best


def name_unnamed(columns: Sequence[Column]) -> list[str] | None:
    """Return names for the columns of a file without a header: user, item and, if there, rating, event and timestamp.

    Return None if the file holds something else.
    """
    if len(columns) > 3 and counts_up(columns[0]):  # the number of a row, such as that of an impression
        names = name_unnamed(columns[1:])
        return None if names is None else ["row", *names]
    times = [c for c in columns if c.kind == "time"]
    ids = [c for c in columns if _is_id(c) or (times and c is columns[0] and _is_sorted(c))]
    if len(ids) < 2 or len(columns) > MOST_UNNAMED or (not times and len(columns) > 3) or columns[0] not in ids:
        return None
    roles = {id(ids[0]): "user", id(max(ids[1:], key=lambda c: c.distinct)): "item"}
    roles |= {id(c): "timestamp" for c in times[:1]}
    rest = [c for c in columns if id(c) not in roles]
    if event := next((c for c in rest if is_event(c)), None):
        roles[id(event)] = "event"
    elif grades := [c for c in rest if c.numbers is not None and 2 <= c.distinct <= MOST_RATINGS]:
        likely = [c for c in grades if largest(c.numbers) <= MOST_STARS] or grades[:1]  # type: ignore[arg-type]
        roles[id(likely[-1])] = "rating"  # the last, as kinds come before it
    if len(columns) == 3 and not times and "rating" not in roles.values():
        return None
    return [roles.get(id(c), f"column_{i}") for i, c in enumerate(columns, 1)]


def counts_up(c: Column) -> bool:
    """Return True for 1, 2, 3, ... of each file."""
    if c.numbers is None or c.missing or not c.is_whole or c.distinct < FEWEST_COUNTED * c.rows:
        return False
    return mean(c.numbers.diff().drop_nulls() == 1) > COUNTED


def _is_sorted(c: Column) -> bool:
    """Return True for a column of long runs of equal values, such as the users of a log that is sorted by user."""
    runs = int((c.values != c.values.shift()).sum() or 0) + 1
    return c.kind == "category" and not c.missing and c.distinct > 2 and runs <= 2 * c.distinct < c.rows / 50


def _is_id(c: Column) -> bool:
    """Return True for whole numbers or words that occur several times and have many values."""
    if c.kind == "id":
        return True
    return (
        c.kind in ("number", "category")
        and (c.numbers is None or c.is_whole)
        and c.distinct > 20
        and c.distinct < c.rows
    )
