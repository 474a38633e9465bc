"""Models that retrieve train and rank in two processes, under every plan type, as in one."""

from typing import Any

import pytest
import torch
from processes import run
from retrieval import train_all

from recsys.sharding.sharders import TYPES

CASES = [("sasrec", t) for t in TYPES] + [("two_tower", t) for t in ("row_wise", "table_wise", "data_parallel")]


@pytest.fixture(scope="module")
def alone() -> list[Any]:
    [found] = run(train_all, 1, [("sasrec", "table_wise"), ("two_tower", "table_wise")])
    return found


@pytest.fixture(scope="module")
def two() -> list[Any]:
    return run(train_all, 2, CASES)


@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_as_in_one_process(alone: list[Any], two: list[Any], case: tuple[str, str]) -> None:
    vectors, metrics = alone[case[0] == "two_tower"]
    for rank in two:
        found, ranked = rank[CASES.index(case)]
        assert torch.allclose(found, vectors, atol=2e-5)
        assert ranked == pytest.approx(metrics, abs=1e-9)
    assert metrics["rows"] == 8
    assert metrics["candidates"] == 30
