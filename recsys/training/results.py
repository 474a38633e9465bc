"""The results of a run: what a model measures on the held-out splits, what the teacher of a sample and a list of the
most popular items reach, the files that say so, and tables for the terminal."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from recsys.base.console import results, say
from recsys.batch import JaggedIds
from recsys.data.features import LABEL, Fitted
from recsys.data.features.batch_tensors import candidates_of
from recsys.data.features.label_columns import label_columns
from recsys.data.features.label_kinds import NumberLabelColumn
from recsys.data.loader.parquet_loader import ParquetLoader
from recsys.data.prepare.prepared import Prepared
from recsys.evaluation.binary import binary_metrics
from recsys.evaluation.collected_rows import Rows
from recsys.evaluation.evaluators import Evaluator
from recsys.evaluation.metrics_table import TARGETS, by_protocol, is_retrieval, of_label, shown_tables
from recsys.evaluation.retrieval_metrics import MISSED, ranking_metrics
from recsys.evaluation.value_metrics import NumberMetrics
from recsys.files.atomic import write_json
from recsys.job.run_config import RunConfig
from recsys.training.advice import below_popularity, sees_the_future, too_few_steps, too_good, too_weak
from recsys.training.run_dir import MISSES_REPEATS, add_results, protocol
from recsys.training.trainer import loader_on_cpu

if TYPE_CHECKING:
    from rich.table import Table

FILE = "teacher.parquet"


def best_metrics(prepared: Prepared) -> dict[str, float] | None:
    """Return the metrics of the teacher on the test rows, for the labels that the teacher knows, or None.

    auc and logloss of a binary label, rmse of a number; with the label's name in front if there are several. Only
    splits whose test rows are the last rows of the raw file have them.
    """
    data = prepared.fitted.data
    file = Path(prepared.info["root"]) / FILE
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


QUERIES = 5000  # that the list of the most popular items is measured on


@dataclass
class RunResults:
    """A trained model's metrics.

    splits: the metrics of test and validation, each if there are such rows
    train: rows, seconds and the like of the training
    checkpoint: the one that was measured
    log: passes the results to the loggers, and closes them
    slices: the test split's metrics of each value of metrics.slices
    """

    splits: dict[str, dict[str, Any]]
    train: dict[str, Any]
    checkpoint: Path | None
    log: Callable[[dict[str, Any]], None]
    slices: dict[str, Any] = field(default_factory=dict)


def write_results(cfg: RunConfig, path: Path, prepared: Prepared, results: RunResults) -> None:
    """Write metrics.json, log it, and print it."""
    metrics: dict[str, Any] = dict(results.splits)
    if results.slices:
        metrics["slices"] = {"test": results.slices}
    metrics["train"] = results.train
    metrics["protocol"] = protocol(cfg, prepared, results.checkpoint)
    if bayes := best_metrics(prepared):
        metrics["bayes"] = bayes
    write_json(path / "metrics.json", metrics)
    results.log(metrics)
    add_results(path)
    real = cfg.data.root is not None or cfg.data.spec is not None
    show(metrics, path, real=real)
    if real and (line := sees_the_future(cfg.data.split, cfg.data.group)) is not None:
        say(line)
    metric = f"ndcg@{max(cfg.protocol.k)}"
    if not real or metric not in metrics.get("test", {}):
        return
    counts = candidates_of(prepared.fitted).popularity.numpy()
    p = cfg.protocol
    popular = PopularItems(counts, filter_history=p.filter_history, rank_repeats=p.rank_repeats)
    for batch in loader_on_cpu(cfg, prepared, "test"):
        assert batch.targets is not None and batch.history is not None
        popular.update(batch.targets, batch.history)
        if popular.queries >= QUERIES:
            break
    best = popular.metrics(tuple(cfg.protocol.k))[metric]
    if (line := below_popularity(f"test {metric}", metrics["test"][metric], best)) is not None:
        say(line)


def write_details(
    cfg: RunConfig, fitted: Fitted, evaluator: Evaluator, loader: ParquetLoader, split: str, run: Path | None
) -> tuple[dict[str, Any], dict[str, list[Any]] | None]:
    """Return the metrics of slices and, if `run` is a folder, write curves and predictions to it and return the curves.

    All describe the rows that the evaluator has measured last.

    Args:
        fitted: has the vocabularies, which name values.
        evaluator: has measured the split.
        split: validation or test.
        run: the run's folder; None writes nothing.
    """
    names = list(cfg.metrics.slices)
    sliced = evaluator.slices(names, loader, fitted, cfg.metrics.slice_values)
    if run is None:
        return sliced, None
    if (curves := evaluator.curves(cfg.metrics.bins)) is not None:
        write_json(run / "curves.json", {split: curves})
    if cfg.metrics.predictions:
        evaluator.write(run, split)
    return sliced, curves


UNCALIBRATED = "_uncalibrated"  # the end of the names of metrics before the calibration


def show_tables(rows: dict[str, Any]) -> None:
    """Print the metrics of splits as tables. Those that are not defined, such as diversity without lists, are left out.

    rows: the metrics of each split; the first ones say which metrics there are
    """
    rows = {split: {n: v for n, v in m.items() if v is None or v == v} for split, m in rows.items()}
    first = next(iter(rows.values()))
    if any("/" in name for name in first):
        rows = {f"{s}, {label}": metrics for s, m in rows.items() for label, metrics in of_label(m).items()}
    shown = dict.fromkeys(n for metrics in rows.values() for n in metrics if not n.endswith(UNCALIBRATED))
    within = [n for n in shown if n.startswith(("gauc", "gndcg@", "gmrr@")) or n == "groups"]
    tables = {"metrics": list(shown)}
    if "groups" in shown:
        tables = {"metrics": [n for n in shown if n not in within], "metrics within groups": within}
    if is_retrieval(first):
        several_targets = first.get("targets", 0) > first["rows"]
        rows = {f"{s}, {p}": metrics for s, m in rows.items() for p, metrics in by_protocol(m).items()}
        tables = shown_tables(list(dict.fromkeys(n for metrics in rows.values() for n in metrics)), several_targets)
    for title, names in tables.items():
        cells = [["", *names]]
        for row, metrics in rows.items():
            if any(n in metrics for n in names):
                values = [metrics.get(n) for n in names]
                cells.append(
                    [row, *("" if v is None else f"{v:,}" if isinstance(v, int) else f"{v:.5f}" for v in values)]
                )
        table = _table(title, cells)
        width = results.measure(table, options=results.options.update(max_width=1000)).maximum
        fits = width <= results.width
        results.print(table if fits else _table(title, [list(line) for line in zip(*cells, strict=True)]))


def _table(title: str, cells: list[list[str]]) -> "Table":
    """Return a table of cells, of which the first line is the head."""
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for column in cells[0]:
        table.add_column(column, justify="right" if column else "left")
    for line in cells[1:]:
        table.add_row(*line)
    return table


def show_targets(metrics: dict[str, Any], split: str) -> None:
    """Print the metrics of cold targets beside those of warm ones as a table, if a split has both."""
    parts = (metrics.get("slices") or {}).get(split, {}).get(TARGETS)
    if parts:
        show_tables({f"{split}, {p['value']} targets": {k: v for k, v in p.items() if k != "value"} for p in parts})


def say_repeats(metrics: dict[str, Any], split: str) -> None:
    """Say how many targets of a split no list can hold, because they are in the history that lists leave out."""
    m, ranking = metrics.get(split, {}), metrics["protocol"].get("ranking", {})
    if m.get("repeat_targets") and ranking["history"] == MISSES_REPEATS:
        what = "targets are in their history, which lists leave out, so they are missed; protocol.filter_history=false "
        more = "keeps the history in lists, and protocol.rank_repeats=true ranks these targets, as many papers do"
        say(f"{split}: {m['repeat_targets']:,} of {m['targets']:,} {what}{more}")


def show(metrics: dict[str, Any], path: Path, *, real: bool) -> None:
    """Print the metrics of a run as tables, its speed, and the files in its folder `path`.

    real: the rows come from files, not from a built-in sample
    """
    rows: dict[str, Any] = {s: metrics[s] for s in ("test", "validation") if s in metrics}
    if "bayes" in metrics:
        rows["Bayes (test)"] = metrics["bayes"]
    if rows:
        show_tables(rows)
    show_targets(metrics, "test")
    test = metrics.get("test", {})
    if not test:
        say("test: the data has no test rows (data.split.test=0), so that nothing is measured on them")
    for line in (too_good(test), too_weak(metrics) or too_few_steps(metrics)) if real else ():
        if line is not None:
            say(line)
    for name, value in test.items():
        if name.endswith((f"ece{UNCALIBRATED}", f"rmse{UNCALIBRATED}")):
            metric = name.removesuffix(UNCALIBRATED)
            say(f"test: calibration changes {metric} from {value:.5f} to {test[metric]:.5f}")
    for split in ("test", "validation"):
        m = metrics.get(split, {})
        if m.get("cold_targets"):
            what = "targets are cold: items that training has not seen, or less often than min_count"
            say(f"{split}: {m['cold_targets']:,} of {m['targets']:,} {what}")
        if m.get("cold_rows"):
            say(f"{split}: {m['cold_rows']:,} of {m['rows']:,} queries have no history")
    if rows:
        say_repeats(metrics, next(iter(rows)))
    t = metrics["train"]
    say(f"trained {t['samples']:,} samples in {t['seconds']:.1f} s: {t['samples_per_second']:,.0f} samples/s")
    if t.get("time"):
        parts = {**t["time"]}
        collectives = parts.pop("collectives", None)
        parts["other"] = max(1 - sum(parts.values()), 0.0)
        waited = (
            ""
            if collectives is None
            else f"; {collectives:.0%} of it in collectives, including waiting for other ranks"
        )
        say("of that time: " + ", ".join(f"{name} {share:.0%}" for name, share in parts.items()) + waited)
    files = [
        n
        for n in ("metrics.json", "metrics.csv", "config.yaml", "features.json", "plan.json", "checkpoints")
        if (path / n).exists()
    ]
    say(f"files in {path}: {' '.join(files)} train.log")
