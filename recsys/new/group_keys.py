"""Find the column that identifies a query, a display or a session, of whose rows one or few are positive."""

from collections.abc import Sequence

import polars as pl

from recsys.new.column_kinds import Column
from recsys.new.known_names import names_an_id_of
from recsys.new.label import LabelGuess
from recsys.new.roles import ID_KINDS
from recsys.new.statistics import mean

QUERIES = (  # names of what is shown together
    *("srch", "search", "query", "qid", "display", "impression", "imp", "request", "auction", "slate", "list"),
    *("session", "sessionid", "pageview", "page"),
)
EVENT_KEYS = (*QUERIES, "event", "order", "basket", "transaction", "visit", "view", "click", "interaction", "row")
FEWEST_GROUPS = 20
MOST_GRADES = 20
MOST_POSITIVE = 3  # positive rows of a group, on average
GROUPED = 0.8  # share of the rows that are in groups of several
ONE_POSITIVE = 0.9  # share of groups with one positive row, from which a column without such a name is a group


def group_of(columns: Sequence[Column], label: LabelGuess) -> Column | None:
    """Return the column of queries, displays or sessions; None if no column groups the rows in such a way."""
    if label.kind != "binary":
        return None
    free = [c for c in columns if c.role in ("", "user") and c.kind in ID_KINDS and not c.missing]
    free = [c for c in free if c.distinct >= FEWEST_GROUPS and (c.numbers is None or c.is_whole)]
    named = [c for c in free if names_an_id_of(c.name, QUERIES)]
    unnamed = [c for c in free if c not in named and not c.role]
    query = next((c for c in named if _few_positives(c, label)), None)
    return query or next((c for c in unnamed if _one_positive(c, label)), None)


def queries_of_grades(columns: Sequence[Column], grades: Column) -> Column | None:
    """Return the column of queries whose rows differ in their grades; None without such a column or without grades."""
    values = grades.numbers
    if values is None or not grades.is_whole or not 3 <= grades.distinct <= MOST_GRADES or values.min() < 0:  # type: ignore[operator]
        return None
    for c in columns:
        if c.role in ("", "user") and c.distinct >= FEWEST_GROUPS and names_an_id_of(c.name, QUERIES):
            frame = pl.DataFrame({"group": c.values, "y": values}).drop_nulls()
            groups = frame.group_by("group").agg(rows=pl.len(), differ=pl.col("y").n_unique() > 1)
            groups = groups.filter(pl.col("rows") > 1)
            if (
                groups.height >= FEWEST_GROUPS
                and groups["rows"].sum() >= GROUPED * c.rows
                and mean(groups["differ"]) > 0.5
            ):
                return c
    return None


def _groups(c: Column, label: LabelGuess) -> pl.DataFrame:
    """Return the number of rows, and of positive rows, of each group of several rows."""
    frame = pl.DataFrame({"group": c.values, "y": label.values}).drop_nulls()
    return frame.group_by("group").agg(rows=pl.len(), positive=pl.col("y").sum()).filter(pl.col("rows") > 1)


def _few_positives(c: Column, label: LabelGuess) -> bool:
    """Return True if most rows are in groups of several rows, of which few are positive."""
    groups = _groups(c, label)
    if groups.height < FEWEST_GROUPS or groups["rows"].sum() < GROUPED * c.rows:
        return False
    return mean(groups["positive"]) <= MOST_POSITIVE and mean(groups["positive"] < groups["rows"]) > 0.5


def _one_positive(c: Column, label: LabelGuess) -> bool:
    """Return True if the rows of a group stand together, and one of them is positive."""
    groups = _groups(c, label)
    if groups.height < FEWEST_GROUPS or groups["rows"].sum() < GROUPED * c.rows:
        return False
    runs = int((c.values != c.values.shift()).sum() or 0) + 1
    return runs <= 1.1 * c.distinct and mean(groups["positive"] == 1) > ONE_POSITIVE


def has_one(group: Column, of: Column) -> bool:
    """Return True if all rows of a group have the same value of another column."""
    frame = pl.DataFrame({"group": group.values, "x": of.values})
    return mean(frame.group_by("group").agg(pl.col("x").n_unique().alias("n"))["n"] == 1) > 0.999
