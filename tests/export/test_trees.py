"""Boosted trees as graphs: the predictions of the fitted model, through ONNX and through the steps of Triton's FIL."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from model_inputs import random_arrays

from recsys.base.errors import UserError
from recsys.data.features.arrays import Arrays
from recsys.data.features.batch_tensors import RowTensors
from recsys.export.artefact.folder import GRAPH
from recsys.export.artefact.graph_io import graph_inputs, open_session
from recsys.export.trees import COLUMNS, OUTPUTS, write_steps, write_trees
from recsys.interface.batch import Batch
from recsys.interface.features import DenseFeature, FeatureSpec, SparseFeature
from recsys.interface.labels import BinaryLabel, ClassLabel, NumberLabel, columns, predict
from recsys.models.gbm import GBM

pytest.importorskip("lightgbm")
pytest.importorskip("xgboost")
gtil = pytest.importorskip("treelite").gtil  # Treelite's own, plain evaluation of trees

LABELS = (
    BinaryLabel("click", platt=(0.9, -0.1), sampled=0.5),
    NumberLabel("spent", mean=3.0, std=2.0, log=True),
    ClassLabel("kind", ("a", "b", "c")),
)
TAGS = SparseFeature("tags", 40, "tags", multi_valued=True)
FEATURES = FeatureSpec(
    dense=(DenseFeature("x"), DenseFeature("v", width=2)),
    sparse=(
        SparseFeature("s", 300, "s"),
        SparseFeature("few", 3, "few"),
        SparseFeature("large", 50_000, "large"),
        TAGS,
    ),
    labels=LABELS,
)
NO_DENSE = FeatureSpec(dense=(), sparse=(TAGS,), labels=LABELS[:1])
NO_LISTS = FeatureSpec(dense=(DenseFeature("x"),), sparse=(SparseFeature("s", 300, "s"),), labels=LABELS[:1])


class Rows:
    """Random rows whose labels depend on their features: one batch."""

    def __init__(self, features: FeatureSpec, rows: int, seed: int) -> None:
        self.rows, self.features = rows, features
        self.arrays = random_arrays(features, rows, seed)
        effect = np.random.default_rng(7).normal(size=300)
        signal = effect[self.arrays.ids[:, 0]] if self.arrays.ids.shape[1] else np.zeros(rows)
        signal = signal + sum(lengths for lengths in self.arrays.lengths.values()) - 2
        signal = signal + (self.arrays.dense[:, 0] if features.dense else 0)
        signal += 0.3 * np.random.default_rng(seed).normal(size=rows)
        labels = [signal > 0, np.exp(signal / 3), np.digitize(signal, [-1, 1])]
        self.labels = np.stack(labels[: len(features.labels)], 1).astype(np.float32)

    def __iter__(self) -> Iterator[Batch]:
        yield RowTensors.from_arrays(self.arrays, self.features).batch(self.labels)


def fitted(features: FeatureSpec, library: str, **given: Any) -> GBM:
    model = GBM(features, library=library, trees=15, leaves=31, min_rows=3, learning_rate=0.3, **given)  # type: ignore[arg-type]
    model.fit(Rows(features, 3000, seed=1), None, seed=0, threads=1)
    return model


def predictions(model: GBM, arrays: Arrays) -> np.ndarray:
    features = model.features
    batch = RowTensors.from_arrays(arrays, features).batch(np.zeros((arrays.rows, len(features.labels)), np.float32))
    return predict(model(batch.dense, batch.sparse), features.labels).numpy()


@pytest.mark.few(2)
@pytest.mark.parametrize("library", ["lightgbm", "xgboost"])
@pytest.mark.parametrize("features", [FEATURES, NO_DENSE, NO_LISTS], ids=["all", "no dense", "no lists"])
def test_a_graph_gives_the_predictions_of_its_trees(library: str, features: FeatureSpec, tmp_path: Path) -> None:
    model = fitted(features, library)
    write_trees(model, features.labels, tmp_path)
    session = open_session(tmp_path / GRAPH)
    for rows in (1, 2000):  # among them ids that no training row has
        arrays = random_arrays(features, rows, seed=rows)
        out = session.run(columns(features.labels), graph_inputs(arrays, features).feed)
        wanted = predictions(model, arrays)
        np.testing.assert_allclose(np.stack(out, 1), wanted, atol=1e-5, rtol=1e-5)
        assert rows == 1 or wanted.std(axis=0).min() > 0.02


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("library", ["lightgbm", "xgboost"])
def test_the_steps_of_fil_give_the_predictions(library: str, tmp_path: Path) -> None:
    import treelite

    model, folder = fitted(FEATURES, library), tmp_path / "fil"
    about = write_steps(model, LABELS, folder)
    assert about == {"columns": 3 + 3 + 3, "scores": [1, 1, 3]}
    arrays = random_arrays(FEATURES, 500, seed=3)
    [matrix] = open_session(folder / COLUMNS).run(None, graph_inputs(arrays, FEATURES).feed)
    forests = [treelite.Model.deserialize(str(folder / f"label_{i}.tl")) for i in range(3)]
    scores = {f"scores_{i}": gtil.predict(x, matrix).reshape(500, -1).astype(np.float32) for i, x in enumerate(forests)}
    out = open_session(folder / OUTPUTS).run(columns(LABELS), scores)
    np.testing.assert_allclose(np.concatenate(out, 1), predictions(model, arrays), atol=1e-5, rtol=1e-5)


def test_labels_that_need_no_tree(tmp_path: Path) -> None:
    """All rows have the same label, so that each tree is one leaf."""
    rows = Rows(NO_LISTS, 200, seed=1)
    rows.labels[:] = 2.5
    features = FeatureSpec(NO_LISTS.dense, NO_LISTS.sparse, (NumberLabel("spent"),))
    model = GBM(features, trees=3)
    model.fit(rows, None, seed=0, threads=1)
    write_trees(model, features.labels, tmp_path)
    [out] = open_session(tmp_path / GRAPH).run(None, graph_inputs(rows.arrays, features).feed)
    torch.testing.assert_close(torch.from_numpy(out), torch.full((200,), 2.5))


def test_catboost_has_no_graph(tmp_path: Path) -> None:
    pytest.importorskip("catboost")
    with pytest.raises(UserError, match=r"library=catboost has no form as a graph; train library=lightgbm or xgboost"):
        write_trees(fitted(NO_LISTS, "catboost"), NO_LISTS.labels, tmp_path)
