"""GBM: the same predictions as each library gives on the same arrays; labels, weights, early stopping, columns."""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recsys.base.errors import UserError
from recsys.evaluation.group_metrics import group_metrics
from recsys.interface.batch import Batch
from recsys.interface.features import DenseFeature, FeatureSpec, SparseFeature
from recsys.interface.labels import BinaryLabel, ClassLabel, NumberLabel, predict
from recsys.models.common.boosters import Fitting, TreeRows, booster_of
from recsys.models.gbm import GBM, columns_of
from recsys.training.fitted_ranking import _order

pytest.importorskip("lightgbm")
pytest.importorskip("xgboost")
pytest.importorskip("catboost")
LIBRARIES = ("lightgbm", "xgboost", "catboost")
SMALL = {"trees": 12, "leaves": 7, "learning_rate": 0.2, "min_rows": 5, "l2": 1.0}
FEATURES = FeatureSpec(
    dense=(DenseFeature("x"), DenseFeature("v", width=2)),
    sparse=(SparseFeature("s", 9, "s"), SparseFeature("large", 5000, "large")),
)
CATEGORIES = [3]  # the column of s; ids of the larger table are numbers


class Batches:
    """Rows as batches of 100. keep: the rows to take."""

    def __init__(self, features: FeatureSpec, rows: int, seed: int, keep: Any = slice(None)) -> None:
        rng = np.random.default_rng(seed)
        self.dense = rng.standard_normal((rows, 3)).astype(np.float32)[keep]
        self.s, self.large = rng.integers(0, 9, rows)[keep], rng.integers(0, 5000, rows)[keep]
        effect = np.random.default_rng(7).standard_normal(9)[self.s] + self.dense[:, 0]
        noise = rng.random(rows)[keep]
        by_kind = {
            "binary": lambda: noise < 1 / (1 + np.exp(-2 * effect)),
            "regression": lambda: 5 + 3 * effect + noise,
            "classes": lambda: np.digitize(effect + noise, [0.0, 1.0]),
        }
        self.labels = np.stack([by_kind[x.kind]() for x in features.labels], 1).astype(np.float32)
        self.weight = (rng.random(rows) + 0.5).astype(np.float32)[keep] if features.weighted else None
        self.rows = len(self.dense)

    @property
    def matrix(self) -> np.ndarray:
        return np.column_stack([self.dense, self.s, self.large]).astype(np.float32)

    def __iter__(self) -> Iterator[Batch]:
        for a in range(0, self.rows, 100):
            at = slice(a, a + 100)
            ids = np.concatenate([self.s[at], self.large[at]]).astype(np.int32)
            sparse = KeyedJaggedTensor(
                ["s", "large"], torch.from_numpy(ids), lengths=torch.ones(len(ids), dtype=torch.int32)
            )
            weight = None if self.weight is None else torch.from_numpy(self.weight[at])
            group = torch.arange(a, a + len(self.dense[at])) // 8  # of 8 rows
            yield Batch(torch.from_numpy(self.dense[at]), sparse, torch.from_numpy(self.labels[at]), weight, group)


def fitted(features: FeatureSpec, training: Any, validation: Any = None, seed: int = 0, **given: Any) -> GBM:
    model = GBM(features, **{**SMALL, **given})
    model.fit(training, validation, seed=seed, threads=1)
    return model


def logits(model: GBM, batches: Batches) -> np.ndarray:
    return np.concatenate([model(b.dense, b.sparse).numpy() for b in batches])


def direct(library: str, rows: Batches, new: np.ndarray) -> np.ndarray:
    """Return the scores that a library gives if it is called by hand."""
    label = rows.labels[:, 0]
    if library == "lightgbm":
        import lightgbm as lgb

        data = lgb.Dataset(rows.matrix, label, categorical_feature=CATEGORIES, weight=rows.weight)
        params = {"num_leaves": 7, "learning_rate": 0.2, "min_data_in_leaf": 5, "lambda_l2": 1.0, "num_threads": 1}
        params |= {"objective": "binary", "verbose": -1, "deterministic": True, "force_row_wise": True}
        return np.asarray(lgb.train(params, data, 12).predict(new, raw_score=True))
    if library == "xgboost":
        import xgboost as xgb

        types = ["c" if i in CATEGORIES else "q" for i in range(5)]
        about = {"feature_types": types, "enable_categorical": True, "nthread": 1}
        params = {"tree_method": "hist", "grow_policy": "lossguide", "max_leaves": 7, "max_depth": 0, "eta": 0.2}
        params |= {"min_child_weight": 5, "lambda": 1.0, "objective": "binary:logistic", "nthread": 1}
        if tuple(map(int, xgb.__version__.split(".")[:2])) >= (3, 4):
            params |= {"max_cat_threshold": 8, "lambda": 11.0}
        booster = xgb.train(params, xgb.QuantileDMatrix(rows.matrix, label, weight=rows.weight, **about), 12)
        return np.asarray(booster.predict(xgb.DMatrix(new, **about), output_margin=True))
    import catboost
    import pandas as pd

    def frame(x: np.ndarray) -> Any:
        return pd.DataFrame(x).astype(dict.fromkeys(CATEGORIES, int))

    trees = {"iterations": 12, "learning_rate": 0.2, "max_leaves": 7, "grow_policy": "Lossguide", "depth": 16}
    more = {"min_data_in_leaf": 5, "l2_leaf_reg": 1.0, "bootstrap_type": "No", "random_seed": 0, "thread_count": 1}
    model = catboost.CatBoostClassifier(**trees, **more, allow_writing_files=False, verbose=False)
    model.fit(frame(rows.matrix), label, sample_weight=rows.weight, cat_features=CATEGORIES)
    return np.asarray(model.predict(frame(new), prediction_type="RawFormulaVal"))


