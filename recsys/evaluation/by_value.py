"""Metrics of the rows that have each value of a feature, and how often lists show the items that have it."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import polars as pl

from recsys.data.features import Fitted
from recsys.data.loader.parquet_loader import ParquetLoader
from recsys.evaluation.retrieval_metrics import RetrievalMetrics

PARTS = 5  # number of quantile ranges for a dense feature

Measure = Callable[[np.ndarray], dict[str, Any]]


def slices(
    names: Sequence[str], loader: ParquetLoader, place: np.ndarray, measure: Measure, fitted: Fitted, max_values: int
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
        tables[name] = [{"value": v} | measure(rows) for v, rows in _by_value(name, column, fitted, max_values)]
    return tables


def exposure(metrics: RetrievalMetrics, fitted: Fitted, max_values: int) -> dict[str, list[dict[str, Any]]]:
    """Return how often the lists of the last `compute` show items with each value of the features `protocol.exposure`.

    For each value: candidates, the number of candidates that have it; training, the share of the training rows whose
    item has it; share@k, the share of the places of lists of k; lift@k = share@k / training, 1 if lists show it as
    often as users chose it (the disparate exposure of Singh & Joachims, Fairness of Exposure in Rankings, 2018, with
    the training rows as merit). Values of an item with several count for each of them.
    """
    names = metrics.protocols.exposure
    if fitted.items is None or not metrics.listed:
        return {}
    chosen = metrics.popularity.astype(np.float64) / max(float(metrics.popularity[1:].sum()), 1.0)
    shares = {k: counts / max(counts.sum(), 1) for k, counts in metrics.listed.items()}
    tables: dict[str, list[dict[str, Any]]] = {}
    for name in names:
        column, own = fitted.items.rows[name][1:], fitted.items.fitted  # row 0 stands for unknown items
        tables[name] = []
        for value, rows in _by_value(name, column, own, max_values):
            training = float(chosen[rows + 1].sum())
            listed = {k: float(share[rows + 1].sum()) for k, share in shares.items()}
            lifts = {f"lift@{k}": x / training if training else None for k, x in listed.items()}
            own_shares = {f"share@{k}": x for k, x in listed.items()}
            tables[name].append({"value": value, "candidates": len(rows), "training": training} | own_shares | lifts)
    return tables


def _by_value(name: str, column: pl.Series, fitted: Fitted, max_values: int) -> Iterator[tuple[str, np.ndarray]]:
    """Yield each value of a sparse feature, or each range of a dense one, and its rows."""
    return _by_id(name, column, fitted, max_values) if name in fitted.data.sparse else _by_quantile(column)


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
