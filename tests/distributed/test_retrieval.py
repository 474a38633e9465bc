"""Models that retrieve train and rank in two processes, under every plan type, as in one."""

from typing import Any

import pytest
import torch
from processes import run
from retrieval import train_all, train_unequal

from recsys.sharding.sharders import TYPES

CASES = [("sasrec", t) for t in TYPES] + [("two_tower", t) for t in ("row_wise", "table_wise", "data_parallel")]
CASES += [("neumf", "row_wise")]
MODELS = ["sasrec", "two_tower", "neumf"]


@pytest.fixture(scope="module")
def alone() -> list[Any]:
    [found] = run(train_all, 1, [(model, "table_wise") for model in MODELS])
    return found


@pytest.fixture(scope="module")
def two() -> list[Any]:
    return run(train_all, 2, CASES)


@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_as_in_one_process(alone: list[Any], two: list[Any], case: tuple[str, str]) -> None:
    vectors, metrics = alone[MODELS.index(case[0])]
    found = [rank[CASES.index(case)] for rank in two]
    assert torch.allclose(torch.cat([part for part, _ in found]), vectors, atol=2e-5)
    for _, ranked in found:
        assert ranked == pytest.approx(metrics, abs=1e-9)
    assert metrics["rows"] == 8
    assert metrics["candidates"] == 30


def test_ranks_that_look_up_different_numbers_of_items() -> None:
    """Each id is a bag, so that the ranks' numbers of bags differ, too."""
    [expected] = run(train_unequal, 1)
    for vectors in run(train_unequal, 2):
        torch.testing.assert_close(vectors, expected, rtol=1e-5, atol=1e-6)
