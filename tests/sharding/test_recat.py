"""TorchRec's order of the ids that a process got from others is made once, and is the one that TorchRec makes."""

import inspect
from typing import Any

import pytest
import torch
from torchrec.distributed import dist_data

from recsys.sharding.planner import _keeping, keep_recats

CPU = torch.device("cpu")


@pytest.mark.parametrize("split", [0, 1, 3])
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("stagger", [1, 2])
@pytest.mark.parametrize("rows", [None, "equal", "unequal"])
def test_the_order_is_torchrecs(split: int, ranks: int, stagger: int, rows: str | None) -> None:
    sizes = {None: None, "equal": [5] * ranks, "unequal": list(range(1, ranks + 1))}[rows]
    if rows == "unequal" and split == 0:
        sizes = None
    make, calls = inspect.unwrap(dist_data._get_recat), []

    def counted(*given: Any) -> Any:
        calls.append(given)
        return make(*given)

    kept = _keeping(counted)
    expected = make(split, ranks, stagger, CPU, sizes)
    for _ in range(3):
        found = kept(local_split=split, num_splits=ranks, stagger=stagger, device=CPU, batch_size_per_rank=sizes)
        assert (found is None) == (expected is None)
        assert found is None or torch.equal(found, expected)
    assert len(calls) == (3 if rows == "unequal" and split else 1)


def test_one_process_reorders_nothing() -> None:
    keep_recats()
    keep_recats()  # once more changes nothing
    assert dist_data._get_recat(3, 1, 1, CPU, [5]) is None
