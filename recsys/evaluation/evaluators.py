"""Evaluators, which measure a task on a split batch by batch: metrics, slices, curves and predictions over all ranks.

The LightningModule uses an Evaluator without knowing its type. Closed-form models, which have no task, use the metrics
of the retrieval evaluator directly.
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

    def begin(self, task: Any, loader: ParquetLoader | None, brief: bool = False) -> None:
        """Prepare to measure the rows of `loader` with the weights that the task has now. Collective.

        brief: leave out the metrics that select no checkpoint, as validations during the training do
        """
        ...

    def update(self, task: Any, output: Tensor, batch: Batch) -> None:
        """Add the task's output for a batch. Collective."""
        ...

    def compute(self) -> dict[str, float]:
        """Return the metrics over all rows of all ranks, and reset. Collective.

        Raises:
            NotFinite: a prediction is NaN or infinite; on all ranks.
        """
        ...

    def slices(self, names: list[str], loader: ParquetLoader, fitted: Fitted, max_values: int) -> dict[str, Any]:
        """Return the metrics for each value of the features `names`, over the rows of the last `compute`."""
        ...

    def curves(self, bins: int) -> dict[str, list[Any]] | None:
        """Return points of curves over the rows of the last `compute`; None if the evaluator has no curves."""
        ...

    def write(self, folder: Path, split: str) -> None:
        """Write the prediction of each row, or the rank of each target, which recsys.report resamples."""
        ...


class BinaryEvaluator:
    """Evaluator of label predictions.

    Args:
        metrics: collects the rows.
        gauc: feature whose values group the rows for GAUC.
    """

    def __init__(self, metrics: BinaryMetrics | None = None, gauc: str | None = None) -> None:
        self.metrics, self._gauc = metrics or BinaryMetrics(), gauc

    def begin(self, task: Any, loader: ParquetLoader | None, brief: bool = False) -> None:
        if (name := self._gauc) is not None and loader is not None:
            self.metrics.groups = lambda start, stop: loader.column(name, start, stop).to_numpy()

    def update(self, task: Any, output: Tensor, batch: Batch) -> None:
        self.metrics.update(output, batch.labels, batch.weight, batch.first_row)

    def compute(self) -> dict[str, float]:
        return self.metrics.compute()

    def slices(self, names: list[str], loader: ParquetLoader, fitted: Fitted, max_values: int) -> dict[str, Any]:
        rows = self.metrics.rows
        assert rows is not None

        def measure(at: np.ndarray) -> dict[str, Any]:
            label = rows.label[at]
            return binary_metrics(rows.probability[at], label) | {"positives": int(label.sum())}

        return slices(names, loader, rows.place, measure, fitted, max_values)

    def curves(self, bins: int) -> dict[str, list[Any]] | None:
        return None if self.metrics.scores is None else self.metrics.scores.curves(bins)

    def write(self, folder: Path, split: str) -> None:
        assert self.metrics.rows is not None
        write_predictions(self.metrics.rows, folder / f"{split}_predictions.parquet")


class RetrievalEvaluator:
    """Evaluator of retrieval models: ranks the targets of queries among the candidates.

    Each rank scores a range of the candidates.

    Args:
        metrics: counts, for each target, the candidates that score higher.
    """

    def __init__(self, metrics: RankingMetrics) -> None:
        self.metrics = metrics
        self.items: Tensor | None = None  # (n, d) vectors of the candidates that this rank scores, during an evaluation

    def begin(self, task: Any, loader: ParquetLoader | None, brief: bool = False) -> None:
        self.metrics.with_lists = not brief
        self.items = task.item_vectors(*candidate_shard(self.metrics.candidates)).float()

    def update(self, task: Any, output: Tensor, batch: Batch) -> None:
        assert batch.targets is not None and batch.history is not None and self.items is not None
        items = self.items
        mine, _ = candidate_shard(self.metrics.candidates)

        def score(queries: Tensor, first: int, stop: int) -> Tensor:
            with torch.autocast(items.device.type, enabled=False):  # in half precision many scores would tie
                return task.scorer.score_all(queries, items[first - mine.start : stop - mine.start])

        self.metrics.update(output.float(), score, batch.targets, batch.history, batch.first_row, batch.weight, items)

    def compute(self) -> dict[str, float]:
        self.items = None
        metrics = self.metrics.compute()
        self.metrics.check_finite()
        return metrics

    def slices(self, names: list[str], loader: ParquetLoader, fitted: Fitted, max_values: int) -> dict[str, Any]:
        return retrieval_slices(self.metrics, names, loader, fitted, max_values)

    def curves(self, bins: int) -> dict[str, list[Any]] | None:
        return None

    def write(self, folder: Path, split: str) -> None:
        write_ranks(self.metrics, folder / f"{split}_ranks.parquet")


def retrieval_slices(
    metrics: RankingMetrics, names: list[str], loader: ParquetLoader, fitted: Fitted, max_values: int
) -> dict[str, Any]:
    """Return the metrics for each value of the features `names`, over the queries of the last `compute`."""
    places, query = np.unique(metrics.ranks[:, 0], return_inverse=True)

    def measure(at: np.ndarray) -> dict[str, Any]:
        ranks = metrics.ranks[np.isin(query, at)]
        return metrics.measure(ranks) | {"rows": len(at), "targets": len(ranks)}

    return slices(names, loader, places, measure, fitted, max_values)


def write_predictions(rows: Rows, path: Path) -> None:
    """Write one row per measured row: its number in the split (`row`), probability and label."""
    columns = {"row": rows.place, "probability": rows.probability, "label": rows.label.astype(np.uint8)}
    pl.DataFrame(columns).write_parquet(path)


def write_ranks(metrics: RankingMetrics, path: Path) -> None:
    """Write one row per target.

    Columns: the number of its query's row in the split (`query`) and, for each protocol, the number of candidates that
    score higher (-1 if the target cannot be ranked) and the number of ties.
    """
    columns = {"query": metrics.ranks[:, 0]}
    for i, name in enumerate(metrics.protocols.protocols):
        columns |= {f"greater_{name}": metrics.ranks[:, 2 + 2 * i], f"ties_{name}": metrics.ranks[:, 3 + 2 * i]}
    pl.DataFrame(columns).write_parquet(path)
