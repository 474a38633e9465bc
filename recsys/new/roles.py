"""Find the columns that identify: the user, the item, queries and orders; the time and the weight of a row."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import polars as pl

from recsys.base.errors import UserError, did_you_mean
from recsys.new.column_kinds import Column, IdKind, ListKind, TimeKind
from recsys.new.find_kinds import FEW
from recsys.new.known_names import NAMES, has_word, names_an_id_of, rank_of, words
from recsys.new.label import MOST_RATINGS, LabelGuess, is_event
from recsys.new.questions import Answers
from recsys.new.statistics import largest, least, mean, runs_of

FEWEST_NAMED = 20  # values of a user or an item whose name does not say id
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
        incomplete = (c for c in incomplete_times(free) if c.missing < MOST_MISSING_IDS)
        named_times = (c for c in incomplete if has_word(c.name, NAMES.times))
        roles.time = time_among(free) or _days(free) or next(named_times, None)
    if answers.user == "auto":
        roles.user = _id(free, NAMES.users, few) or _id(free, NAMES.sessions, few)
    if answers.item == "auto":
        free = [c for c in free if c is not roles.user]
        unique = (c for c in free if c.kind.is_row_id and names_an_id_of(c.name, NAMES.items))
        roles.item = _id(free, NAMES.items, few)
        if roles.item is None and roles.user is not None:  # the log is small, or its items are new
            roles.item = next(unique, None)
    roles.weight = next((c for c in free if c.kind.is_number and rank_of(c.name, NAMES.weights) is not None), None)
    for role, c in vars(roles).items():
        if c is not None:
            c.role = role
    return roles


def likely_ids(columns: Sequence[Column], among: tuple[str, ...]) -> list[Column]:
    """Return the columns that may identify users, or items, the likeliest first: by name, then in order."""
    free = [c for c in columns if (c.kind.is_id or c.kind.is_code) and not c.role and not c.is_partition]
    free = [c for c in free if c.distinct > (2 if names_an_id_of(c.name, among) else FEWEST_NAMED)]
    free = [c for c in free if c.missing < 1 and not has_word(c.name, (*NAMES.quantities, *NAMES.times, *NAMES.births))]

    def order(c: Column) -> tuple[bool, ...]:
        says_id = has_word(c.name, NAMES.id_words)
        return not names_an_id_of(c.name, among), not has_word(c.name, among), not says_id, not c.kind.is_code

    return sorted(free, key=order)


def _named(columns: Sequence[Column], role: str, name: str) -> Column:
    """Return the column that the user names for a role."""
    c = next((c for c in columns if c.name == name), None)
    if c is None:
        raise UserError(f"{role}={name}: no such column{did_you_mean(name, [c.name for c in columns])}")
    if role == "time":
        if c.time is None and c.numbers is None:
            raise UserError(f"time={name}: holds neither times nor numbers that grow with time ({c.reason})")
        c.kind = c.time or TimeKind("numbers that grow with time")
    elif c.values.dtype.is_nested() or c.kind.says_nothing or (c.numbers is not None and not c.is_whole):
        raise UserError(f"{role}={name}: cannot identify {'an' if role == 'item' else 'a'} {role}: {c.reason}")
    else:
        c.kind = IdKind("as you asked")
    return c


def _days(columns: Sequence[Column]) -> Column | None:
    """Return the column of whole numbers that count days or moments, by its name; None if no column does."""
    counted = [c for c in columns if c.kind.is_single and c.is_whole and c.missing <= MOST_MISSING_TIMES]
    ranked = [
        (rank, -c.distinct, i)
        for i, c in enumerate(counted)
        if (rank := rank_of(c.name, (*NAMES.times, *NAMES.counted_times))) is not None
    ]
    # smaller ranges may be those of the days of a month, or the hours of a day
    ranked = [r for r in ranked if largest(counted[r[2]].numbers) - least(counted[r[2]].numbers) > 31]  # type: ignore[arg-type]
    if not ranked:
        return None
    best = counted[min(ranked)[2]]
    best.kind = TimeKind("numbers that grow with time")
    return best


def time_among(columns: Sequence[Column]) -> Column | None:
    """Return the column that likeliest holds the time of a row; None if no column can."""
    times = [c for c in columns if c.time and c.missing <= MOST_MISSING_TIMES and not has_word(c.name, NAMES.births)]
    best = min(times, key=_time_order, default=None)
    if best is None or not best.is_partition:
        return best
    days = best.time.moments if best.time is not None else None
    for c in times:  # a folder for each day: the rows may have the time of that day, or the next in another time zone
        moments = c.time.moments if c.time is not None and not c.is_partition else None
        if moments is not None and days is not None and mean(moments.dt.date() == days.dt.date()) > 0.8:
            return c
    return best


def _time_order(c: Column) -> tuple[bool, bool, bool, int, int]:
    rank = next((NAMES.times.index(w) for w in words(c.name) if w in NAMES.times), len(NAMES.times))
    other = has_word(c.name, (*NAMES.other_times, *NAMES.after))
    return year_to_come(c) is not None, other, c.missing > COMPLETE, rank, -c.distinct


def incomplete_times(columns: Sequence[Column]) -> list[Column]:
    """Return the columns that may hold the time of a row, which too many rows lack, the likeliest first."""
    others = (*NAMES.births, *NAMES.other_times, *NAMES.after)
    times = [c for c in columns if c.time is not None and c.missing > MOST_MISSING_TIMES]
    return sorted((c for c in times if not has_word(c.name, others)), key=_time_order)


def year_to_come(c: Column) -> int | None:
    """Return the last year of a column of times if it is to come; None otherwise."""
    moments = c.time.moments if c.time is not None else None
    if moments is None or (year := largest(moments.dt.year())) <= datetime.now(UTC).year + 1:
        return None
    return int(year)


def _id(columns: Sequence[Column], among: tuple[str, ...], few: int) -> Column | None:
    """Return the column whose name says that it identifies users or items, the one with most values if several."""
    ids = [c for c in columns if c.kind.is_single and names_an_id_of(c.name, among) and c.missing < MOST_MISSING_IDS]
    ids = [c for c in ids if c.distinct > (2 if c.kind.is_id or has_word(c.name, NAMES.id_words) else few)]
    best = max(ids, key=lambda c: c.distinct, default=None)
    if best is not None and best.kind.is_number:
        if not best.is_whole:
            return None
        best.kind = IdKind("its name says that it is an id")
    return best


def set_item(roles: Roles, elements: Sequence[Column]) -> None:
    """Take the column of a list's elements with most values for the item, if no name says which one it is."""
    ids = [c for c in elements if not c.role and (c.kind.is_single or c.kind.is_id) and c.distinct > FEWEST_NAMED]
    best = max((c for c in ids if c.numbers is None or c.is_whole), key=lambda c: c.distinct, default=None)
    if best is not None:
        best.kind, best.role = IdKind("the element of a list with most values (a guess)"), "item"
        roles.item = best


