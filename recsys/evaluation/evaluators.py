"""Evaluators, which measure a task on a split batch by batch: metrics, slices, curves and predictions over all ranks.

The LightningModule uses an Evaluator without knowing its type. Closed-form models, which have no task, use the metrics
of the retrieval evaluator directly.
"""

from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import polars as pl
import torch
from torch import Tensor

from recsys.base.errors import NotFinite
from recsys.data.features import GROUP, Fitted
from recsys.data.loader.parquet_loader import ParquetLoader
from recsys.evaluation.binary import BinaryMetrics, groups_at, undefined
from recsys.evaluation.by_value import exposure, slices
from recsys.evaluation.calibration import calibrate
from recsys.evaluation.collected_rows import from_rank_0, rank
from recsys.evaluation.group_metrics import group_metrics
from recsys.evaluation.metrics_table import TARGETS
from recsys.evaluation.position_effects import PositionEffects
from recsys.evaluation.retrieval_counts import candidate_shard
from recsys.evaluation.retrieval_metrics import RetrievalMetrics
from recsys.evaluation.value_metrics import ClassMetrics, NumberMetrics, ValueMetrics
from recsys.interface.batch import Batch
from recsys.interface.labels import BinaryLabel, ClassLabel, Label, ScalarLabel, label_slices, predict

# metrics that are also measured before the calibration
CALIBRATED = ("logloss", "ne", "calibration", "ece", "rmse", "mae")


