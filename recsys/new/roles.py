"""Find the columns that identify the user and the item of a row, its time and its weight."""

from collections.abc import Sequence
from dataclasses import dataclass

from recsys.new.columns import Column
from recsys.new.names import ITEMS, SESSIONS, TIMES, USERS, WEIGHTS, has_word, names_an_id_of, rank_of, words

ID_KINDS = ("id", "category", "row id", "number")
OTHER_TIMES = (
    "birth",
    "born",
    "signup",
    "sign",
    "registration",
    "registered",
    "release",
    "released",
    "joined",
    "updated",
    "modified",
    "end",
    "expiry",
    "delivered",
)
MOST_MISSING_TIMES = 0.005  # rows without a time are bad rows


@dataclass
class Roles:
    """The columns with a role; None if there is none."""

    user: Column | None = None
    item: Column | None = None
    time: Column | None = None
    weight: Column | None = None


def assign(columns: Sequence[Column], asked: str) -> Roles:
    """Find the columns with a role, and set it and its reason. asked: the label, which can have no other role."""
    free = [c for c in columns if c.name != asked]
    roles = Roles()
    times = [c for c in free if c.kind == "time" and c.missing <= MOST_MISSING_TIMES]
    roles.time = min(times, key=_time_order) if times else None
    roles.user = _id(free, USERS) or _id(free, SESSIONS)
    roles.item = _id([c for c in free if c is not roles.user], ITEMS)
    roles.weight = next((c for c in free if c.kind == "number" and rank_of(c.name, WEIGHTS) is not None), None)
    for name in ("user", "item", "time", "weight"):
        c = getattr(roles, name)
        if c is not None:
            c.role = name
    return roles


def _time_order(c: Column) -> tuple[bool, int, int]:
    rank = next((TIMES.index(w) for w in words(c.name) if w in TIMES), len(TIMES))
    return has_word(c.name, OTHER_TIMES), rank, -c.distinct


def _id(columns: Sequence[Column], among: tuple[str, ...]) -> Column | None:
    """Return the column whose name says that it identifies users or items, the one with most values if several."""
    found = [c for c in columns if c.kind in ID_KINDS and names_an_id_of(c.name, among) and c.distinct > 2]
    best = max(found, key=lambda c: (c.kind != "row id", c.distinct), default=None)
    if best is not None and best.kind == "number":
        if not best.is_whole:
            return None
        best.kind, best.reason = "id", "its name says that it is an id"
    return best


def name_unnamed(columns: Sequence[Column]) -> list[str] | None:
    """Return names for the columns of a file without a header: user, item and, if there, rating and timestamp.

    Return None if the file holds something else.
    """
    if not 2 <= len(columns) <= 5 or not all(_is_id(c) for c in columns[:2]):
        return None
    names = ["user", "item"]
    for c in columns[2:]:
        if c.kind == "time" and "timestamp" not in names:
            names.append("timestamp")
        elif c.numbers is not None and 2 <= c.distinct <= 21 and "rating" not in names:
            names.append("rating")
        else:
            return None
    return names


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
