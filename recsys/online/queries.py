"""Turn the past rows of groups into queries: the features that a retrieval model reads, and the items to leave out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl

from recsys.data.features import GROUP, Fitted
from recsys.data.features.arrays import Arrays
from recsys.data.features.blocks import HISTORY, LINE, LIST, TARGETS
from recsys.data.features.group_features import next_item_queries, slices
from recsys.data.features.resolved_data import ResolvedData
from recsys.interface.features import FeatureSpec


@dataclass(frozen=True)
class Queries:
    """Q queries.

    groups: (Q,) key of each group, as text
    arrays, features: their features, and the spec of these
    history: (P,) known candidates of all histories, one query after another
    lengths: (Q,) number of known candidates of each history
    """

    groups: pl.Series
    arrays: Arrays
    features: FeatureSpec
    history: np.ndarray
    lengths: np.ndarray

    @property
    def histories(self) -> list[np.ndarray]:
        """The known candidates of each history."""
        return np.split(self.history, np.cumsum(self.lengths)[:-1])

    @classmethod
    def from_rows(cls, fitted: Fitted, rows: pl.DataFrame) -> Queries:
        """Return a query for each group of parsed rows, in the order of the groups' first rows."""
        queries = next_item_queries(fitted.data, rows)
        applied = fitted.apply(queries.drop(HISTORY, TARGETS))
        lists = queries[HISTORY]
        ids = fitted.candidate_ids(lists.explode(empty_as_null=False, keep_nulls=False)).to_numpy().astype(np.int64)
        owner = np.repeat(np.arange(queries.height), lists.list.len().to_numpy())[ids > 0]
        lengths = np.bincount(owner, minlength=queries.height)
        arrays = Arrays.from_frame(applied, fitted.features, fitted.matrices)
        return cls(queries[GROUP], arrays, fitted.features, ids[ids > 0], lengths)


def unknown_item(dtype: pl.DataType) -> Any:
    """Return an item of this type that no vocabulary holds; None for other types than text and whole numbers."""
    if dtype.is_integer():
        bounds = np.iinfo(str(dtype).lower())
        return bounds.min if bounds.min < 0 else bounds.max
    return "\0" if dtype == pl.String else None


def lacks_item(data: ResolvedData, frame: pl.DataFrame) -> pl.Expr:
    """Return whether a raw row names no item; of lists of items, and other types than unknown_item has, false."""
    item = data.sparse_columns[data.item_feature or ""].column
    if unknown_item(frame.schema[item]) is None:
        return pl.repeat(False, frame.height)
    return pl.col(item).is_null() | (pl.col(item).cast(pl.String) == "")


def with_users_alone(data: ResolvedData, frame: pl.DataFrame) -> tuple[pl.DataFrame, pl.Series]:
    """Give the rows of groups without any item an unknown item, and an order if they have none.

    So a group of which only attributes are known gets a list, as from a server.

    Returns:
        The raw rows, and the values of LINE of those that were given an item.
    """
    assert data.group is not None and data.item_feature is not None
    item, order = data.sparse_columns[data.item_feature].column, data.group.order
    unknown, lines = unknown_item(frame.schema[item]), frame[LINE].clear()
    if unknown is None:
        return frame, lines
    lines = frame.filter(lacks_item(data, frame).all().over(data.group.by))[LINE]
    values = {item: pl.lit(unknown)}
    if order is not None:
        first = pl.lit("0" if frame.schema[order] == pl.String else 0).cast(frame.schema[order])
        values[order] = pl.col(order).fill_null(first)
    alone = pl.col(LINE).is_in(lines.implode())
    types = frame.schema
    return frame.with_columns(
        pl.when(alone).then(x.cast(types[n])).otherwise(pl.col(n)).alias(n) for n, x in values.items()
    ), lines


def without_item(data: ResolvedData, parsed: pl.DataFrame, lines: pl.Series) -> pl.DataFrame:
    """Return parsed rows in which the items of some rows are missing."""
    item = data.item_feature or ""
    missing = pl.col(LINE).is_in(lines.implode())
    return parsed.with_columns(pl.when(missing).then(pl.lit("")).otherwise(pl.col(item)).alias(item))


def in_batches(fitted: Fitted, rows: pl.DataFrame, size: int) -> Iterator[Queries]:
    """Yield the queries of the groups of parsed rows, `size` groups at a time."""
    number = "__number__"
    groups = rows.select(GROUP).unique(maintain_order=True).with_row_index(number)
    rows = rows.join(groups, on=GROUP, how="left", maintain_order="left").sort(number, maintain_order=True)
    bounds = np.searchsorted(rows[number].to_numpy(), np.arange(0, groups.height + size, size))
    for start, stop in pairwise(bounds):
        yield Queries.from_rows(fitted, rows[int(start) : int(stop)].drop(number))


def answers(
    fitted: Fitted, groups: pl.Series, ids: np.ndarray, scores: np.ndarray, *, key: pl.DataType, item: pl.DataType
) -> pl.DataFrame:
    """Return a row for each group: its key, named as data.group.by, items and scores.

    Args:
        ids: (Q, k) candidates of each group.
        scores: (Q, k), -inf where there is no candidate.
        key, item: types of the groups' keys and of the items.
    """
    assert fitted.data.group is not None
    by = fitted.data.group.by
    if by == LIST:  # the key has the form FILE:FIRST_BYTE_OF_PIECE:LINE; drop the byte
        groups = groups.str.replace(r":\d+:(\d+)$", ":$1")
    ranked = scores > -np.inf
    stops = ranked.sum(1).cumsum()
    starts = np.concatenate([[0], stops[:-1]]) if len(stops) else stops
    return pl.DataFrame(
        {
            by: _cast(groups, key),
            "items": slices(named_items(fitted, ids[ranked], item), starts, stops),
            "scores": slices(pl.Series(scores[ranked]), starts, stops),
        }
    )


def named_items(fitted: Fitted, ids: np.ndarray, item: pl.DataType) -> pl.Series:
    """Return the items of candidates (n,), in the type that the raw files have."""
    return _cast(fitted.candidates.gather(ids - 1), item)


def _cast(values: pl.Series, dtype: pl.DataType) -> pl.Series:
    """Cast text to the type that the raw files have, or return it unchanged if a value cannot be cast."""
    try:
        return values.cast(dtype)
    except pl.exceptions.InvalidOperationError:
        return values
