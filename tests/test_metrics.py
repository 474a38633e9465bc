import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import log_loss, roc_auc_score

from recsys.metrics import BinaryMetrics, binary_metrics


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=2, max_size=200))
def test_auc_and_logloss_equal_scikit_learn(rows: list[tuple[int, bool]]) -> None:
    p = np.array([0.1 + 0.15 * s for s, _ in rows], dtype=np.float32)  # many ties
    y = np.array([b for _, b in rows], dtype=np.float32)
    found = binary_metrics(p, y)
    assert found["logloss"] == pytest.approx(log_loss(y, p.astype(np.float64), labels=[0, 1]), rel=1e-6)
    if 0 < y.sum() < len(y):
        assert found["auc"] == pytest.approx(roc_auc_score(y, p), abs=1e-12)
    else:
        assert math.isnan(found["auc"])


def test_a_constant_scorer_gets_chance_and_the_mean_gets_ne_1() -> None:
    y = np.array([0, 0, 0, 1], np.float32)
    found = binary_metrics(np.full(4, 0.25, np.float32), y)
    assert found["auc"] == 0.5
    assert found["ne"] == pytest.approx(1)
    assert found["calibration"] == pytest.approx(1)


def test_rows_of_weight_0_do_not_count() -> None:
    metrics = BinaryMetrics()
    metrics.update(torch.tensor([[1.0], [-1.0], [9.0]]), torch.tensor([[1.0], [0.0], [0.0]]), torch.tensor([1.0, 1, 0]))
    found = metrics.compute()
    assert (found["rows"], found["auc"]) == (2, 1)
    assert metrics.compute()["rows"] == 0
