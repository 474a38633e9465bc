"""Which items are like one: the weights that closed-form models have, and cosines."""

from typing import Any

import numpy as np
import pytest
import torch

from recsys.index.cosines import Cosines
from recsys.index.protocol import equal_rows
from recsys.interface.batch import CandidateIds, ItemLists, ItemRows
from recsys.interface.features import FeatureSpec, SparseFeature
from recsys.models.ease import EASE
from recsys.models.item_knn import ItemKNN
from recsys.models.slim import SLIM
from recsys.models.transition import Transition

FEATURES = FeatureSpec(
    dense=(), sparse=(SparseFeature("item", 7, "item", multi_valued=True, sequence=True),), item="item"
)


def lists(*items: list[int]) -> ItemLists:
    values = torch.tensor([i for one in items for i in one])
    return ItemLists(ItemRows(CandidateIds(values)), torch.tensor([len(one) for one in items]))


def weights_of(model: Any) -> np.ndarray:
    """Return the model's own weights of item 2."""
    if isinstance(model, EASE):
        return model.weights[2].numpy()
    row = np.zeros(7)
    if isinstance(model, ItemKNN):
        row[model.neighbours[2]] = model.similarities[2]
    else:
        of_row = slice(*model.item_starts[2:4].tolist())
        others, values = (model.others, model.weights) if isinstance(model, SLIM) else (model.followers, model.shares)
        row[others[of_row]] = values[of_row]
    return row


@pytest.mark.parametrize("model", [EASE, ItemKNN, SLIM, Transition])
def test_the_scores_of_one_item_are_its_weights(model: Any) -> None:
    fitted = model(FEATURES, **({"hops": 1} if model is Transition else {}))
    fitted.fit(lists([1, 2, 3], [2, 3], [2, 4, 5], [5, 2], [1, 6]))
    found = fitted.score(lists([2]))[0].numpy()
    assert found.any()
    np.testing.assert_allclose(found, weights_of(fitted), rtol=1e-6)


def test_cosines_of_zeros_and_of_equal_vectors() -> None:
    vectors = np.random.default_rng(0).standard_normal((9, 33)).astype(np.float32)
    vectors[3], vectors[7] = 0, vectors[2]
    cosines = Cosines(vectors, equal_rows(vectors))
    for row in range(9):
        lengths = np.linalg.norm(vectors, axis=1) * np.linalg.norm(vectors[row])
        wanted = np.divide(vectors @ vectors[row], lengths, out=np.zeros(9, np.float32), where=lengths > 0)
        np.testing.assert_allclose(cosines(row), wanted, atol=1e-6)
        assert cosines(row)[7] == cosines(row)[2]
