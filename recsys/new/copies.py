"""Find columns that only identify: other names of the user or the item, and the ids of orders and events."""

from collections.abc import Sequence

import polars as pl

from recsys.new.column_kinds import FEW, Column
from recsys.new.group_keys import EVENT_KEYS
from recsys.new.known_names import names_an_id_of, words
from recsys.new.statistics import mean

KINDS = ("id", "row id", "category", "text")
ENDS = ("id", "no", "nr", "number", "key")
MOSTLY = 0.98  # of the values
MOSTLY_KNOWN = 0.8  # of the values of an id, those that lists hold
MOST_TEXTS = 20_000  # whose words are compared
MOST_ROWS = 200  # of an order, on average


def copies(columns: Sequence[Column]) -> dict[str, str]:
    """Return the columns that are other names of the user or the item, with one value for each, and the reasons."""
    reasons = {}
    for key in (c for c in columns if c.role in ("user", "item")):
        for c in columns:
            if c.role or c.kind not in KINDS or c.distinct != key.distinct or c.distinct <= FEW:
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
    return several.height > 0 and mean(several["n"] == 1) > MOSTLY


def basket(columns: Sequence[Column]) -> Column | None:
    """Return the column that identifies an order, a basket or an event of few rows; None if no column does."""
    ids = [c for c in columns if not c.role and c.kind in KINDS and names_an_id_of(c.name, EVENT_KEYS)]
    ids = [c for c in ids if words(c.name)[-1].endswith(ENDS) and FEW < c.distinct < c.rows <= MOST_ROWS * c.distinct]
    return max(ids, key=lambda c: c.distinct, default=None)


def set_lists_of_items(columns: Sequence[Column]) -> None:
    """Take a text for a list if its words are values of the item, such as the history of a user."""
    item = next((c for c in columns if c.role == "item"), None)
    if item is None:
        return
    known = item.values.drop_nulls().cast(pl.String).unique()
    for c in columns:
        if c.role or c.values.dtype != pl.String or c.kind not in KINDS or c.distinct <= FEW:
            continue
        parts = c.values.drop_nulls().head(MOST_TEXTS).str.split(" ")
        if mean(parts.list.len()) > 1 and mean(parts.explode().is_in(known.implode())) > MOSTLY_KNOWN:
            c.kind, c.split, c.reason = "list", " ", f"its words are values of {item.name}"


def set_ids_of_lists(columns: Sequence[Column]) -> None:
    """Take a number for an id if lists hold its values, as a history holds items."""
    lists = [c for c in columns if c.kind == "list"]
    for c in columns:
        if c.kind != "number" or c.role or not c.is_whole or c.distinct <= FEW:
            continue
        values = c.values.drop_nulls().cast(pl.String).unique()
        holder = next((n for n in lists if mean(values.is_in(elements_of(n).implode())) > MOSTLY_KNOWN), None)
        if holder is not None:
            c.kind, c.reason = "id", f"its values are those of {holder.name}"


def elements_of(c: Column) -> pl.Series:
    """Return the different values of the lists of a column."""
    values = c.values.drop_nulls()
    if values.dtype.is_nested():
        lists = values
    else:
        lists = values.str.split(c.split or ",") if c.pattern is None else values.str.extract_all(c.pattern)
    return lists.explode().cast(pl.String).str.strip_chars().unique().drop_nulls()


def set_ids_of_items(columns: Sequence[Column]) -> None:
    """Take numbered columns, such as hist_1 to hist_10, for ids if they have the values of the item."""
    item = next((c for c in columns if c.role == "item" and c.numbers is not None), None)
    if item is None or item.numbers is None:
        return
    known = item.numbers.drop_nulls().unique()
    families: dict[tuple[str, ...], list[Column]] = {}
    for c in columns:
        *stem, last = words(c.name) or [""]
        if stem and last.isdecimal() and not c.role and c.kind == "number" and c.numbers is not None and c.is_whole:
            families.setdefault(tuple(stem), []).append(c)
    for family in families.values():
        values = pl.concat([c.numbers.cast(pl.Float64) for c in family if c.numbers is not None]).drop_nulls()
        distinct = values.filter(values != 0).unique()  # 0 pads
        if len(family) < 3 or distinct.len() <= FEW or distinct.is_in(known.cast(pl.Float64).implode()).mean() < 0.9:  # type: ignore[operator]
            continue
        if distinct.len() >= 0.5 * known.len():
            for c in family:
                c.kind, c.reason = "id", f"its values are those of {item.name}"
