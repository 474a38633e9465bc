"""Losses and metrics within groups against NumPy and scikit-learn, and balanced losses of several labels."""

import math
import re
from typing import Any

import numpy as np
import pytest
import torch
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import ndcg_score
from torch import nn

from recsys.evaluation.group_metrics import group_metrics
from recsys.interface.labels import BinaryLabel, ClassLabel, NumberLabel
from recsys.losses import LabelLosses, Listwise, Pairwise, Tasks, label_loss
from recsys.losses.groups import _discounts

FEW = settings(max_examples=examples(60), deadline=None)
GROUPS = st.lists(st.integers(1, 9), min_size=1, max_size=6)


def rows(sizes: list[int], seed: int) -> dict[str, np.ndarray]:
    """Neighbouring rows of groups of these sizes, some of them of weight 0."""
    rng, n = np.random.default_rng(seed), sum(sizes)
    return {
        "logits": rng.standard_normal(n),
        "labels": rng.integers(0, 4, n).astype(float),
        "weight": np.where(rng.random(n) < 0.2, 0, rng.random(n) * 3),
        "group": np.repeat(rng.permutation(100)[: len(sizes)], sizes),
    }


def value(loss: nn.Module, x: dict[str, np.ndarray]) -> float:
    t = {name: torch.tensor(v) for name, v in x.items()}
    logits = t["logits"].requires_grad_()
    found = loss(logits[:, None], t["labels"][:, None], t["weight"], t["group"])
    found.backward()
    assert logits.grad is not None and bool(torch.isfinite(logits.grad).all())
    return float(found)


def dcg_change(score: np.ndarray, gain: np.ndarray, i: int, j: int) -> float:
    """By how much DCG changes if rows i and j exchange their places."""
    rank = np.empty(len(score))
    rank[np.argsort(-score)] = 1 / np.log2(2 + np.arange(len(score)))
    swapped = rank.copy()
    swapped[[i, j]] = rank[[j, i]]
    return abs(float((gain * rank).sum() - (gain * swapped).sum()))


@FEW
@given(GROUPS, st.integers(0, 10**6), st.booleans())
def test_pairwise(sizes: list[int], seed: int, ndcg: bool) -> None:
    x, total = rows(sizes, seed), 0.0
    for g in np.unique(x["group"]):
        s, y, w = (x[name][x["group"] == g] for name in ("logits", "labels", "weight"))
        s, y, kept = s[w > 0], y[w > 0], w[w > 0]
        gain = 2**y - 1
        best = float((np.sort(gain)[::-1] / np.log2(2 + np.arange(len(y)))).sum()) or 1.0
        pairs = [
            (kept[i] * kept[j] * (dcg_change(s, gain, i, j) / best if ndcg else 1), math.log1p(math.exp(s[j] - s[i])))
            for i in range(len(s))
            for j in range(len(s))
            if y[i] > y[j]
        ]
        if pairs:
            total += w.sum() * sum(a * b for a, b in pairs) / sum(a for a, _ in pairs)
    assert value(Pairwise(ndcg=ndcg), x) == pytest.approx(total / len(x["logits"]), rel=1e-4, abs=1e-6)


@FEW
@given(GROUPS, st.integers(0, 10**6), st.booleans())
def test_listwise(sizes: list[int], seed: int, exponential: bool) -> None:
    x, total = rows(sizes, seed), 0.0
    for g in np.unique(x["group"]):
        s, y, w = (x[name][x["group"] == g] for name in ("logits", "labels", "weight"))
        s, y, kept = s[w > 0], y[w > 0], w[w > 0]
        gain = kept * ((2**y - 1) if exponential else y)
        if gain.sum():
            total -= w.sum() * float((gain / gain.sum() * (s - np.log(np.exp(s).sum()))).sum())
    assert value(Listwise(exponential=exponential), x) == pytest.approx(total / len(x["logits"]), rel=1e-4, abs=1e-6)


def test_large_groups_are_sampled_in_bounded_memory() -> None:
    x = rows([3, 1000, 40], 0)
    first, second = Pairwise(others=16)._pairs(torch.tensor(np.repeat([0, 1, 2], [3, 1000, 40])))
    assert len(first) == 3 * 2 + 1000 * 16 + 40 * 16 and bool((first != second).all())
    counts = torch.bincount(first)
    assert counts[:3].tolist() == [2] * 3 and set(counts[3:].tolist()) == {16}
    assert len(set(zip(first.tolist(), second.tolist(), strict=True))) > 0.99 * len(first)  # hardly any pair twice
    x["weight"][:] = 1
    sampled, whole = (np.mean([value(Pairwise(others=n), x) for _ in range(3)]) for n in (64, 1000))
    assert sampled == pytest.approx(whole, rel=0.02)


def test_a_level_that_only_groups_have_does_not_matter() -> None:
    """Each group has a level of its own: adding any to its scores changes no loss within groups."""
    x = rows([5, 7, 2], 3)
    level = np.repeat([100.0, -3.0, 7.0], [5, 7, 2])
    for loss in (Pairwise(), Pairwise(ndcg=True), Listwise()):
        assert value(loss, x) == pytest.approx(value(loss, x | {"logits": x["logits"] + level}), rel=1e-3)


def test_ranks_within_groups() -> None:
    found = _discounts(torch.tensor([0.1, 0.9, 0.5, 2.0, 3.0]), torch.tensor([0, 0, 0, 1, 1]))
    assert found.tolist() == pytest.approx([1 / math.log2(r + 1) for r in (3, 1, 2, 2, 1)])