class Evaluator(Protocol):
    """Measures one split at a time. All ranks call every method, except `details` and `write`, which rank 0 calls."""

    def begin(self, task: Any, loader: ParquetLoader | None, brief: bool = False) -> None:
        """Prepare to measure the rows of `loader` with the weights that the task has now. Collective.

        brief: compute only the metrics that may select a checkpoint, for validations during training
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

    def undefined(self, metrics: dict[str, float]) -> str | None:
        """Return a line that names the undefined metrics and says why, or None if all are defined."""
        ...

    def details(self, names: list[str], loader: ParquetLoader, fitted: Fitted, max_values: int) -> dict[str, Any]:
        """Return the sections of metrics.json that describe the last `compute` beside its metrics.

        slices: the metrics for each value of some features (`by_value.slices`); positions: what the rows' positions do
        (`PositionEffects`); exposure: how often lists show items with each value of a feature (`by_value.exposure`)

        names: the features of slices
        loader: the loader of the rows
        fitted: has the vocabularies, which name the values
        max_values: number of values of a feature that are measured at most, the most frequent ones
        """
        ...

    def curves(self, bins: int) -> dict[str, list[Any]] | None:
        """Return points of curves over the rows of the last `compute`; None if the evaluator has no curves.

        The curves of the first label are named roc, pr and calibration; the curves of others have a prefix, as buy/roc.
        """
        ...

    def write(self, folder: Path, split: str) -> None:
        """Write the prediction of each row, or the rank of each target, which recsys.report resamples."""
        ...


class LabelsEvaluator:
    """Evaluator of label predictions.

    Args:
        exact_rows, bins: as in BinaryMetrics.
        gauc: feature whose values group the rows for GAUC of the first binary label.
        every_id_known: whether id 0 of that feature is a value like others. Otherwise it stands for all values that
            training lacks, which are not a group.
        group_ks: values of k of the metrics within groups (data.group). Labels after the first have their GAUC over
            these groups, and so has the first without `gauc`. Empty if batches do not keep groups together.
    """

    def __init__(
        self,
        labels: tuple[Label, ...] = (BinaryLabel("label"),),
        exact_rows: int = 20_000_000,
        bins: int = 20,
        gauc: str | None = None,
        group_ks: tuple[int, ...] = (),
        *,
        every_id_known: bool = False,
    ) -> None:
        self.labels, self._gauc, self._group_ks = labels, gauc, group_ks
        self._groups_of = _column if every_id_known else _known_values
        self._loader: ParquetLoader | None = None
        self._positions, self._effects = PositionEffects(labels), dict[str, Any]()
        self._brief = False
        self.metrics, self._uncalibrated = ([_metrics_of(x, exact_rows, bins) for x in labels] for _ in range(2))

    def begin(self, task: Any, loader: ParquetLoader | None, brief: bool = False) -> None:
        self._loader, self._brief = loader, brief
        first = next((i for i, label in enumerate(self.labels) if isinstance(label, BinaryLabel)), None)
        for i, metrics in enumerate(self.metrics):
            if loader is not None and self._gauc is not None and i == first:
                metrics.groups = partial(self._groups_of, loader, self._gauc)
            elif loader is not None and self._group_ks:
                metrics.groups = partial(_column, loader, GROUP)

    def update(self, task: Any, output: Tensor, batch: Batch) -> None:
        logits = output.detach().float()
        if not self._brief:  # no metric that selects a checkpoint
            self._positions.update(task, logits, batch)
        self.add(torch.where(torch.isfinite(logits), predict(logits, self.labels), torch.nan), batch)
        if any(label.is_calibrated for label in self.labels):
            before = predict(logits, tuple(label.uncalibrated() for label in self.labels))
            for i, (label, columns) in enumerate(zip(self.labels, label_slices(self.labels), strict=True)):
                if label.is_calibrated:
                    own = before[:, columns.start]
                    self._uncalibrated[i].update(own, batch.labels[:, i], batch.weight, batch.first_row)

    def add(self, predictions: Tensor, batch: Batch) -> None:
        """Add the predictions (B, L) for a batch. Collective."""
        for i, (label, columns) in enumerate(zip(self.labels, label_slices(self.labels), strict=True)):
            own = predictions[:, columns.start] if isinstance(label, ScalarLabel) else predictions[:, columns]
            self.metrics[i].update(own, batch.labels[:, i], batch.weight, batch.first_row)

    def compute(self) -> dict[str, float]:
        parts = [metrics.compute() for metrics in self.metrics]
        self._effects = self._positions.compute() or {}
        for part, label, before in zip(parts, self.labels, self._uncalibrated, strict=True):
            if label.is_calibrated:
                part |= {f"{n}_uncalibrated": v for n, v in before.compute().items() if n in CALIBRATED}
        if self._group_ks and self._loader is not None and self._loader.negatives == 1:  # else, lists are not whole
            parts = [part | own for part, own in zip(parts, self._within_groups(self._loader), strict=True)]
        return self._named(parts)

    def _within_groups(self, loader: ParquetLoader) -> list[dict[str, float]]:
        """Return the metrics within groups of each label except labels of classes, on every rank. Collective."""
        parts: list[dict[str, float]] = [{} for _ in self.labels]
        if rank() == 0:
            for own, label, metrics in zip(parts, self.labels, self.metrics, strict=True):
                rows = metrics.rows
                if isinstance(label, ScalarLabel) and rows is not None and len(rows.place):
                    group = groups_at(partial(_column, loader, GROUP), rows.place)
                    own |= group_metrics(group, rows.probability, rows.label, self._group_ks, rows.weight)
        return from_rank_0(parts)

    def calibrate(self, method: str) -> None:
        """Calibrate all labels except labels of classes on the rows of the last `compute`. Collective."""
        labels = list(self.labels)
        for i, (label, metrics) in enumerate(zip(self.labels, self.metrics, strict=True)):
            if rank() == 0 and isinstance(label, ScalarLabel) and metrics.rows is not None:
                labels[i] = calibrate(label, metrics.rows, method)
        self.labels = from_rank_0(tuple(labels))

    def undefined(self, metrics: dict[str, float]) -> str | None:
        whys = []
        for label, own in zip(self.labels, self.metrics, strict=True):
            prefix = "" if len(self.labels) == 1 else f"{label.name}/"
            part = {n.removeprefix(prefix): v for n, v in metrics.items() if n.startswith(prefix)}
            if isinstance(own, BinaryMetrics) and (why := undefined(part | {"rows": metrics["rows"]})) is not None:
                whys.append(f"{label.name}: {why}" if prefix else why)
        return "; ".join(whys) or None

    def _named(self, parts: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the labels' metrics with the labels' names in front if there are several; `rows` is the largest."""
        if len(parts) == 1:
            return parts[0]
        pairs = zip(self.labels, parts, strict=True)
        named = {f"{x.name}/{n}": v for x, part in pairs for n, v in part.items() if n != "rows"}
        return named | {"rows": max(part["rows"] for part in parts)}

    def details(self, names: list[str], loader: ParquetLoader, fitted: Fitted, max_values: int) -> dict[str, Any]:
        sliced = self._slices(names, loader, fitted, max_values) if names else {}
        return {"slices": sliced, "positions": self._effects}

    def _slices(self, names: list[str], loader: ParquetLoader, fitted: Fitted, max_values: int) -> dict[str, Any]:
        measured = [metrics for metrics in self.metrics if metrics.rows is not None]
        rows = [metrics.rows for metrics in measured if metrics.rows is not None]
        places = np.unique(np.concatenate([r.place for r in rows]))
        row_of_place = []  # index of each place in the rows of each label, -1 if the row does not have the label
        for r in rows:
            index = np.full(len(places), -1)
            index[np.searchsorted(places, r.place)] = np.arange(len(r.place))
            row_of_place.append(index)

        def measure(at: np.ndarray) -> dict[str, Any]:
            of_labels = [index[at] for index in row_of_place]
            kinds = zip(measured, rows, of_labels, strict=True)
            parts = [metrics.of(r.take(index[index >= 0])) for metrics, r, index in kinds]
            counts = zip(self.labels, parts, strict=True)
            named = {f"{label.name}/rows": part["rows"] for label, part in counts} if len(parts) > 1 else {}
            return self._named(parts) | named

        return slices(names, loader, places, measure, fitted, max_values)

    def curves(self, bins: int) -> dict[str, list[Any]] | None:
        found: dict[str, list[Any]] = {}
        for i, (label, metrics) in enumerate(zip(self.labels, self.metrics, strict=True)):
            if isinstance(metrics, BinaryMetrics) and metrics.scores is not None:
                own = metrics.scores.curves(bins)
                found |= {f"{label.name}/{name}" if i else name: points for name, points in own.items()}
        return found or None

    def write(self, folder: Path, split: str) -> None:
        """Write one row per measured row.

        Columns: its number in the split (`row`), the prediction (`probability`; `prediction` of a number; a column for
        each class), the label, and the weight and the group if rows have one.
        """
        for i, (label, metrics) in enumerate(zip(self.labels, self.metrics, strict=True)):
            rows = metrics.rows
            assert rows is not None
            columns = {"row": rows.place} | metrics.columns(rows)
            if rows.weight is not None:
                columns["weight"] = rows.weight
            if metrics.groups is not None:
                columns["group"] = groups_at(metrics.groups, rows.place).astype(np.int64)
            name = f"{split}_predictions" + (f"_{label.name}" if i else "")
            pl.DataFrame(columns).write_parquet(folder / f"{name}.parquet")