def name_unnamed(columns: Sequence[Column]) -> list[str] | None:
    """Return names for the columns of a file without a header: user, item and, if there, rating, event and timestamp.

    Return None if the file holds something else.
    """
    if len(columns) > 3 and counts_up(columns[0]):  # the number of a row, such as that of an impression
        names = name_unnamed(columns[1:])
        return None if names is None else ["row", *names]
    times, ids = [c for c in columns if c.time is not None], []
    for i, c in enumerate(columns):
        # whole numbers or words that occur several times and have many values, or ids
        few = c.kind.is_single and (c.numbers is None or c.is_whole) and 20 < c.distinct < c.rows
        is_code = c.kind.is_code and not c.kind.is_id and not c.missing and c.distinct > 2
        is_sorted = is_code and i == 0 and bool(times) and runs_of(c.values) <= 2 * c.distinct < c.rows / 50  # by user
        if few or is_sorted or (c.kind.is_id and c.kind.is_code):
            ids.append(c)
    if len(ids) < 2 or len(columns) > 8 or (not times and len(columns) > 3) or columns[0] not in ids:
        return None
    roles = {id(ids[0]): "user", id(max(ids[1:], key=lambda c: c.distinct)): "item"}
    roles |= {id(c): "timestamp" for c in times[:1]}
    rest = [c for c in columns if id(c) not in roles]
    if event := next((c for c in rest if is_event(c)), None):
        roles[id(event)] = "event"
    elif grades := [c for c in rest if c.numbers is not None and 2 <= c.distinct <= MOST_RATINGS]:
        likely = [c for c in grades if largest(c.numbers) <= 10] or grades[:1]  # type: ignore[arg-type]
        roles[id(likely[-1])] = "rating"  # the last, as kinds come before it
    if len(columns) == 3 and not times and "rating" not in roles.values():
        return None
    return [roles.get(id(c), f"column_{i}") for i, c in enumerate(columns, 1)]


