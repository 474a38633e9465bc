"""Every plan type with every fused optimizer, in two processes, against plain torch on the whole batch."""

from typing import Any

import pytest
import torch
from parity import assert_equal, initial_tables, train_all
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


def test_tables_start_alike_under_every_plan() -> None:
    """Each rank initialising its shards by itself would give all of them the same values."""
    kinds = [t for t in TYPES if t != "data_parallel"]
    [alone] = run(initial_tables, 1, ["table_wise"])
    whole = {name: pieces[0][0] for name, pieces in alone[0].items()}
    ranks = run(initial_tables, 2, [*kinds, "none"])
    for i, kind in enumerate([*kinds, "none"]):
        for name, full in whole.items():
            got = torch.full_like(full, torch.nan)
            for piece, (row, column) in [p for r in ranks for p in r[i][name]]:
                got[row : row + piece.shape[0], column : column + piece.shape[1]] = piece
            assert torch.equal(got, full), (kind, name)
            assert not torch.equal(full[:, : full.shape[1] // 2], full[:, full.shape[1] // 2 :])
