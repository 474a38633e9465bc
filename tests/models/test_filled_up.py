"""Batches whose lists are filled up to few sizes, so that CUDA graphs fit them, train as lists that are not."""

import copy
from collections.abc import Callable

import numpy as np
import pytest
import torch
from sequence_models import ALL, ALONE, LISTS, Make, N, batch

from recsys.interface.batch import Batch
from recsys.interface.candidates import Candidates
from recsys.losses import BCE, BPR, FullSoftmax, LossInputs, RetrievalLoss, SampledSoftmax
from recsys.losses.task import RetrievalTask
from recsys.models.bert4rec import BERT4Rec
from recsys.models.common.items import QueryBatch, rounded
from recsys.models.common.lists import at_most, from_block, to_block, with_first
from recsys.models.protocols import says
from recsys.models.sasrec import SASRec
from recsys.training.compiled import _no_effect, recompute_blocks

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
            assert found.filled is not None and found.filled.longest == rounded(max(lengths), 4)
            assert len(found.inputs) == rounded(inputs + 1) == int(found.lengths.sum())
            assert int(found.lengths.max()) <= found.filled.longest
            more = len(found.lengths) - len(lengths)
            seen.setdefault((len(found.inputs), found.filled.longest), set()).add(more)
            before = found.without_filling()
            for name, tensor in vars(given).items():
                assert not isinstance(tensor, torch.Tensor) or torch.equal(vars(before)[name], tensor), name
    assert all(len(numbers) == 1 for numbers in seen.values())


def test_blocks_that_are_computed_again_have_the_same_sizes() -> None:
    task = task_of(ALL["transformer-relative"], FullSoftmax())
    rows = batch(ALONE, [[1 + i % 12 for i in range(26)]] * 3)
    expected = task(rows)[0]
    task.rows_of_graphs = 3
    recompute_blocks(task.model)
    loss, _ = task(rows)
    loss.backward()
    torch.testing.assert_close(loss, expected)


def test_a_list_that_a_model_makes_longer_is_whole() -> None:
    x, lengths = torch.arange(1.0, 6)[:, None], torch.tensor([3, 2])
    with at_most(3), with_first(torch.tensor([[10.0], [20.0]]), x, lengths) as (longer, counts):
        assert from_block(*flat(to_block(longer, counts))).flatten().tolist() == [10, 1, 2, 3, 20, 4, 5]


def flat(block: tuple[torch.Tensor, torch.Tensor | slice]) -> tuple[torch.Tensor, torch.Tensor | slice]:
    return block[0].flatten(0, 1), block[1]


class Means(BPR):
    """Counts all targets."""

    def forward(self, inputs: LossInputs) -> torch.Tensor:
        return inputs.negative_scores().mean()


class OwnQueries(BERT4Rec):
    """Makes queries in a way of its own."""

    def make_queries(self, batch: Batch) -> QueryBatch:
        return super().make_queries(batch)


class ReadsRows(SASRec):
    """Reads the rows of a batch."""

    def encode(self, batch: Batch, query_batch: QueryBatch, vectors: torch.Tensor) -> torch.Tensor:
        return super().encode(batch, query_batch, vectors)


def test_a_subclass_must_say_what_its_own_methods_do() -> None:
    make = ALL["sasrec"]
    assert _no_effect(task_of(make, BPR()), on_gpu=True) is None
    for task in (task_of(make, Means()), task_of(lambda f, **_: ReadsRows(f), BPR())):
        assert "or does not say" in str(_no_effect(task, on_gpu=True))
    assert says(BERT4Rec, "queries_ahead", "make_queries")
    assert not says(OwnQueries, "queries_ahead", "make_queries")


def test_masks_follow_from_a_number() -> None:
    task = RetrievalTask(ALL["bert4rec"](ALONE), FullSoftmax(), Candidates(popularity=torch.ones(N)))
    rows = batch(ALONE, LISTS * 4)
    drawn = [task.queries_ahead(rows, draw).at.tolist() for draw in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