def counts_up(c: Column) -> bool:
    """Return True for 1, 2, 3, ... of each of a few files."""
    if c.numbers is None or c.missing or not c.is_whole or c.distinct < 0.3 * c.rows:
        return False
    return mean(c.numbers.diff().drop_nulls() == 1) > 0.95


MOSTLY_KNOWN = 0.8  # of the values of an id, those that lists hold
FEWEST_GROUPS = 20


def copies(columns: Sequence[Column]) -> dict[str, str]:
    """Return the columns that are other names of the user or the item, with one value for each, and the reasons."""
    reasons = {}
    for key in (c for c in columns if c.role in ("user", "item")):
        for c in columns:
            if c.role or not c.kind.may_name or c.distinct != key.distinct or c.distinct <= FEW:
                continue
            pairs = pl.DataFrame({"key": key.values, "x": c.values}).n_unique()
            if pairs == key.distinct + bool(key.missing or c.missing) and abs(c.missing - key.missing) < 1e-9:
                reasons[c.name] = f"another name of {key.name}: it has one value for each"
    return reasons


def determines(one: Column, other: Column) -> bool:
    """Return True if (nearly) each value of `one` goes with one value of `other`, as each track has one artist."""
    x, y = (c.values.hash() if c.values.dtype.is_nested() else c.values.cast(pl.String) for c in (one, other))
    frame = pl.DataFrame({"x": x, "y": y}).drop_nulls()
    several = frame.group_by("x").agg(pl.len(), pl.col("y").n_unique().alias("n")).filter(pl.col("len") > 1)
    return several.height > 0 and mean(several["n"] == 1) > 0.98


def basket(columns: Sequence[Column]) -> Column | None:
    """Return the column that identifies an order, a basket or an event of few rows; None if no column does."""
    events = (*NAMES.queries, *NAMES.event_keys)
    ids = [c for c in columns if not c.role and c.kind.may_name and names_an_id_of(c.name, events)]
    ids = [c for c in ids if words(c.name)[-1].endswith(("id", "no", "nr", "number", "key"))]
    ids = [c for c in ids if FEW < c.distinct < c.rows <= 200 * c.distinct]
    return max(ids, key=lambda c: c.distinct, default=None)


