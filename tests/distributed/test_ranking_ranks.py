"""Ranks that score a range of the candidates each find, to the whole number, what one finds that scores all."""

from typing import Any

import numpy as np
import pytest
from processes import run
from ranking import N, rank_all

CASES = [("distinct", 2**22), ("ties", 4), ("constant", 2**22), ("nan", 4)]


@pytest.fixture(scope="module")
def found() -> dict[int, list[Any]]:
    return {1: [rank_all(0, 1, CASES)]} | {ranks: run(rank_all, ranks, CASES) for ranks in (2, 4)}


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_counts_equal_those_of_one_rank(found: dict[int, list[Any]], case: tuple[str, int], ranks: int) -> None:
    at = CASES.index(case)
    alone, all_scored = found[1][0][at]
    several = [rank[at] for rank in found[ranks]]
    for i, (kept, metrics) in enumerate(alone):
        assert np.array_equal(np.concatenate([one[i][0] for one, _ in several]), kept)
        for one, _ in several:
            assert one[i][1] == pytest.approx(metrics, abs=1e-12)
    scored = [candidate for _, query_batch in several for candidate in query_batch]
    assert sorted(scored) == sorted(all_scored) == list(range(N))
    assert max(len(query_batch) for _, query_batch in several) <= -(-N // ranks)
