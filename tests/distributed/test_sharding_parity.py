"""Every plan type with every fused optimizer, in two processes, against plain torch on the whole batch."""

from typing import Any

import pytest
from parity import assert_equal, train_all
from processes import run

from recsys.sharding.plan import FUSED_OPTIMIZERS, TYPES

CASES = [(t, o) for t in (*TYPES, "none") for o in FUSED_OPTIMIZERS]


@pytest.fixture(scope="module")
def two() -> list[Any]:
    return run(train_all, 2, CASES)


@pytest.mark.parametrize("case", CASES, ids=["-".join(c) for c in CASES])
def test_sharded_equals_unsharded(two: list[Any], case: tuple[str, str]) -> None:
    kind, optimizer = case
    ranks = [r[CASES.index(case)] for r in two]
    assert {e["type"] for e in ranks[0]["plan"]} == {"data_parallel" if kind == "none" else kind}
    by_column = kind in ("column_wise", "table_column_wise")
    assert_equal(ranks, optimizer, blocks=2 if by_column and "rowwise" in optimizer else 1)
