"""Test the losses of retrieval models against NumPy, and the properties that hold for any numbers."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recsys.losses import BCE, BPR, FullSoftmax, LossInputs, Negatives, Popularity, SampledSoftmax, blocked_softmax
from recsys.losses.retrieval import RetrievalLoss
from recsys.models.common.items import Scorer
from recsys.models.neumf import PairScores

N, D = 9, 4


def numbers(seed: int, queries: int, query_of_target: list[int]) -> tuple[torch.Tensor, ...]:
    """Queries, owners, targets, vectors of all candidates, popularity."""
    g = torch.Generator().manual_seed(seed)
    targets = torch.randint(1, N, (len(query_of_target),), generator=g)
    popularity = torch.cat([torch.zeros(1), torch.randint(1, 50, (N - 1,), generator=g).float()])
    return (
        torch.randn(queries, D, generator=g),
        torch.tensor(query_of_target),
        targets,
        torch.randn(N, D, generator=g),
        popularity,
    )


def value(
    loss: torch.nn.Module,
    q: torch.Tensor,
    query_of_target: torch.Tensor,
    t: torch.Tensor,
    v: torch.Tensor,
    negatives: Negatives,
) -> float:
    return float(loss(LossInputs(Scorer(), q, query_of_target, t, v[t], negatives, v[negatives.ids])))


owned = st.sampled_from([(3, [0, 1, 2]), (2, [0, 0, 1, 1, 1]), (1, [0])])


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 999), who=owned)
def test_full_softmax(seed: int, who: tuple[int, list[int]]) -> None:
    q, query_of_target, t, v, popularity = numbers(seed, *who)
    loss = FullSoftmax()
    scores = (q.numpy() @ v.numpy().T)[:, 1:]
    expected = np.mean(
        [np.log(np.exp(scores[o]).sum()) - scores[o, i - 1] for o, i in zip(query_of_target, t, strict=True)]
    )
    assert value(loss, q, query_of_target, t, v, loss.sample(t, Popularity(popularity))) == pytest.approx(
        expected, rel=1e-4
    )


@settings(deadline=None, max_examples=50)
@given(
    seed=st.integers(0, 999),
    queries=st.integers(1, 7),
    targets=st.integers(1, 12),
    smoothing=st.sampled_from([0.0, 0.3]),
    rows=st.integers(1, 8),
    half=st.booleans(),
)
def test_blocked_cross_entropy_equals_the_plain_one(
    seed: int, queries: int, targets: int, smoothing: float, rows: int, half: bool
) -> None:
    """Any number of targets of a query, in any order, also none; a target may occur twice."""
    g = torch.Generator().manual_seed(seed)
    query_of_target = torch.randint(queries, (targets,), generator=g)
    target = torch.randint(N, (targets,), generator=g)
    results = []
    for blocked in (True, False):
        g.manual_seed(seed)
        q, v = (torch.randn(n, D, generator=g).requires_grad_() for n in (queries, N))
        with torch.autocast("cpu", enabled=half), pytest.MonkeyPatch.context() as patch:
            patch.setattr(blocked_softmax, "SCORES", rows * N)
            patch.setattr(blocked_softmax, "MIN_ROWS", 1)
            if blocked:
                loss = blocked_softmax.blocked_cross_entropy(q, v, query_of_target, target, smoothing)
            else:
                scores = q[query_of_target] @ v.T
                loss = torch.nn.functional.cross_entropy(scores, target, label_smoothing=smoothing)
        (2 * loss).backward()
        results.append((loss.detach(), q.grad, v.grad))
    torch.testing.assert_close(*results, rtol=0.02 if half else 1e-4, atol=0.02 if half else 1e-6)


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 999), who=owned, temperature=st.sampled_from([0.5, 1.0]), shared=st.booleans())
def test_sampled_softmax_by_popularity(seed: int, who: tuple[int, list[int]], temperature: float, shared: bool) -> None:
    q, query_of_target, t, v, popularity = numbers(seed, *who)
    loss = SampledSoftmax(negatives="popularity", count=5, temperature=temperature, shared=shared)
    negatives = loss.sample(t, Popularity(popularity))
    share = popularity.numpy() / popularity.sum().item()
    scores = q.numpy() @ v.numpy().T / temperature
    terms = []
    for o, i, sampled in zip(
        query_of_target.tolist(), t.tolist(), negatives.ids.expand(len(t), 5).tolist(), strict=True
    ):
        others = [scores[o, j] - math.log(share[j]) for j in sampled if j != i]
        own = scores[o, i] - math.log((1 - (1 - share[i]) ** 5) / 5)  # its term stands for all that are left out
        terms.append(np.log(np.exp([own, *others]).sum()) - own)
    assert value(loss, q, query_of_target, t, v, negatives) == pytest.approx(np.mean(terms), rel=1e-4, abs=1e-5)


def test_corrected_for_the_draw_true_scores_are_at_rest() -> None:
    """Where scores are the logarithms of what is chosen how often, the expected gradient is zero, whatever is drawn."""
    chosen = torch.tensor([0.0, 0.3, 0.2, 0.15, 0.1, 0.1, 0.06, 0.05, 0.04])
    popularity = torch.tensor([0.0, 2, 3, 4, 5, 6, 7, 8, 9])
    v = chosen.clamp(min=1e-9).log()[:, None].requires_grad_()
    t = torch.multinomial(chosen, 60_000, replacement=True, generator=torch.Generator().manual_seed(0))

    def pull(correct: bool) -> float:
        torch.manual_seed(0)
        loss, total = SampledSoftmax(negatives="popularity", count=4, correct=correct), torch.zeros_like(v)
        for part in t.split(100):  # each with a draw of its own
            query_of_target, q = torch.arange(len(part)), torch.ones(len(part), 1)
            negatives = loss.sample(part, Popularity(popularity))
            total += (
                torch.autograd.grad(
                    loss(LossInputs(Scorer(), q, query_of_target, part, v[part], negatives, v[negatives.ids])), v
                )[0]
                / 600
            )
        return float(total.abs().max())

    assert 3 * pull(correct=True) < pull(correct=False)


def test_scores_are_those_of_the_full_softmax_also_of_an_item_that_fills_the_batch() -> None:
    """Whose term counted once, with the weight of one of its many occurrences: its score was 4 too high."""
    chosen, loss = torch.tensor([0.9, 0.08, 0.02]), SampledSoftmax(negatives="in_batch", count=512)
    v = torch.zeros(4, 1, requires_grad=True)
    optimizer, q = torch.optim.Adam([v], lr=0.05), torch.ones(512, 1)
    torch.manual_seed(0)
    for step in range(600):
        optimizer.param_groups[0]["lr"] = 0.05 if step < 450 else 0.01
        t = torch.multinomial(chosen, 512, replacement=True) + 1
        sample = loss.sample(t, Popularity(torch.cat([torch.zeros(1), 1e5 * chosen])))
        optimizer.zero_grad()
        loss(LossInputs(Scorer(), q, torch.arange(512), t, v[t], sample, v[sample.ids])).backward()
        optimizer.step()
    found, expected = v.detach()[1:, 0], chosen.log()
    torch.testing.assert_close(found - found.mean(), expected - expected.mean(), atol=0.15, rtol=0)


def test_in_batch_softmax_spares_what_a_query_chose_itself() -> None:
    q, _, _, v, popularity = numbers(2, 2, [0, 0, 1])
    query_of_target, t = torch.tensor([0, 0, 1]), torch.tensor([3, 4, 5])
    loss = SampledSoftmax(negatives="in_batch", correct=False)
    assert len(SampledSoftmax(negatives="in_batch", count=2).sample(t, Popularity(popularity)).ids) == 2
    scores = q.numpy() @ v.numpy().T
    against = {0: [5], 1: [5], 2: [3, 4]}
    terms = [
        np.log(np.exp(scores[o, [i, *against[k]]]).sum()) - scores[o, i]
        for k, (o, i) in enumerate(zip(query_of_target.tolist(), t.tolist(), strict=True))
    ]
    assert value(loss, q, query_of_target, t, v, loss.sample(t, Popularity(popularity))) == pytest.approx(
        np.mean(terms), rel=1e-4
    )


def test_each_target_is_its_owners() -> None:
    """As many targets as queries, but not one each; and smoothing, which knows no difference."""
    q, _, _, v, popularity = numbers(4, 2, [1, 1])
    query_of_target, t, loss = torch.tensor([1, 1]), torch.tensor([3, 4]), FullSoftmax()
    negatives = loss.sample(t, Popularity(popularity))
    twice = value(loss, q[1:].expand(2, D), torch.tensor([0, 1]), t, v, negatives)
    assert value(loss, q, query_of_target, t, v, negatives) == pytest.approx(twice, rel=1e-5)
    smooth = FullSoftmax(label_smoothing=0.3)
    twice = value(smooth, q[1:].expand(2, D), torch.tensor([0, 1]), t, v, negatives)
    assert value(smooth, q, query_of_target, t, v, negatives) == pytest.approx(twice, rel=1e-5)


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 999), who=owned, temperature=st.sampled_from([0.5, 1.0]))
def test_few_candidates_are_all_taken(seed: int, who: tuple[int, list[int]], temperature: float) -> None:
    """Uniform negatives that would be half of all candidates or more: the softmax over all of them, exactly."""
    q, query_of_target, t, v, popularity = numbers(seed, *who)
    candidates = Popularity(popularity)
    assert not SampledSoftmax(count=(N - 1) // 2 - 1).sample(t, candidates).complete
    assert not SampledSoftmax(count=N, negatives="popularity").sample(t, candidates).complete
    loss = SampledSoftmax(count=-(-(N - 1) // 2), temperature=temperature)
    negatives = loss.sample(t, candidates)
    assert negatives.ids.tolist() == list(range(1, N))
    full = value(FullSoftmax(), q / temperature, query_of_target, t, v, FullSoftmax().sample(t, candidates))
    assert value(loss, q, query_of_target, t, v, negatives) == pytest.approx(full, rel=1e-5)


def test_only_the_hardest_of_the_drawn_count() -> None:
    q, query_of_target, t, v, popularity = numbers(3, 3, [0, 1, 2])
    loss = SampledSoftmax(count=6, hardest=2)
    negatives = loss.sample(t, Popularity(popularity))
    scores = q.numpy() @ v.numpy().T
    terms = []
    for o, i in zip(query_of_target.tolist(), t.tolist(), strict=True):
        others = sorted((scores[o, j] for j in negatives.ids.tolist() if j != i), reverse=True)[:2]
        terms.append(np.log(np.exp([scores[o, i], *others]).sum()) - scores[o, i])
    assert value(loss, q, query_of_target, t, v, negatives) == pytest.approx(np.mean(terms), rel=1e-4)


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 999), who=owned, shared=st.booleans(), calibration=st.sampled_from([0.0, 0.75, 1.0]))
def test_bce_and_its_calibration(seed: int, who: tuple[int, list[int]], shared: bool, calibration: float) -> None:
    """gBCE by the paper's own letters: beta = alpha (t (1 - 1 / alpha) + 1 / alpha), alpha = n / (N - 1)."""
    q, query_of_target, t, v, popularity = numbers(seed, *who)
    loss = BCE(count=3, calibration=calibration, shared=shared)
    negatives = loss.sample(t, Popularity(popularity))
    alpha = 3 / (N - 2)  # of N - 1 candidates, all but the chosen one
    beta = alpha * (calibration * (1 - 1 / alpha) + 1 / alpha)
    scores = q.numpy() @ v.numpy().T
    terms = []
    for k, (o, i) in enumerate(zip(query_of_target.tolist(), t.tolist(), strict=True)):
        ids = negatives.ids.tolist() if shared else negatives.ids[k].tolist()
        against = sum(math.log1p(math.exp(scores[o, j])) for j in ids if j != i)
        terms.append(beta * math.log1p(math.exp(-scores[o, i])) + against)
    assert value(loss, q, query_of_target, t, v, negatives) == pytest.approx(np.mean(terms), rel=1e-4)
    assert beta == pytest.approx({0.0: 1.0, 1.0: alpha}.get(calibration, beta))


