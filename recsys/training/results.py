"""The results of a run: what a model measures on the held-out splits, and the files that say so."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from recsys.base.console import say
from recsys.data.features import Fitted
from recsys.data.features.batch_tensors import candidates_of
from recsys.data.loader.parquet_loader import ParquetLoader
from recsys.data.prepare.prepared import Prepared
from recsys.evaluation.evaluators import Evaluator
from recsys.evaluation.popular_items import PopularItems
from recsys.files.atomic import write_json
from recsys.job.run_config import RunConfig
from recsys.training.advice import below_popularity
from recsys.training.bayes import best_metrics
from recsys.training.run_dir import add_results, protocol
from recsys.training.show_metrics import show
from recsys.training.trainer import loader_on_cpu

QUERIES = 5000  # that the list of the most popular items is measured on


@dataclass
class RunResults:
    """A trained model's metrics.

    splits: the metrics of test and, if there are such rows, validation
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
    metric = f"ndcg@{max(cfg.protocol.k)}"
    if not real or metric not in metrics["test"]:
        return
    counts = candidates_of(prepared.fitted).popularity.numpy()
    popular = PopularItems(counts, filter_history=cfg.protocol.filter_history)
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
