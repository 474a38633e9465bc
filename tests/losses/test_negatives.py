"""Sampled negatives: which are eligible, their distribution, and the metrics of their lists."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_ranking import Found, by_sorting, lists, measure, same

import recsys.evaluation.negatives
import recsys.evaluation.retrieval_counts
from recsys.evaluation.negatives import sample_negatives


def drawn(rows: list[int], excluded: list[list[int]], cumulative: np.ndarray, count: int, seed: int = 0) -> list:
    found = sample_negatives(np.array(rows, dtype=np.int64), lists(excluded), cumulative, count, seed)
    return [one.tolist() for one in found.values.split(found.lengths.tolist())]


@settings(max_examples=examples(60), deadline=None)
@given(st.data())
def test_negatives_are_new_eligible_and_of_their_row_alone(data: st.DataObject) -> None:
    weights = np.array(data.draw(st.lists(st.sampled_from([0, 1, 1, 5, 10**6]), min_size=2, max_size=300)))
    weights[0], weights[1] = 0, 1
    n, count, seed = len(weights), data.draw(st.integers(1, 40)), data.draw(st.integers(-1, 2**40))
    excluded = data.draw(st.lists(st.lists(st.integers(0, n + 3), max_size=30), min_size=1, max_size=8))
    rows = data.draw(st.lists(st.integers(0, 10**9), min_size=len(excluded), max_size=len(excluded)))
    found = drawn(rows, excluded, np.cumsum(weights), count, seed)
    for mine, out in zip(found, excluded, strict=True):
        eligible = set(np.flatnonzero(weights).tolist()) - set(out)
        assert len(mine) == len(set(mine)) == min(count, len(eligible))
        assert set(mine) <= eligible
    one_by_one = [
        drawn([row], [out], np.cumsum(weights), count, seed)[0] for row, out in zip(rows, excluded, strict=True)
    ]
    assert found == one_by_one
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recsys.evaluation.negatives, "DRAWS", 2000)
        assert found == drawn(rows, excluded, np.cumsum(weights), count, seed)


def test_the_first_draws_are_known_to_the_id() -> None:
    """So that a change of the hash, which changes every sampled metric ever reported, cannot go unseen."""

    def mix(x: int) -> int:
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        x = (x ^ (x >> 27)) * 0x94D049BB133111EB % 2**64
        return x ^ (x >> 31)

    golden, seed = 0x9E3779B97F4A7C15, 3
    for row in (0, 12345):
        state = mix((mix((seed + golden) % 2**64) + row * golden) % 2**64)
        draws = [1 + (mix((state + (i + 1) * golden) % 2**64) >> 11) * 999 // 2**53 for i in range(8)]
        assert drawn([row], [[]], np.arange(1000), 5, seed)[0] == list(dict.fromkeys(draws))[:5]


def chi_square(ids: np.ndarray, weights: np.ndarray) -> float:
    """Of observed against expected counts of candidates, in deviations of its own distribution."""
    possible = weights > 0
    expected = weights[possible] / weights.sum() * len(ids)
    seen = np.bincount(ids, minlength=len(weights))
    assert seen[~possible].sum() == 0
    freedom = possible.sum() - 1
    return float((((seen[possible] - expected) ** 2 / expected).sum() - freedom) / (2 * freedom) ** 0.5)


@pytest.mark.parametrize("count", [1, 20])
def test_uniform_negatives_are_uniform(count: int) -> None:
    rows, n = 20_000, 51
    found = np.array(drawn(list(range(rows)), [[7]] * rows, np.arange(n), count, 5))
    weights = np.ones(n)
    weights[[0, 7]] = 0
    assert found.shape == (rows, count)
    for place in (0, count - 1):
        assert abs(chi_square(found[:, place], weights)) < 5
    for i in (1, 2):  # neighbours in rows are independent
        moved = (found[i:, 0] - found[:-i, 0]) % n
        assert len(np.unique(moved)) == n
    if count == 1:
        assert np.corrcoef(found[1:, 0], found[:-1, 0])[0, 1] == pytest.approx(0, abs=0.03)


def test_popular_negatives_are_in_proportion_to_counts() -> None:
    weights = np.floor(5000 / np.arange(1, 202) ** 1.2).astype(np.int64)
    weights[[0, 17]] = 0
    rows = 30_000
    found = np.array(drawn(list(range(rows)), [[]] * rows, np.cumsum(weights), 2, 1))
    assert abs(chi_square(found[:, 0], weights)) < 5
    share = weights / weights.sum()
    second = share * ((share / (1 - share)).sum() - share / (1 - share))  # without replacement, of the second draw
    assert abs(chi_square(found[:, 1], second)) < 5


def test_rows_that_draw_the_rest_by_keys_have_the_same_distribution() -> None:
    """One candidate weighs nearly all: the second and the third draw are of the others, in proportion."""
    weights = np.concatenate([[0, 10**9], np.arange(1, 120)])
    rows = 20_000
    found = np.array(drawn(list(range(rows)), [[]] * rows, np.cumsum(weights), 2, 9))
    assert (found == 1).any(axis=1).all()
    other = found[found != 1]
    weights[1] = 0
    assert len(other) == rows
    assert abs(chi_square(other, weights)) < 5


def test_sampled_metrics_depend_on_the_row_in_the_split_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(4)
    rows, n = 50, 400
    scores = torch.from_numpy(rng.random((rows, n)))
    targets = rng.integers(1, n, (rows, 2)).tolist()
    history = rng.integers(1, n, (rows, 30)).tolist()
    popularity = rng.integers(0, 50, n)
    run: Callable[..., Found] = lambda *sizes: measure(  # noqa: E731
        scores, targets, history, sizes, popularity=popularity, protocols=("uniform", "popularity"), negatives=20
    )
    whole = run(1000)
    for sizes in ((7,), (1,), (20, 3, 27)):
        same(run(*sizes), whole)
    monkeypatch.setattr(recsys.evaluation.retrieval_counts, "BLOCK", 1500)
    same(run(50), whole)


def test_sampled_metrics_equal_those_of_the_sampled_lists() -> None:
    rng = np.random.default_rng(6)
    rows, n = 30, 200
    scores = rng.random((rows, n))
    targets, history = rng.integers(1, n, (rows, 1)).tolist(), rng.integers(1, n, (rows, 20)).tolist()
    found = measure(
        torch.from_numpy(scores), targets, history, (11,), protocols=("uniform",), negatives=30, seed=8, k=(3,)
    )
    negatives = drawn(list(range(rows)), [a + b for a, b in zip(targets, history, strict=True)], np.arange(n), 30, 8)
    others = [list(set(range(n)) - set(mine)) for mine in negatives]
    expected = by_sorting(scores, targets, others, (3,), rank_repeats=True)
    same(found, {f"{name}_uniform": value for name, value in expected.items()})