def _column(loader: ParquetLoader, name: str, start: int, stop: int) -> np.ndarray:
    return loader.column(name, start, stop).to_numpy()


def _known_values(loader: ParquetLoader, name: str, start: int, stop: int) -> np.ndarray:
    """Return the id of each row, and for rows with id 0, an unknown value, a number of their own below 0."""
    ids = _column(loader, name, start, stop).astype(np.int64)
    return np.where(ids > 0, ids, -1 - np.arange(start, stop))


def _metrics_of(label: Label, exact_rows: int, bins: int) -> BinaryMetrics | ValueMetrics:
    if isinstance(label, BinaryLabel):
        return BinaryMetrics(exact_rows, bins)
    return ClassMetrics(exact_rows, label.classes) if isinstance(label, ClassLabel) else NumberMetrics(exact_rows)


class RetrievalEvaluator:
    """Evaluator of retrieval models: ranks the targets of queries among the candidates.

    Each rank scores a range of the candidates. metrics: counts, for each target, the candidates that score higher
    """

    def __init__(self, metrics: RetrievalMetrics) -> None:
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
        if self.metrics.not_finite:
            raise NotFinite("the scores of some items are NaN or infinite")
        return metrics

    def undefined(self, metrics: dict[str, float]) -> str | None:
        return None

    def details(self, names: list[str], loader: ParquetLoader, fitted: Fitted, max_values: int) -> dict[str, Any]:
        return retrieval_details(self.metrics, names, loader, fitted, max_values)

    def curves(self, bins: int) -> dict[str, list[Any]] | None:
        return None

    def write(self, folder: Path, split: str) -> None:
        write_ranks(self.metrics, folder / f"{split}_ranks.parquet")


def retrieval_details(
    metrics: RetrievalMetrics, names: list[str], loader: ParquetLoader, fitted: Fitted, max_values: int
) -> dict[str, Any]:
    """Return the sections of `Evaluator.details`, which has these parameters, for the queries of the last `compute`.

    If some targets are cold and others are not, `metrics_table.TARGETS` of the slices has the metrics of both.
    """
    places, query = np.unique(metrics.ranks[:, 0], return_inverse=True)

    def measure(at: np.ndarray) -> dict[str, Any]:
        ranks = metrics.ranks[np.isin(query, at)]
        return metrics.measure(ranks) | {"rows": len(at), "targets": len(ranks)}

    found: dict[str, Any] = {}
    cold = metrics.ranks[:, 1] == 1
    if 0 < cold.sum() < len(cold):
        parts = {"cold": metrics.ranks[cold], "warm": metrics.ranks[~cold]}
        rows = {value: {"rows": len(np.unique(ranks[:, 0])), "targets": len(ranks)} for value, ranks in parts.items()}
        found[TARGETS] = [{"value": value} | metrics.measure(ranks) | rows[value] for value, ranks in parts.items()]
    found |= slices(names, loader, places, measure, fitted, max_values)
    return {"slices": found, "exposure": exposure(metrics, fitted, max_values)}


def write_ranks(metrics: RetrievalMetrics, path: Path) -> None:
    """Write one row per target.

    Columns: the number of its query's row in the split (`query`) and, for each protocol, the number of candidates that
    score higher (-1 if the target cannot be ranked) and the number of ties.
    """
    columns = {"query": metrics.ranks[:, 0]}
    for i, name in enumerate(metrics.protocols.protocols):
        columns |= {f"greater_{name}": metrics.ranks[:, 2 + 2 * i], f"ties_{name}": metrics.ranks[:, 3 + 2 * i]}
    pl.DataFrame(columns).write_parquet(path)
