"""What an evaluation tells beside its metrics: metrics by the values of features, curves, every prediction."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from omegaconf import DictConfig

from recsys.data.loader import ParquetLoader
from recsys.data.transforms import Fitted, sparse_columns
from recsys.metrics import BinaryMetrics, Rows, binary_metrics
from recsys.ranking import RankingMetrics
from recsys.schema import MetricsConfig

PARTS = 5  # of a dense feature's rows


@dataclass(frozen=True)
class Details:
    """Of one split: metrics by feature and value; points of curves; the rows themselves."""

    slices: dict[str, list[dict[str, Any]]]
    curves: dict[str, list[Any]]
    rows: Rows

    @classmethod
    def of(
        cls, metrics: Any, loader: ParquetLoader, fitted: Fitted, config: MetricsConfig | DictConfig
    ) -> "Details | None":
        """Of what `metrics` has computed last, over the rows of `loader`; None where this rank has none of it.

        fitted: of the prepared data, which knows what the ids stand for
        """
        if not isinstance(metrics, BinaryMetrics) or metrics.rows is None or metrics.scores is None:
            return None
        found = slices(list(config.slices), loader, metrics.rows, fitted, config.slice_values)
        return cls(found, metrics.scores.curves(config.bins), metrics.rows)


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


def write_predictions(rows: Rows, path: Path) -> None:
    """row (its place in the split), probability, label."""
    pl.DataFrame({
        "row": rows.place,
        "probability": rows.probability,
        "label": rows.label.astype(np.uint8),
    }).write_parquet(path)  # fmt: skip


def read_predictions(path: Path) -> Rows:
    frame = pl.read_parquet(path, glob=False)
    return Rows(frame["row"].to_numpy(), frame["probability"].to_numpy(), frame["label"].to_numpy())


def write_ranks(metrics: RankingMetrics, path: Path) -> None:
    """A row a target: query (its place in the split), and of each protocol how many of its competitors score higher
    (-1 where it cannot be ranked) and how many the same.
    """
    columns = {"query": metrics.ranks[:, 0]}
    for i, name in enumerate(metrics.protocols.protocols):
        columns |= {f"greater_{name}": metrics.ranks[:, 2 + 2 * i], f"ties_{name}": metrics.ranks[:, 3 + 2 * i]}
    pl.DataFrame(columns).write_parquet(path)
