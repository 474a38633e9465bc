"""Several lists become one."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recsys.stages.merge import Merge, ReciprocalRank, RoundRobin, Weighted

A = np.array([3, 1, 2]), np.array([9.0, 8.0, 1.0])
B = np.array([1, 4]), np.array([0.5, 0.25])
NOTHING = np.zeros(0, np.int64), np.zeros(0)


def test_reciprocal_ranks() -> None:
    items, scores = ReciprocalRank(c=60)([A, B], [1.0, 2.0], 10)
    expected = {3: 1 / 61, 1: 1 / 62 + 2 / 61, 2: 1 / 63, 4: 2 / 62}
    assert items.tolist() == sorted(expected, key=lambda i: -expected[i])
    assert scores.tolist() == pytest.approx([expected[i] for i in items])


def test_weighted_scores_are_scaled_within_a_list() -> None:
    items, scores = Weighted()([A, B], [1.0, 0.5], 10)
    expected = {3: 1.0, 1: (1 + 7 / 8) / 2 + 0.5, 2: 0.5, 4: 0.25}
    assert dict(zip(items.tolist(), scores.tolist(), strict=True)) == pytest.approx(expected)


def test_round_robin() -> None:
    items, _ = RoundRobin()([A, B], [1.0, 1.0], 10)
    assert items.tolist() == [3, 1, 4, 2]
    items, _ = RoundRobin()([A, B], [1.0, 1.0], 2)
    assert items.tolist() == [3, 1]


@pytest.mark.parametrize("merge", [ReciprocalRank(), Weighted(), RoundRobin()], ids=lambda m: type(m).__name__)
def test_empty_lists(merge: Merge) -> None:
    assert merge([NOTHING, NOTHING], [1.0, 1.0], 5)[0].tolist() == []
    assert merge([NOTHING, A], [1.0, 1.0], 5)[0].tolist() == [3, 1, 2]


@pytest.mark.parametrize("merge", [ReciprocalRank(), Weighted(), RoundRobin()], ids=lambda m: type(m).__name__)
@given(
    lists=st.lists(st.lists(st.integers(0, 20), unique=True, max_size=8), min_size=1, max_size=4), k=st.integers(1, 30)
)
def test_each_item_appears_once(merge: Merge, lists: list[list[int]], k: int) -> None:
    found = [(np.array(x, np.int64), -np.arange(len(x), dtype=float)) for x in lists]
    items, scores = merge(found, [1.0] * len(lists), k)
    union = {i for x in lists for i in x}
    assert len(set(items.tolist())) == len(items) == min(k, len(union)) and set(items.tolist()) <= union
    assert (np.diff(scores) <= 0).all()
