"""Metrics by the values of features."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import polars as pl

from recsys.data.loader import ParquetLoader
from recsys.data.transforms import Fitted, sparse_columns
from recsys.evaluation.binary import Rows, binary_metrics

PARTS = 5  # of a dense feature's rows


def slices(
    names: list[str], loader: ParquetLoader, rows: Rows, fitted: Fitted, most: int
) -> dict[str, list[dict[str, Any]]]:
    """By feature, of its `most` most frequent values, and of all others together, what `binary_metrics` tells,
    and how many are positive.

    A row with several values counts for each; a dense feature is cut into PARTS of equally many rows, named by what
    the model reads.
    """
    found: dict[str, list[dict[str, Any]]] = {}
    for name in names:
        column = loader.column(name, 0, loader.total_rows)
        column = column if len(rows.place) == len(column) else column.gather(rows.place)
        parts = _by_id(name, column, fitted, most) if name in fitted.data.sparse else _by_quantile(column)
        found[name] = [{"value": v} | _measured(rows.probability[at], rows.label[at]) for v, at in parts]
    return found


def _measured(probability: np.ndarray, label: np.ndarray) -> dict[str, Any]:
    return binary_metrics(probability, label) | {"positives": int(label.sum())}


def _by_id(name: str, column: pl.Series, fitted: Fitted, most: int) -> Iterator[tuple[str, np.ndarray]]:
    """Each value, most frequent first, and the rows that have it."""
    frame = pl.DataFrame({"id": column}).with_row_index("row")
    if column.dtype == pl.List:
        frame = frame.explode("id", empty_as_null=False, keep_nulls=False).unique()
    ids = frame.group_by("id").len().sort("len", "id", descending=[True, False])["id"]
    table = fitted.vocabularies.get(sparse_columns(fitted.data)[name].table or name)
    for id_ in ids.head(most):
        value = str(id_) if table is None else table["value"][id_ - 1] if id_ > 0 else "(out of vocabulary)"
        yield value or "(missing)", frame.filter(pl.col("id") == id_)["row"].to_numpy()
    if len(ids) > most:
        others = ~pl.col("id").is_in(ids.head(most).implode())
        yield f"({len(ids) - most:,} others)", frame.filter(others)["row"].unique().to_numpy()


def _by_quantile(column: pl.Series) -> Iterator[tuple[str, np.ndarray]]:
    values = column.to_numpy()
    bounds = np.unique(np.quantile(values, np.linspace(0, 1, PARTS + 1)))
    part = np.searchsorted(bounds[1:-1], values, side="left")
    for i in np.unique(part):
        at = np.flatnonzero(part == i)
        yield f"{values[at].min():.4g} to {values[at].max():.4g}", at
