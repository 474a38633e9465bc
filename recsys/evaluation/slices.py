"""Metrics by the values of features: how well a model does for each country, device or genre."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import polars as pl

from recsys.data.features import Fitted
from recsys.data.loader.parquet_loader import ParquetLoader

PARTS = 5  # number of quantile ranges for a dense feature

Measure = Callable[[np.ndarray], dict[str, Any]]


def slices(
    names: list[str], loader: ParquetLoader, place: np.ndarray, measure: Measure, fitted: Fitted, max_values: int
) -> dict[str, list[dict[str, Any]]]:
    """Return the metrics for each value of each feature: the most frequent values, then all other values together.

    A row with several values counts for each of them. The rows of a dense feature are divided into PARTS ranges with
    the same number of rows, named by the range of the values that the model reads.

    place: (R,) row number in the split of each measured row
    measure: returns the metrics of the measured rows with these indices 0 ... R - 1
    """
    tables: dict[str, list[dict[str, Any]]] = {}
    for name in names:
        column = loader.column(name, 0, loader.total_rows)
        column = column if len(place) == len(column) else column.gather(place)
        parts = _by_id(name, column, fitted, max_values) if name in fitted.data.sparse else _by_quantile(column)
        tables[name] = [{"value": value} | measure(rows) for value, rows in parts]
    return tables


def _by_id(name: str, column: pl.Series, fitted: Fitted, max_values: int) -> Iterator[tuple[str, np.ndarray]]:
    """Yield each value, the most frequent first, and the rows that have it."""
    frame = pl.DataFrame({"id": column}).with_row_index("row")
    if column.dtype == pl.List:
        frame = frame.explode("id", empty_as_null=False, keep_nulls=False).unique()
    ids = frame.group_by("id").len().sort("len", "id", descending=[True, False])["id"]
    table = fitted.vocabularies.get(fitted.data.sparse_columns[name].table)
    for id_ in ids.head(max_values):
        value = str(id_) if table is None else table["value"][id_ - 1] if id_ > 0 else "(out of vocabulary)"
        yield value or "(missing)", frame.filter(pl.col("id") == id_)["row"].to_numpy()
    if len(ids) > max_values:
        others = ~pl.col("id").is_in(ids.head(max_values).implode())
        yield f"({len(ids) - max_values:,} others)", frame.filter(others)["row"].unique().to_numpy()


def _by_quantile(column: pl.Series) -> Iterator[tuple[str, np.ndarray]]:
    """Yield each range of a dense feature's values, ascending, and its rows."""
    values = column.to_numpy()
    bounds = np.unique(np.quantile(values, np.linspace(0, 1, PARTS + 1)))
    part = np.searchsorted(bounds[1:-1], values, side="left")
    for i in np.unique(part):
        rows = np.flatnonzero(part == i)
        yield f"{values[rows].min():.4g} to {values[rows].max():.4g}", rows