def test_bpr() -> None:
    q, query_of_target, t, v, popularity = numbers(5, 2, [0, 0, 1])
    loss = BPR(count=2)
    negatives = loss.sample(t, Popularity(popularity))
    scores = q.numpy() @ v.numpy().T
    terms = [
        0.0 if j == i else math.log1p(math.exp(scores[o, j] - scores[o, i]))
        for k, (o, i) in enumerate(zip(query_of_target.tolist(), t.tolist(), strict=True))
        for j in negatives.ids[k].tolist()
    ]
    assert value(loss, q, query_of_target, t, v, negatives) == pytest.approx(np.mean(terms), rel=1e-4)


@pytest.mark.parametrize("kind", ["uniform", "popularity"])
def test_what_is_drawn(kind: str) -> None:
    torch.manual_seed(0)
    popularity = torch.tensor([0.0, 1, 2, 3, 0, 4])
    negatives = BCE(negatives=kind, count=20_000, shared=True).sample(torch.tensor([1]), Popularity(popularity)).ids
    share = np.bincount(negatives.numpy(), minlength=6) / len(negatives)
    expected = np.array([0, 1, 1, 1, 1, 1]) / 5 if kind == "uniform" else popularity.numpy() / 10
    assert share == pytest.approx(expected, abs=0.015)


