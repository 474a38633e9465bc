"""Evaluators measure a task on a split, batch by batch: metrics, slices, curves and predictions of all ranks.

The LightningModule holds one and does not ask which; closed-form models are measured by the retrieval evaluator's
metrics without a task.
"""

from pathlib import Path
from typing import Any, Protocol

import numpy as np
import polars as pl
import torch
from torch import Tensor

from recsys.batch import Batch
from recsys.data.loader import ParquetLoader
from recsys.data.transforms import Fitted
from recsys.evaluation.binary import BinaryMetrics, Rows, binary_metrics
from recsys.evaluation.retrieval import RankingMetrics
from recsys.evaluation.retrieval_counts import candidate_shard
from recsys.evaluation.slices import slices


class Evaluator(Protocol):
    """Measures one split at a time. All ranks call every method, except `slices` and `write`, which rank 0 calls."""

    def begin(self, task: Any, loader: ParquetLoader | None) -> None:
        """Prepare to measure the rows of `loader` with the weights that the task has now. Collective."""
        ...

    def update(self, task: Any, output: Tensor, batch: Batch) -> None:
        """Take the task's output for a batch. Collective."""
        ...

    def compute(self) -> dict[str, float]:
        """Return the metrics over all rows of all ranks, then start anew. Collective."""
        ...

    def slices(self, names: list[str], loader: ParquetLoader, fitted: Fitted, most: int) -> dict[str, Any]:
        """Return metrics by the values of features, of the rows that `compute` measured last."""
        ...

    def curves(self, bins: int) -> dict[str, list[Any]] | None:
        """Return points of curves of the rows that `compute` measured last; None where there are none."""
        ...

    def write(self, folder: Path, split: str) -> None:
        """Write each row's prediction, for recsys.report to resample."""
        ...


class BinaryEvaluator:
    """Measures predictions of labels.

    Args:
        metrics: collects the rows.
        gauc: the feature whose values group rows for GAUC.
    """

    def __init__(self, metrics: BinaryMetrics | None = None, gauc: str | None = None) -> None:
        self.metrics, self._gauc = metrics or BinaryMetrics(), gauc

    def begin(self, task: Any, loader: ParquetLoader | None) -> None:
        if (name := self._gauc) is not None and loader is not None:
            self.metrics.groups = lambda start, stop: loader.column(name, start, stop).to_numpy()

    def update(self, task: Any, output: Tensor, batch: Batch) -> None:
        self.metrics.update(output, batch.labels, batch.weight, batch.first_row)

    def compute(self) -> dict[str, float]:
        return self.metrics.compute()

    def slices(self, names: list[str], loader: ParquetLoader, fitted: Fitted, most: int) -> dict[str, Any]:
        rows = self.metrics.rows
        assert rows is not None

        def measure(at: np.ndarray) -> dict[str, Any]:
            label = rows.label[at]
            return binary_metrics(rows.probability[at], label) | {"positives": int(label.sum())}

        return slices(names, loader, rows.place, measure, fitted, most)

    def curves(self, bins: int) -> dict[str, list[Any]] | None:
        return None if self.metrics.scores is None else self.metrics.scores.curves(bins)

    def write(self, folder: Path, split: str) -> None:
        assert self.metrics.rows is not None
        write_predictions(self.metrics.rows, folder / f"{split}_predictions.parquet")


class RetrievalEvaluator:
    """Measures where the targets of queries stand among the candidates, each rank scoring a range of them.

    Args:
        metrics: counts, for each target, the candidates that score higher.
    """

    def __init__(self, metrics: RankingMetrics) -> None:
        self.metrics = metrics
        self.items: Tensor | None = None  # (n, d) vectors of the candidates that this rank scores, while it measures

    def begin(self, task: Any, loader: ParquetLoader | None) -> None:
        self.items = task.item_vectors(*candidate_shard(self.metrics.candidates)).float()

    def update(self, task: Any, output: Tensor, batch: Batch) -> None:
        assert batch.targets is not None and batch.history is not None and self.items is not None
        items = self.items
        mine, _ = candidate_shard(self.metrics.candidates)

        def score(queries: Tensor, first: int, stop: int) -> Tensor:
            with torch.autocast(items.device.type, enabled=False):  # in half precision many scores would tie
                return task.scorer.score_all(queries, items[first - mine.start : stop - mine.start])

        self.metrics.update(output.float(), score, batch.targets, batch.history, batch.first_row, batch.weight)

    def compute(self) -> dict[str, float]:
        self.items = None
        return self.metrics.compute()

    def slices(self, names: list[str], loader: ParquetLoader, fitted: Fitted, most: int) -> dict[str, Any]:
        places, query = np.unique(self.metrics.ranks[:, 0], return_inverse=True)

        def measure(at: np.ndarray) -> dict[str, Any]:
            ranks = self.metrics.ranks[np.isin(query, at)]
            return self.metrics.measure(ranks) | {"rows": len(at), "targets": len(ranks)}

        return slices(names, loader, places, measure, fitted, most)

    def curves(self, bins: int) -> dict[str, list[Any]] | None:
        return None

    def write(self, folder: Path, split: str) -> None:
        write_ranks(self.metrics, folder / f"{split}_ranks.parquet")


def write_predictions(rows: Rows, path: Path) -> None:
    """Write a row for each measured one: row (its place in the split), probability, label."""
    columns = {"row": rows.place, "probability": rows.probability, "label": rows.label.astype(np.uint8)}
    pl.DataFrame(columns).write_parquet(path)


def write_ranks(metrics: RankingMetrics, path: Path) -> None:
    """Write a row for each target: query (its place in the split) and, by protocol, how many of its competitors score
    higher (-1 where it cannot be ranked) and how many score the same.
    """
    columns = {"query": metrics.ranks[:, 0]}
    for i, name in enumerate(metrics.protocols.protocols):
        columns |= {f"greater_{name}": metrics.ranks[:, 2 + 2 * i], f"ties_{name}": metrics.ranks[:, 3 + 2 * i]}
    pl.DataFrame(columns).write_parquet(path)
