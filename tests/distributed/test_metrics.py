"""Metrics of 1, 2 and 4 processes are scikit-learn's of the same rows; ranks have different numbers of them."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from measuring import measure
from processes import run
from sklearn.metrics import average_precision_score, log_loss, roc_auc_score

from recsys.data.features import LABEL
from recsys.interface.features import DenseFeature, FeatureSpec, SparseFeature

ROWS = 1013  # neither 2, 4 nor the batch divides it: last batches are uneven, and one rank has one row more


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, FeatureSpec]:
    r = np.random.default_rng(1)
    logit = np.round(r.normal(-1, 1, ROWS), 1).astype(np.float32)  # ties
    label = (r.random(ROWS) < 1 / (1 + np.exp(-logit))).astype(np.float32)
    user = np.sort(r.integers(0, 40, ROWS)).astype(np.int32)
    file = tmp_path_factory.mktemp("rows") / "part.parquet"
    frame = pl.DataFrame({LABEL: label, "logit": logit, "cat": np.ones(ROWS, np.int32), "user": user})
    frame.write_parquet(file, row_group_size=100)
    return file, FeatureSpec((DenseFeature("logit"),), (SparseFeature("cat", 2, "cat"),))


SIZES = [(10_000, False), (300, False), (10_000, True)]  # of exact_rows, and whether rows have weights


@pytest.fixture(scope="module")
def ranks(split: tuple[Path, FeatureSpec]) -> Callable[[int], list[list[dict[str, Any]]]]:
    """Of a world size, of each rank, the metrics by SIZES."""
    return cache(lambda n: [measure(0, 1, *split, SIZES)] if n == 1 else run(measure, n, *split, SIZES))


@pytest.mark.few(1)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("world_size", [2, 1, 4])
def test_as_scikit_learn(split: tuple[Path, FeatureSpec], ranks: Any, world_size: int, weighted: bool) -> None:
    frame = pl.read_parquet(split[0])
    y, logit, user = (frame[c].to_numpy() for c in (LABEL, "logit", "user"))
    p = 1 / (1 + np.exp(-logit.astype(np.float64)))
    w = 1.0 + np.arange(ROWS) % 3 if weighted else np.ones(ROWS)
    groups = [user == u for u in np.unique(user) if 0 < y[user == u].mean() < 1]
    aucs = [roc_auc_score(y[g], p[g], sample_weight=w[g]) for g in groups]
    expected = {
        "rows": ROWS,
        "auc": roc_auc_score(y, p, sample_weight=w),
        "pr_auc": average_precision_score(y, p, sample_weight=w),
        "logloss": log_loss(y, p, sample_weight=w),
        "calibration": (w * p).sum() / (w * y).sum(),
        "gauc": np.average(aucs, weights=[w[g].sum() for g in groups]),
    }
    at = SIZES.index((10_000, weighted))
    found = [results[at] for results in ranks(world_size)]
    for of_rank in found:
        assert {k: of_rank[k] for k in expected} == pytest.approx(expected, rel=1e-6)
        assert {**of_rank, "kept": None} == {**ranks(1)[0][at], "kept": None}  # to the bit
    assert found[0]["kept"] == list(range(ROWS))
    assert all(of_rank["kept"] is None for of_rank in found[1:])


@pytest.mark.parametrize("world_size", [1, 2, pytest.param(4, marks=pytest.mark.slow)])
def test_more_rows_than_are_measured_exactly(ranks: Any, world_size: int) -> None:
    exact, alone, _ = ranks(1)[0]
    for _, found, _ in ranks(world_size):
        assert abs(found["auc"] - exact["auc"]) <= found["auc_error"] + 1e-12
        assert found["logloss"] == pytest.approx(exact["logloss"])
        assert found["rows"] == ROWS
        assert found["gauc"] == alone["gauc"]  # of the same sample
    assert ranks(world_size)[0][1]["kept"] == alone["kept"]
    assert 150 < len(alone["kept"]) < 450
