"""What the metrics of a run are compared with: the teacher of a built-in sample, and the most popular items."""

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from recsys.data.features import LABEL
from recsys.data.features.batch_tensors import candidates_of
from recsys.data.features.label_columns import label_columns
from recsys.data.features.label_kinds import NumberLabelColumn
from recsys.data.prepare.prepared import Prepared
from recsys.evaluation.binary import binary_metrics
from recsys.evaluation.collected_rows import Rows
from recsys.evaluation.retrieval_metrics import MISSED, ranking_metrics
from recsys.evaluation.value_metrics import NumberMetrics
from recsys.interface.batch import JaggedIds
from recsys.job.run_config import RunConfig
from recsys.training.advice import below_popularity
from recsys.training.loaders import loader_on_cpu

TEACHER = "teacher.parquet"  # of a built-in sample: the probabilities from which its labels were drawn
QUERIES = 5000  # that the list of the most popular items is measured on


def best_metrics(prepared: Prepared) -> dict[str, float] | None:
    """Return the metrics of the teacher on the test rows, for the labels that the teacher knows, or None.

    auc and logloss of a binary label, rmse of a number; with the label's name in front if there are several. Only
    splits whose test rows are the last rows of the raw file have them.
    """
    data = prepared.fitted.data
    file = Path(prepared.info["root"]) / TEACHER
    rows = prepared.rows("test")
    if data.sample is None or data.split.by not in ("order", "time") or not rows or not file.exists():
        return None
    teacher, columns = pl.read_parquet(file, glob=False).tail(rows), label_columns(data)
    test = pl.concat(pl.read_parquet(f, columns=list(columns), glob=False) for f in prepared.files("test"))
    metrics: dict[str, float] = {}
    for (column, c), name in zip(columns.items(), data.label_configs, strict=True):
        if c.is_text or c.config.at_least is not None:
            continue  # the teacher knows the expectation of the column alone
        if column == LABEL and teacher.columns == ["probability"]:
            expected, labels = teacher["probability"].to_numpy(), test[column].to_numpy()
        else:
            if f"{c.column}_expected" not in teacher.columns:
                continue  # the teacher does not know the label
            known = teacher.drop_nulls(c.column)
            given = known[c.column].cast(pl.Float32)
            # prepared rows may have another order
            if not given.sort().equals(test[column].drop_nulls().sort(), check_names=False):
                continue  # the last rows are not the test rows: with another `where`, or another column to split by
            expected, labels = known[f"{c.column}_expected"].to_numpy(), given.to_numpy()
        rows_of = Rows(np.arange(len(labels)), expected, labels)
        is_number = isinstance(c, NumberLabelColumn)
        measured = NumberMetrics.of(rows_of) if is_number else binary_metrics(expected, labels)
        best = {n: measured[n] for n in (("rmse",) if is_number else ("auc", "logloss"))}
        metrics |= {f"{name}/{n}" if data.labels else n: x for n, x in best.items()}
    return metrics or None


class PopularItems:
    """Ranks targets among all candidates by the candidates' counts in the training data.

    Args:
        popularity: (N,) counts. Candidates are 1 ... N - 1.
        filter_history, rank_repeats: as in `Protocols`.
    """

    def __init__(self, popularity: np.ndarray, *, filter_history: bool, rank_repeats: bool = False) -> None:
        self.popularity, self.filter_history, self.rank_repeats = popularity, filter_history, rank_repeats
        self._counts = np.sort(popularity[1:])
        self._query: list[int] = []
        self._greater: list[int] = []
        self._ties: list[int] = []
        self.queries = 0

    def update(self, targets: JaggedIds, history: JaggedIds) -> None:
        """Add B queries: B lists of targets each, and B lists of their histories."""
        wanted, known = (np.split(x.values.numpy(), x.lengths.cumsum(0).numpy()[:-1]) for x in (targets, history))
        for own, seen in zip(wanted, known, strict=True):
            items = np.append(np.unique(own[own != 0]), own[own == 0])  # unknown items may differ
            is_known = (items > 0) & (items < len(self.popularity))
            left_out = np.unique(seen[(seen > 0) & (seen < len(self.popularity))] if self.filter_history else seen[:0])
            if self.rank_repeats:
                left_out = np.setdiff1d(left_out, items)
            excluded, is_known = np.sort(self.popularity[left_out]), is_known & ~np.isin(items, left_out)
            counts = self.popularity[np.where(is_known, items, 0)]
            greater = _above(self._counts, counts) - _above(excluded, counts)
            ties = _equal(self._counts, counts) - _equal(excluded, counts) - 1
            self._query.extend([self.queries] * len(items))
            self._greater.extend(np.where(is_known, greater, MISSED).tolist())
            self._ties.extend(np.where(is_known, ties, 0).tolist())
            self.queries += 1

    def metrics(self, k: tuple[int, ...]) -> dict[str, float]:
        """Return the metrics of all queries. k: lengths of lists"""
        return ranking_metrics(np.array(self._query), np.array(self._greater), np.array(self._ties), k)


def _above(ascending: np.ndarray, counts: np.ndarray) -> np.ndarray:
    return len(ascending) - np.searchsorted(ascending, counts, side="right")


def _equal(ascending: np.ndarray, counts: np.ndarray) -> np.ndarray:
    return np.searchsorted(ascending, counts, side="right") - np.searchsorted(ascending, counts, side="left")


def below_popular(cfg: RunConfig, prepared: Prepared, test: dict[str, Any]) -> str | None:
    """Return a line about a retrieval model that ranks worse than the items' counts do, or None.

    test: the metrics of the test split
    """
    metric, p = f"ndcg@{max(cfg.protocol.k)}", cfg.protocol
    if metric not in test:
        return None
    counts = candidates_of(prepared.fitted).popularity.numpy()
    popular = PopularItems(counts, filter_history=p.filter_history, rank_repeats=p.rank_repeats)
    for batch in loader_on_cpu(cfg, prepared, "test"):
        assert batch.targets is not None and batch.history is not None
        popular.update(batch.targets, batch.history)
        if popular.queries >= QUERIES:
            break
    return below_popularity(f"test {metric}", test[metric], popular.metrics(tuple(p.k))[metric])