def test_a_share_of_the_loss_of_rows() -> None:
    """Labels of numbers are compared within groups in their own units, and row by row in standard deviations."""
    label = NumberLabel("grade", mean=2.0, std=2.0)
    x = {name: torch.tensor(v, dtype=torch.float32) for name, v in rows([4, 3], 1).items()}
    x["group"] = x["group"].long()
    given = (x["logits"][:, None], x["labels"][:, None], None, x["group"])
    loss = label_loss((label,), Listwise(pointwise=0.25))
    alone = Listwise()(given[0], given[1], None, given[3])
    squared = ((x["logits"] - (x["labels"] - 2) / 2) ** 2).mean()
    assert float(loss(*given)) == pytest.approx(float(0.25 * squared + 0.75 * alone), rel=1e-5)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (
            lambda: label_loss((ClassLabel("c", ("a", "b")),), Listwise()),
            "is a loss of binary and regression labels; this data has labels of kind classes",
        ),
        (lambda: Pairwise()(torch.zeros(2, 1), torch.zeros(2, 1)), "has no groups; set data.group.together=true"),
        (
            lambda: LabelLosses((BinaryLabel("a"), BinaryLabel("b")), Tasks(balance="gradnorm")).set_last_layer(
                nn.ReLU()
            ),
            "balance=gradnorm: ReLU has no linear layer `logits`; use uncertainty",
        ),
    ],
)
def test_mistakes(make: Any, expected: str) -> None:
    with pytest.raises(ValueError, match=re.escape(expected)):
        make()


# --- metrics ---------------------------------------------------------------------------------------------


@FEW
@given(GROUPS, st.integers(0, 10**6))
def test_group_ndcg_is_that_of_scikit_learn(sizes: list[int], seed: int) -> None:
    x, rng = rows(sizes, seed), np.random.default_rng(seed)
    score, shuffled = rng.integers(0, 4, sum(sizes)).astype(np.float32), rng.permutation(sum(sizes))  # with ties
    label, group = x["labels"], x["group"]
    found = group_metrics(group[shuffled], score[shuffled], label[shuffled], [1, 3, 20])
    relevant = [g for g in np.unique(group) if (label[group == g] > 0).any()]
    assert found["groups"] == len(relevant)
    for k in (1, 3, 20):
        own = [
            ndcg_score([2 ** label[group == g] - 1], [score[group == g]], k=k) if (group == g).sum() > 1 else 1.0
            for g in relevant
        ]
        assert found[f"gndcg@{k}"] == pytest.approx(np.mean(own) if own else math.nan, nan_ok=True)


def test_group_mrr_and_weights() -> None:
    group = np.array([7, 7, 7, 3, 3, 9])
    score, label = np.array([3.0, 2.0, 1.0, 5.0, 5.0, 1.0]), np.array([0, 0, 1, 1, 0, 0])
    found = group_metrics(group, score, label, [2, 5])
    assert found["gmrr@5"] == pytest.approx((1 / 3 + 1 / 1.5) / 2)  # tied rows share the mean of their ranks
    assert found["gmrr@2"] == pytest.approx((0 + 1 / 1.5) / 2) and found["groups"] == 2
    weighted = group_metrics(group, score, label, [5], np.array([1.0, 1.0, 1.0, 3.0, 3.0, 99.0]))
    assert weighted["gmrr@5"] == pytest.approx((1 / 3 + 3 / 1.5) / 4)
    assert math.isnan(group_metrics(group, score, -label, [5])["gndcg@5"])
    negative = group_metrics(group, score, np.array([-1, 0, 1, 1, 0, 0]), [5])
    assert math.isnan(negative["gndcg@5"]) and negative["gmrr@5"] > 0
    assert group_metrics(group[:0], score[:0], label[:0], [5])["groups"] == 0


# --- several labels --------------------------------------------------------------------------------------


class Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.logits = nn.Linear(6, 2)


def test_gradnorm_makes_gradients_equally_large() -> None:
    """With alpha 0, the shares become inverse to the norms of the losses' gradients, and keep their sum."""
    torch.manual_seed(0)
    model, x = Heads(), torch.randn(64, 6)
    labels = (NumberLabel("a"), NumberLabel("b"))
    losses = LabelLosses(labels, Tasks(balance="gradnorm", alpha=0.0))
    losses.set_last_layer(model)
    y = torch.stack([torch.randn(64), 30 * torch.randn(64)], 1)
    optimizer = torch.optim.Adam([losses.scales] if losses.scales is not None else [], lr=0.02)
    for _ in range(800):
        optimizer.zero_grad()
        total = losses(model.logits(x), y)
        total.backward()
        optimizer.step()
    assert losses.scales is not None
    shares = 2 * losses.scales.detach().softmax(0)
    z = x.clone().requires_grad_()
    parts = [((model.logits(z)[:, i] - y[:, i]) ** 2).mean() for i in (0, 1)]
    norms = torch.stack([torch.autograd.grad(p, z, retain_graph=True)[0].norm() for p in parts])
    assert float(shares.sum()) == pytest.approx(2) and norms[1] > 10 * norms[0]
    assert (shares * norms).tolist() == pytest.approx([float((shares * norms).mean())] * 2, rel=0.05)
    assert float(total) == pytest.approx(float((torch.stack(parts) * shares).sum()), rel=0.05)  # the balance adds 0
    losses.eval()
    with torch.no_grad():
        assert bool(torch.isfinite(losses(model.logits(x), y)))
