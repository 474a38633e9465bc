"""Items of equal vectors have equal scores."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from recsys.online.equal_vectors import EqualVectors


@given(st.lists(st.lists(st.sampled_from([-0.0, 0.0, 1.5, -2.0]), min_size=3, max_size=3), max_size=12))
def test_the_first_of_equal_vectors(rows: list[list[float]]) -> None:
    vectors = np.array(rows, np.float32).reshape(-1, 3)
    found = EqualVectors(vectors)
    expected = {j: rows.index(row) for j, row in enumerate(rows) if rows.index(row) < j}
    assert dict(zip(found.later.tolist(), found.first.tolist(), strict=True)) == expected


@pytest.mark.parametrize("as_scores", [np.array, torch.tensor])
def test_their_scores(as_scores: type) -> None:
    equal = EqualVectors(np.array([[1, 2], [3, 4], [1, 2]], np.float32))
    assert equal.equalise(as_scores([[0.5, 0.25, 0.75], [2.0, 3.0, 4.0]])).tolist() == [
        [0.5, 0.25, 0.5],
        [2.0, 3.0, 2.0],
    ]
