"""What an evaluation tells beside its metrics: metrics by the values of features, curves, every prediction."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from omegaconf import DictConfig

from recsys.config.schema_run import MetricsConfig
from recsys.data.loader import ParquetLoader
from recsys.data.transforms import Fitted
from recsys.evaluation.binary import BinaryMetrics, Rows
from recsys.evaluation.retrieval import RankingMetrics
from recsys.evaluation.slices import slices


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
