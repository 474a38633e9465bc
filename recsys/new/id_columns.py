"""Find columns that only identify: other names of the user or the item, and the ids of queries, orders and events."""

from collections.abc import Sequence

import polars as pl

from recsys.new.column_kinds import Column, IdKind, ListKind
from recsys.new.find_kinds import FEW
from recsys.new.known_names import NAMES, names_an_id_of, words
from recsys.new.label import LabelGuess
from recsys.new.statistics import mean, runs_of

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
        _set_numbered_ids(free, item.name, item.numbers.drop_nulls().unique().cast(pl.Float64))
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


def _set_numbered_ids(free: Sequence[Column], item: str, known: pl.Series) -> None:
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
                c.kind = IdKind(f"its values are those of {item}")


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
