"""Folders as training leaves them, of made-up scores: fast, and of any shape."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import polars as pl
import torch

from recsys.evaluation.binary import binary_metrics
from recsys.evaluation.evaluators import LabelsEvaluator
from recsys.evaluation.retrieval_metrics import ranking_metrics
from recsys.evaluation.scores import Scores
from recsys.interface.batch import Batch
from recsys.interface.labels import BinaryLabel, ClassLabel, NumberLabel


def write_run(
    path: Path,
    skill: float = 1.0,
    *,
    rows: int = 4000,
    data: str = "criteo",
    labels: int = 0,
    noise: int = 0,
    sliced: bool = False,
    **config: Any,
) -> Path:
    """Of a model that predicts. labels: seed of the test rows; noise: seed of the model; config: dots as __."""
    rng = np.random.default_rng([labels, 0])
    label = rng.random(rows) < 0.25
    common = rng.normal(size=rows)
    own = np.random.default_rng([noise, 1]).normal(size=rows)
    p = 1 / (1 + np.exp(1.6 - skill * label - 0.8 * common - 0.3 * own))
    p = p.astype(np.float32)
    test: dict[str, Any] = binary_metrics(p, label)
    metrics: dict[str, Any] = {
        "test": test,
        "validation": test,
        "train": _train(noise),
        "protocol": _protocol(data, rows),
    }
    if sliced:
        parts = [(f"<site {i}>", rng.random(rows) < 1 / (i + 2)) for i in range(5)]
        parts.append(("one class", ~label & (rng.random(rows) < 0.01)))
        metrics["slices"] = {
            "test": {
                "cat_1": [
                    {"value": v, "positives": int(label[at].sum())} | binary_metrics(p[at], label[at])
                    for v, at in parts
                ]
            }
        }
    _write(path, config, metrics, "validation/auc,validation/bias", [test["auc"], -test["ece"]])
    (path / "curves.json").write_text(json.dumps({"test": Scores.from_rows(p, label).curves(20)}))
    pl.DataFrame({"row": np.arange(rows), "probability": p, "label": label.astype(np.uint8)}).write_parquet(
        path / "test_predictions.parquet"
    )
    return path


LABELS = (
    BinaryLabel("click"),
    BinaryLabel("buy"),
    NumberLabel("rating"),
    ClassLabel("colour", ("red", "green, blue", "3")),
)


def write_labels(
    path: Path, skill: float = 1.0, *, noise: int = 0, weighted: bool = False, without: str = "", rows: int = 2000
) -> Path:
    """Of a model that predicts a click, a buy of rows with a click, a number and a class; but not `without`.

    The evaluator itself measures its logits.
    """
    rng, own = np.random.default_rng(0), np.random.default_rng([noise, 3])
    x = rng.normal(size=rows)
    click = rng.random(rows) < 1 / (1 + np.exp(-x))
    buy = np.where(click, rng.random(rows) < 1 / (1 + np.exp(1 - x)), np.nan)
    truth = [click, buy, x + rng.normal(size=rows), np.where(click, 0, rng.integers(1, 3, rows))]
    weight = torch.from_numpy(rng.exponential(1, rows)).float() if weighted else None
    score = skill * x + 0.3 * own.normal(size=rows)
    logits = [score, score - 1, score, score, np.zeros(rows), np.zeros(rows)]
    kept = [i for i, label in enumerate(LABELS) if label.name != without]
    columns = [c for i in kept for c in ([i] if i < 3 else [3, 4, 5])]
    evaluator = LabelsEvaluator(tuple(LABELS[i] for i in kept))
    labels = torch.from_numpy(np.stack([truth[i] for i in kept], 1)).float()
    output = torch.from_numpy(np.stack([logits[i] for i in columns], 1)).float()
    evaluator.update(None, output, cast(Batch, SimpleNamespace(labels=labels, weight=weight, first_row=0)))
    test = evaluator.compute()
    metrics = {"test": test, "train": _train(noise), "protocol": _protocol("tasks", rows) | {"label": None}}
    config = {"data": {"weight": {"column": "w" if weighted else None}}}
    names = "validation/click/auc,validation/rating/rmse"
    _write(path, {"optim__sparse__lr": skill, **config}, metrics, names, [0.7, 1.2])
    (path / "curves.json").write_text(json.dumps({"test": evaluator.curves(20)}))
    evaluator.write(path, "test")
    return path


def write_retriever(path: Path, skill: float = 1.0, *, queries: int = 600, noise: int = 0, **config: Any) -> Path:
    """Of a model that retrieves, one target a query among 500 items."""
    hard = np.random.default_rng(0).random(queries)
    greater = (
        500 * np.clip(hard ** (2 * skill) + np.random.default_rng([noise, 2]).normal(0, 0.02, queries), 0, 1)
    ).astype(int)
    ties = np.zeros(queries, int)
    found = ranking_metrics(np.arange(queries), greater, ties, (5, 10))
    test = found | {"rows": queries, "targets": queries, "candidates": 500}
    protocol = _protocol("movielens", queries) | {"ranking": {"protocols": ["full"], "k": [5, 10]}}
    metrics = {"test": test, "train": _train(noise), "protocol": protocol}
    _write(
        path,
        {"model___target_": "recsys.models.SASRec"} | config,
        metrics,
        "validation/ndcg@10,validation/mrr",
        [0.2, 0.1],
    )
    pl.DataFrame({"query": np.arange(queries), "greater_full": greater, "ties_full": ties}).write_parquet(
        path / "test_ranks.parquet"
    )
    return path


def _train(noise: int) -> dict[str, Any]:
    time = {"loader": 0.08 + 0.01 * (noise % 5), "forward": 0.3, "backward": 0.4, "optimizer": 0.1}
    return {
        "samples": 90_000,
        "seconds": 9.0 + noise % 4,
        "samples_per_second": 10_000 - 300 * (noise % 7),
        "time": time,
    }


def _protocol(data: str, rows: int) -> dict[str, Any]:
    return {"data": data, "split": "order", "rows": {"test": rows}, "label": "label", "metrics": "over all rows"}


def _write(path: Path, config: dict[str, Any], metrics: dict[str, Any], names: str, ends: list[float]) -> None:
    path.mkdir(parents=True)
    whole: dict[str, Any] = {"model": {"_target_": "recsys.models.DLRM", "dim": 16}, "seed": 0, "run_dir": str(path)}
    whole |= {"optim": {"sparse": {"lr": 0.05, "name": "adagrad"}}, "trainer": {"batch_size": 2048}}
    for key, value in config.items():
        *parents, name = key.split("__") if not key.startswith("model___") else ("model", key.removeprefix("model__"))
        node = whole
        for parent in parents:
            node = node[parent]
        node[name] = value
    (path / "config.yaml").write_text(json.dumps(whole, indent=1))  # JSON is YAML
    (path / "metrics.json").write_text(json.dumps(metrics))
    tables = [
        {
            "table": f"t_cat_{i}",
            "rows": 10 ** (i % 6 + 1),
            "dim": 16,
            "type": "row_wise",
            "kernel": "fused",
            "ranks": [0, 1],
        }
        for i in range(1, 15)
    ]
    (path / "plan.json").write_text(json.dumps({"world_size": 2, "tables": tables}))
    rng = np.random.default_rng(len(str(path)))
    lines = [f"epoch,step,train/loss,train/lr_factor,{names},test/auc"]
    for step in range(9, 2000, 10):
        last = ",".join(f"{v * (1 - 0.4 * np.exp(-step / 400)):.5f}" for v in ends) if step % 250 == 249 else ","
        loss = 0.5 + 0.3 * np.exp(-step / 200) + rng.normal(0, 0.01)
        lines.append(f"0,{step},{loss:.5f},{1 - step / 2000:.4f},{last},")
    lines += ["1,2000,,,,,0.1", "1,2000,,,0.1,0.1,"]  # of the best checkpoint
    (path / "metrics.csv").write_text("\n".join(lines) + "\n")
