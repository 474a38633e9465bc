"""Batches whose lists are filled up to few sizes, so that CUDA graphs fit them, train as lists that are not."""

import copy
from collections.abc import Callable

import numpy as np
import pytest
import torch
from sequence_models import ALL, ALONE, LISTS, Make, N, batch

from recsys.interface.candidates import Candidates
from recsys.losses import BCE, BPR, FullSoftmax, RetrievalLoss, SampledSoftmax
from recsys.losses.task import RetrievalTask
from recsys.models.common.items import QueryBatch, rounded

LOSSES: dict[str, Callable[[], RetrievalLoss]] = {
    "full_softmax": lambda: FullSoftmax(label_smoothing=0.1),
    "sampled_softmax": lambda: SampledSoftmax(count=4),
    "hardest": lambda: SampledSoftmax(count=5, hardest=2, temperature=0.3),
    "separate": lambda: SampledSoftmax(count=3, shared=False),
    "popularity": lambda: SampledSoftmax(count=5, negatives="popularity"),
    "in_batch": lambda: SampledSoftmax(count=100, negatives="in_batch"),
    "in_batch-few": lambda: SampledSoftmax(count=3, negatives="in_batch"),
    "bce": lambda: BCE(count=2, calibration=0.7),
    "bce-shared": lambda: BCE(count=6, shared=True),
    "bce-outside": lambda: BCE(count=2, outside_history=True),
    "bpr": lambda: BPR(count=3),
}


def task_of(make: Make, loss: RetrievalLoss) -> RetrievalTask:
    torch.manual_seed(0)
    return RetrievalTask(make(ALONE, dropout=0.0), loss, Candidates(popularity=torch.arange(float(N))))


def assert_equal(make: Make, loss: Callable[[], RetrievalLoss], lists: list[list[int]]) -> None:
    plain, rows = task_of(make, loss()), batch(ALONE, lists)
    filled = copy.deepcopy(plain)
    filled.rows_of_graphs = len(lists)
    for seed in range(3):
        results = []
        for task in (plain, filled):
            torch.manual_seed(seed)
            value, _ = task(rows)
            task.zero_grad()
            value.backward()
            results.append(value.detach())
        torch.testing.assert_close(results[1], results[0])
        for (name, a), b in zip(plain.named_parameters(), filled.parameters(), strict=True):
            assert (a.grad is None) == (b.grad is None), name
            if a.grad is not None:
                torch.testing.assert_close(b.grad, a.grad, rtol=1e-4, atol=1e-6, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.few(5)
@pytest.mark.parametrize("make", ALL.values(), ids=ALL)
def test_each_model(make: Make) -> None:
    assert_equal(make, FullSoftmax, LISTS * 4)


@pytest.mark.few(8)
@pytest.mark.parametrize("name", ["sasrec", "bert4rec"])
@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_each_loss(loss: Callable[[], RetrievalLoss], name: str) -> None:
    assert_equal(ALL[name], loss, LISTS * 4)


@pytest.mark.few(3)
@pytest.mark.parametrize("seed", range(8))
def test_drawn_lists(seed: int) -> None:
    """One long list among short ones, empty ones, unknown items, and totals on both sides of a size."""
    random = np.random.default_rng(seed)
    lengths = random.integers(0, [1, 2, 3, 5, 9, 20, 60, 200][seed], 7)
    lists = [random.integers(0, N, n).tolist() for n in lengths]
    assert_equal(ALL["sasrec"], lambda: SampledSoftmax(count=4), lists)


@pytest.mark.parametrize("total", [1, 2, 15, 16, 17, 63, 64, 65, 200])
def test_sizes(total: int) -> None:
    """All batches of a size have as many lists, none of which is longer than the longest."""
    task = RetrievalTask(ALL["sasrec"](ALONE), FullSoftmax(), Candidates(popularity=torch.ones(N)))
    seen: dict[tuple[int, int], set[int]] = {}
    for longest in (1, 3, 7, 50):
        for inputs in range(total, total + 12):
            lengths = [min(longest, inputs - at) for at in range(0, inputs, longest)]
            given: QueryBatch = task.model.queries_ahead(batch(ALONE, [[1] * (n + 1) for n in lengths]), 0)
            found = given.filled_up()
            assert found.filled is not None and found.filled.longest == rounded(max(lengths))
            assert len(found.inputs) == rounded(inputs + 1) == int(found.lengths.sum())
            assert int(found.lengths.max()) <= found.filled.longest
            more = len(found.lengths) - len(lengths)
            seen.setdefault((len(found.inputs), found.filled.longest), set()).add(more)
            before = found.without_filling()
            for name, tensor in vars(given).items():
                assert not isinstance(tensor, torch.Tensor) or torch.equal(vars(before)[name], tensor), name
    assert all(len(numbers) == 1 for numbers in seen.values())


def test_masks_follow_from_a_number() -> None:
    task = RetrievalTask(ALL["bert4rec"](ALONE), FullSoftmax(), Candidates(popularity=torch.ones(N)))
    rows = batch(ALONE, LISTS * 4)
    drawn = [task.queries_ahead(rows, draw).at.tolist() for draw in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