@pytest.mark.parametrize("library", LIBRARIES)
def test_predictions_are_those_of_the_library_on_the_same_arrays(library: str) -> None:
    features = replace(FEATURES, weighted=True)
    rows, new = Batches(features, 1000, 0), Batches(features, 300, 1)
    own = logits(fitted(features, rows, library=library, max_categories=100), new)
    assert own.shape == (300, 1) and own.std() > 0.3
    np.testing.assert_allclose(own[:, 0], direct(library, rows, new.matrix), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("library", LIBRARIES)
def test_labels_of_every_kind_are_learnt_from_the_rows_that_have_them(library: str, tmp_path: Path) -> None:
    labels = (
        BinaryLabel("click"),
        NumberLabel("price", mean=5.0, std=4.0),
        ClassLabel("colour", ("red", "green", "blue")),
    )
    features = replace(FEATURES, labels=labels)
    rows, new = Batches(features, 1000, 0), Batches(features, 300, 1)
    rows.labels[::3, 1] = np.nan  # the second label is known in two rows of three
    model = fitted(features, rows, library=library, trees=30)
    found = predict(torch.from_numpy(logits(model, new)), labels).numpy()
    assert found.shape == (300, 5)
    assert np.corrcoef(found[:, 0], new.labels[:, 0])[0, 1] > 0.5
    assert np.abs(found[:, 1] - new.labels[:, 1]).mean() < 1.2  # whose standard deviation is 4
    assert np.allclose(found[:, 2:].sum(1), 1, atol=1e-5)
    assert (found[:, 2:].argmax(1) == new.labels[:, 2]).mean() > 0.7
    one = replace(FEATURES, labels=labels[1:2])
    known = Batches(replace(features, labels=labels[1:2]), 1000, 0, keep=np.arange(1000) % 3 != 0)
    alone = fitted(one, known, library=library, trees=30)
    np.testing.assert_allclose(logits(model, new)[:, 1], logits(alone, new)[:, 0], rtol=1e-5, atol=1e-5)
    model.save(tmp_path)
    again = GBM(features, library=library)  # type: ignore[arg-type]
    again.load(tmp_path)
    np.testing.assert_array_equal(logits(again, new), logits(model, new))


@pytest.mark.parametrize("library", LIBRARIES)
def test_early_stopping_keeps_the_trees_up_to_the_lowest_loss(library: str, capsys: pytest.CaptureFixture[str]) -> None:
    features = replace(FEATURES, weighted=True)
    rows, held_out = Batches(features, 600, 0), Batches(features, 400, 1)
    model = GBM(features, **{**SMALL, "trees": 60, "patience": 4}, library=library)  # type: ignore[arg-type]
    losses: list[float] = []
    settings = replace(model._settings, patience=None)
    parts = [TreeRows(b.matrix, b.labels[:, 0].copy(), b.weight) for b in (rows, held_out)]
    booster_of(library).fit(Fitting(model.columns, *parts, settings, losses.append))  # type: ignore[arg-type]
    assert len(losses) == 60
    best = next(
        i for i, loss in enumerate(losses) if min(losses[i + 1 : i + 5]) >= loss and loss == min(losses[: i + 1])
    )
    model.fit(rows, held_out, seed=0, threads=1)
    said = capsys.readouterr().err
    assert f"fitting: {best + 5} trees" in said  # where it stopped
    assert f"label: {best + 1} of at most 60 trees (the lowest loss of the validation rows {losses[best]:.5f})" in said
    assert held_out_loss(model, held_out) == pytest.approx(losses[best], abs=1e-5)


def test_the_order_of_groups_is_fitted_as_lightgbm_does_and_stopped_by_the_metric_that_is_reported() -> None:
    import lightgbm as lgb

    features = replace(FEATURES, labels=(NumberLabel("grade", mean=2, std=3),), weighted=True, grouped=True)
    rows, held_out, new = (Batches(features, n, seed) for seed, n in enumerate((600, 396, 80)))
    for batches in (rows, held_out):  # grades from 0 to 4; some rows have none, so that groups have 7 or 8 rows
        batches.labels = batches.labels.clip(0, 16) // 4
        batches.labels[::21] = np.nan
    model = GBM(features, **{**SMALL, "trees": 60, "patience": 5}, max_categories=100)  # type: ignore[arg-type]
    model.order_groups(_order(5))
    model.fit(rows, held_out, seed=0, threads=1)

    def data(part: Batches) -> Any:
        has = np.isfinite(part.labels[:, 0])
        sizes = np.unique(np.arange(part.rows)[has] // 8, return_counts=True)[1]
        about = {"weight": part.weight[has], "group": sizes, "categorical_feature": CATEGORIES}
        return lgb.Dataset(part.matrix[has], part.labels[has, 0], **about)

    params = {"num_leaves": 7, "learning_rate": 0.2, "min_data_in_leaf": 5, "lambda_l2": 1.0, "num_threads": 1}
    params |= {"objective": "lambdarank", "verbose": -1, "deterministic": True, "force_row_wise": True}
    direct = lgb.train(params, data(rows), 60)
    has = np.isfinite(held_out.labels[:, 0])
    groups, label, weight = np.arange(held_out.rows)[has] // 8, held_out.labels[has, 0], held_out.weight[has]
    reached = [
        group_metrics(groups, direct.predict(held_out.matrix[has], num_iteration=n), label, [5], weight)["gndcg@5"]
        for n in range(1, 61)
    ]
    stopped = next(i for i, best in enumerate(reached) if best == max(reached[: i + 6]))  # five trees were no better
    assert 0 < stopped < 55 and reached[stopped] > reached[0]
    found = logits(model, new)[:, 0]
    np.testing.assert_allclose(found, direct.predict(new.matrix, num_iteration=stopped + 1), rtol=1e-5, atol=1e-6)
    rows.labels[7] = 2.5
    with pytest.raises(UserError, match=r"grades, whole numbers of 0 to 30, and one is 2\.5"):
        model.fit(rows, held_out, seed=0, threads=1)


def held_out_loss(model: GBM, rows: Batches) -> float:
    """Return the weighted logloss."""
    z, y = logits(model, rows)[:, 0].astype(np.float64), rows.labels[:, 0]
    return float(np.average(np.log1p(np.exp(-z)) + (1 - y) * z, weights=rows.weight))


def test_sampled_negatives_count_in_the_validation_loss_as_in_training() -> None:
    features = replace(FEATURES, labels=(BinaryLabel("label", sampled=0.25),))
    seen: list[TreeRows | None] = []
    model = GBM(features, **SMALL)  # type: ignore[arg-type]
    fit = model.booster.fit

    class Spy:
        load = staticmethod(model.booster.load)

        def fit(self, given: Fitting) -> Any:
            seen.extend([given.training, given.validation])
            return fit(given)

    model.booster = Spy()  # type: ignore[assignment]
    held_out = Batches(features, 200, 1)
    model.fit(Batches(features, 300, 0), held_out, seed=0, threads=1)
    training, validation = seen
    assert training is not None and training.weight is None and validation is not None
    np.testing.assert_allclose(validation.weight, np.where(held_out.labels[:, 0] > 0, 1, 0.25))


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_seed_gives_the_same_trees_again_and_another_seed_other_ones(library: str) -> None:
    rows = Batches(FEATURES, 600, 0)
    first, again, other = (
        logits(fitted(FEATURES, rows, seed=seed, library=library, row_share=0.5, column_share=0.6), rows)
        for seed in (3, 3, 4)
    )
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 1e-3


def test_columns_of_multi_valued_features_and_of_large_tables() -> None:
    bags = SparseFeature("bag", 100, "bag", multi_valued=True)
    features = FeatureSpec((DenseFeature("x"),), (SparseFeature("s", 256, "s"), bags))
    columns = columns_of(features, 255)
    assert columns.names == ("x", "s", "bag_count", "bag_first", "bag_last")
    assert columns.categorical == (3, 4)
    sparse = KeyedJaggedTensor(["s", "bag"], torch.tensor([8, 0, 9, 4, 5, 6]), lengths=torch.tensor([1, 1, 1, 0, 3, 0]))
    matrix = GBM(features).matrix(torch.tensor([[0.5], [1.5], [2.5]]), sparse)
    assert matrix.tolist() == [[0.5, 8, 0, 0, 0], [1.5, 0, 3, 4, 6], [2.5, 9, 0, 0, 0]]


@pytest.mark.slow
def test_a_check_of_a_config_imports_no_library_of_trees() -> None:
    program = """
import sys, torch, recsys
from recsys.job.check_built import check_job
check_job(recsys.compose("train", ["model=gbm", "data=criteo"]))
print([m for m in ("lightgbm", "sklearn", "pandas") if m in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_label_that_the_library_refuses_or_no_row_has_is_one_line(library: str) -> None:
    rows = Batches(FEATURES, 200, 0)
    rows.labels[:] = np.nan
    with pytest.raises(UserError, match=r"data\.labels\.label: no training row has this label"):
        fitted(FEATURES, rows, library=library)
    rows.labels[:] = 7.0  # no library takes this for a binary label or a class of two
    features = replace(FEATURES, labels=(ClassLabel("y", ("a", "b")),))
    with pytest.raises(UserError, match=r"^model: y: [^\n]+$"):
        fitted(features, rows, library=library)
