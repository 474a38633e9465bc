"""Every ranking model trains under row-wise sharding in two processes to the logits of one."""

from typing import Any

import pytest
import torch
from processes import run
from ranking_models import train_all
from small_models import SMALL, TASKS


@pytest.fixture(scope="module")
def found() -> tuple[Any, list[Any]]:
    return run(train_all, 1)[0], run(train_all, 2)


@pytest.mark.parametrize("name", [*(m.__name__ for m in SMALL | TASKS), "DNN with dims", "DLRM with dims"])
def test_two_ranks_give_the_logits_of_one(found: Any, name: str) -> None:
    alone, ranks = found
    assert alone[name].std() > 1e-4  # the rows do differ
    for rank in ranks:
        torch.testing.assert_close(rank[name], alone[name], rtol=1e-4, atol=1e-5)
