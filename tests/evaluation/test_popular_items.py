"""The list of the most popular items, against the metrics that count every candidate."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recsys.evaluation.retrieval_metrics import RetrievalMetrics
from recsys.evaluation.retrieval_protocols import Protocols
from recsys.interface.batch import JaggedIds
from recsys.training.baselines import PopularItems


def lists(rows: list[list[int]]) -> JaggedIds:
    return JaggedIds(torch.tensor([i for row in rows for i in row], dtype=torch.long), torch.tensor([*map(len, rows)]))


ITEMS = st.lists(st.integers(0, 14), max_size=8)  # 12 and more are no candidates


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, 3), min_size=11, max_size=11),
    st.lists(st.tuples(ITEMS.filter(bool), ITEMS), min_size=1, max_size=6),
    st.booleans(),
    st.booleans(),
)
def test_it_equals_a_count_of_every_candidate(
    counts: list[int], queries: list[tuple[list[int], list[int]]], filter_history: bool, rank_repeats: bool
) -> None:
    popularity = np.array([0, *counts], np.float32)
    targets, history = (lists([list(q[i]) for q in queries]) for i in (0, 1))
    protocols = Protocols(k=(1, 5), filter_history=filter_history, rank_repeats=rank_repeats)
    expected = RetrievalMetrics(protocols, popularity)
    scores = torch.from_numpy(popularity)
    expected.update(torch.arange(len(queries)), lambda q, a, b: scores[a:b].expand(len(q), -1), targets, history, 0)
    popular = PopularItems(popularity, filter_history=filter_history, rank_repeats=rank_repeats)
    popular.update(targets, history)
    found, wanted = popular.metrics((1, 5)), expected.compute()
    assert found == pytest.approx({name: wanted[name] for name in found}, abs=1e-12)