@settings(deadline=None, max_examples=15)
@given(seed=st.integers(0, 999), who=st.sampled_from([(15, [*range(15)]), (4, [0, 1, 2, 3] * 4)]))
@pytest.mark.parametrize(
    "loss", [SampledSoftmax(count=5, shared=False, temperature=0.5, hardest=3), BCE(count=5), BPR(count=5)]
)
def test_many_separate_negatives_are_scored_with_all_candidates(
    loss: RetrievalLoss, seed: int, who: tuple[int, list[int]]
) -> None:
    q, query_of_target, t, v, popularity = numbers(seed, *who)
    negatives = loss.sample(t, Popularity(popularity))
    compared = negatives.looked_up(Popularity(popularity))
    assert compared.tolist() == [*range(1, N)]
    results = []
    for ids in (negatives.ids, compared):
        inputs = (q.clone().requires_grad_(), query_of_target, t, v[t], negatives)
        table = v.clone().requires_grad_()
        value = loss(LossInputs(Scorer(), *inputs, table[ids]))
        results.append((value, *torch.autograd.grad(value, (inputs[0], table))))
    torch.testing.assert_close(*results)


def test_few_separate_negatives_are_looked_up() -> None:
    of_each = torch.arange(1, 7).view(3, 2)
    for negatives, rows in (
        (Negatives(of_each.repeat(1000, 1), uniform=True), 65),  # more candidates than 32 samples of a target
        (Negatives(of_each, uniform=True), 7),  # fewer samples than 8 of each candidate
        (Negatives(of_each.repeat(1000, 1)), 7),  # drawn by popularity: many may be in no sample
        (Negatives(of_each.repeat(1000, 1).flatten(), uniform=True), 7),  # shared
    ):
        assert negatives.looked_up(Popularity(torch.ones(rows))) is negatives.ids
    assert len(Negatives(of_each.repeat(1000, 1), uniform=True).looked_up(Popularity(torch.ones(64)))) == 63


def test_pair_scores_of_all_are_those_of_each() -> None:
    torch.manual_seed(0)
    scorer = PairScores(3, [5, 4], 0.0)
    users, items = torch.randn(7, 6), torch.randn(11, 6)
    each = scorer.score_pairs(users[:, None].expand(7, 11, 6), items[None].expand(7, 11, 6))
    assert torch.allclose(scorer.score_all(users, items), each, atol=1e-5)
