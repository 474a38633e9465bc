"""Models of a user's behaviour train row-wise in two processes to the logits of one."""

from typing import Any

import pytest
import torch
from behaviour import MODELS, STEPS, train_all
from processes import run

NAMES = list(MODELS)


@pytest.fixture(scope="module")
def found() -> dict[int, list[Any]]:
    return {ranks: run(train_all, ranks, NAMES) for ranks in (1, 2)}


@pytest.mark.parametrize("name", NAMES)
def test_two_ranks_train_as_one(found: dict[int, list[Any]], name: str) -> None:
    at = NAMES.index(name)
    [(alone, _)] = [rank[at] for rank in found[1]]
    ranks = [rank[at] for rank in found[2]]
    assert all(types == {"row_wise"} for _, types in ranks)
    for step in range(STEPS):
        torch.testing.assert_close(torch.cat([logits[step] for logits, _ in ranks]), alone[step], rtol=1e-4, atol=1e-5)
    assert alone[-1].std() > 0.01
