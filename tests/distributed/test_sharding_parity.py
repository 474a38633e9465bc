"""Every plan type with every fused optimizer, in two processes and in four, against plain torch on the whole batch."""

from typing import Any

import pytest
import torch
from parity import Case, assert_equal, initial_tables, planned_bytes, train_all
from processes import run

from recsys.sharding.optimizers import OPTIMIZERS
from recsys.sharding.sharders import SEQUENCE_TYPES, TYPES

CASES = [Case(t, o) for t in (*TYPES, "none", "mixed") for o in OPTIMIZERS]
CASES += [Case(t, o, every_row=True) for t in (*TYPES, "mixed") for o in ("adam", "partial_rowwise_adam")]
# widths that are no multiple of 4: padded, and equal to no padding
PADDED = [Case(t, o, dim=6) for t in ("table_wise", "row_wise", "data_parallel") for o in OPTIMIZERS]
CASES += [*PADDED, Case("row_wise", "rowwise_adagrad", dim=6, padding="64", decay=False)]
CASES += [Case(t, o, dedup=True) for t in (*SEQUENCE_TYPES, "mixed") for o in ("rowwise_adagrad", "adam")]
AT_FOUR = [Case(t, "rowwise_adagrad", decay=False, dedup=True) for t in ("row_wise", "mixed")]
AT_FOUR += [Case(t, o, decay=False) for t in (*TYPES, "mixed") for o in ("rowwise_adagrad", "adagrad")]
WITH_EVERY_OPTIMIZER = ("row_wise", "column_wise", "data_parallel")


def slow(case: Case) -> bool:
    """Every day: each type with one optimizer, three with every one."""
    return case.optimizer != "rowwise_adagrad" and (case.types not in WITH_EVERY_OPTIMIZER or case.dim != 8)


def marked(cases: list[Case]) -> list[Any]:
    return [pytest.param(c, id=str(c), marks=[pytest.mark.slow] if slow(c) else []) for c in cases]


class Ranks:
    """What the ranks of one world size find of the cases, trained in two jobs: those of every day, and the slow ones."""

    def __init__(self, world_size: int, cases: list[Case]) -> None:
        self._world_size, self._cases = world_size, cases
        self._found: dict[bool, list[Any]] = {}

    def of(self, case: Case) -> list[Any]:
        cases = [c for c in self._cases if slow(c) == slow(case)]
        if slow(case) not in self._found:
            self._found[slow(case)] = run(train_all, self._world_size, cases)
        return [rank[cases.index(case)] for rank in self._found[slow(case)]]


@pytest.fixture(scope="module")
def two() -> Ranks:
    return Ranks(2, CASES)


@pytest.fixture(scope="module")
def four() -> Ranks:
    return Ranks(4, AT_FOUR)


def check(ranks: list[Any], case: Case) -> None:
    tables = {e["table"]: e["type"] for e in ranks[0]["plan"]}
    if case.types == "mixed":
        assert len(set(tables.values())) == 4
    else:
        expected = "data_parallel" if case.types == "none" else case.types
        split = case.types in ("row_wise", "table_row_wise", "grid_shard") and len(ranks) > 3
        assert tables.pop("t_a") == ("table_wise" if split else expected)  # it has three rows
        assert {t for name, t in tables.items() if name != "s_s"} == {expected}
    assert_equal(ranks, case)
    assert [r["bytes"] for r in ranks] == planned_bytes(case, len(ranks))


@pytest.mark.parametrize("case", marked(CASES))
def test_sharded_equals_unsharded(two: Ranks, case: Case) -> None:
    check(two.of(case), case)


@pytest.mark.slow
@pytest.mark.parametrize("case", marked(AT_FOUR))
def test_sharded_equals_unsharded_at_four(four: Ranks, case: Case) -> None:
    check(four.of(case), case)


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