def set_kinds_by_items(columns: Sequence[Column]) -> None:
    """Take columns for lists or ids by the values that they share with the item, or with lists.

    A text is a list if its words are items, such as the history of a user. Numbered columns, such as hist_1 to hist_10,
    are ids if they have the values of the item, and so is a number that lists hold.
    """
    item = next((c for c in columns if c.role == "item"), None)
    free = [c for c in columns if not c.role and c.distinct > FEW]
    if item is not None and item.numbers is not None:
        known = item.numbers.drop_nulls().unique().cast(pl.Float64)
        families: dict[tuple[str, ...], list[Column]] = {}
        for c in free:
            *stem, last = words(c.name) or [""]
            if stem and last.isdecimal() and c.kind.is_number and c.is_whole:
                families.setdefault(tuple(stem), []).append(c)
        for family in families.values():
            values = pl.concat([c.numbers.cast(pl.Float64) for c in family if c.numbers is not None]).drop_nulls()
            distinct = values.filter(values != 0).unique()  # 0 pads
            are_items = len(family) >= 3 and distinct.len() > FEW and mean(distinct.is_in(known.implode())) >= 0.9
            if are_items and distinct.len() >= 0.5 * known.len():
                for c in family:
                    c.kind = IdKind(f"its values are those of {item.name}")
    if item is not None:
        items = item.texts.implode()
        for c in (c for c in free if c.values.dtype == pl.String and c.kind.may_name):
            parts = c.values.drop_nulls().head(20_000).str.split(" ")
            if mean(parts.list.len()) > 1 and mean(parts.explode().is_in(items)) > MOSTLY_KNOWN:
                c.kind = ListKind(f"its words are values of {item.name}", " ")
    numbers = [c for c in free if c.kind.is_number and c.is_whole]
    held = [c for c in columns if numbers and isinstance(c.kind, ListKind)]
    lists = [(c.name, c.kind.elements(c).implode()) for c in held if isinstance(c.kind, ListKind)]
    for c in numbers:
        values = c.texts
        holder = next((name for name, elements in lists if mean(values.is_in(elements)) > MOSTLY_KNOWN), None)
        if holder is not None:
            c.kind = IdKind(f"its values are those of {holder}")


def group_of(columns: Sequence[Column], label: LabelGuess) -> Column | None:
    """Return the column of queries, displays or sessions; None if no column groups the rows in such a way.

    Few rows of a group are positive. If no name says so, its rows stand together, and one of them is positive.
    """
    if not label.is_binary:
        return None
    free = [c for c in columns if c.role in ("", "user") and c.kind.is_single and not c.missing]
    free = [c for c in free if c.distinct >= FEWEST_GROUPS and (c.numbers is None or c.is_whole)]
    for c in (c for c in free if names_an_id_of(c.name, NAMES.queries)):
        groups = _groups(c, label.values)
        if groups is not None and mean(groups["sum"]) <= 3 and mean(groups["sum"] < groups["rows"]) > 0.5:
            return c
    for c in (c for c in free if not c.role and not names_an_id_of(c.name, NAMES.queries)):
        groups = _groups(c, label.values)
        if groups is not None and runs_of(c.values) <= 1.1 * c.distinct and mean(groups["sum"] == 1) > 0.9:
            return c
    return None


def queries_of_grades(columns: Sequence[Column], grades: Column) -> Column | None:
    """Return the column of queries whose rows differ in their grades; None without such a column or without grades."""
    values = grades.numbers
    if values is None or not grades.is_whole or not 3 <= grades.distinct <= 20 or values.min() < 0:  # type: ignore[operator]
        return None
    for c in columns:
        if c.role in ("", "user") and c.distinct >= FEWEST_GROUPS and names_an_id_of(c.name, NAMES.queries):
            groups = _groups(c, values)
            if groups is not None and mean(groups["differ"]) > 0.5:
                return c
    return None


def _groups(c: Column, y: pl.Series) -> pl.DataFrame | None:
    """Return the rows of each group of several, the sum of their labels and whether they differ.

    Return None if such groups are few, or hold few rows.
    """
    rows = pl.DataFrame({"group": c.values, "y": y}).drop_nulls()
    groups = rows.group_by("group").agg(rows=pl.len(), sum=pl.col("y").sum(), differ=pl.col("y").n_unique() > 1)
    groups = groups.filter(pl.col("rows") > 1)
    return groups if groups.height >= FEWEST_GROUPS and groups["rows"].sum() >= 0.8 * c.rows else None


def has_one(group: Column, of: Column) -> bool:
    """Return True if all rows of a group have the same value of another column."""
    frame = pl.DataFrame({"group": group.values, "x": of.values})
    return mean(frame.group_by("group").agg(pl.col("x").n_unique().alias("n"))["n"] == 1) > 0.999
