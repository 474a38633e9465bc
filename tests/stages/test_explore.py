"""Draws, their propensities, and what they make possible: unbiased estimates of another list's reward."""

import numpy as np
import polars as pl
import pytest
import small_stages

from recsys.base.errors import UserError
from recsys.job.check import check_target
from recsys.stages.evaluate.off_policy import Logged, check_log, effective_size, estimates
from recsys.stages.explore import Epsilon, Thompson, epsilon_probabilities
from recsys.stages.order import Order, Ranked

DRAWS = 40_000


def test_a_config_can_draw_all_or_none() -> None:
    for epsilon in (0.0, 1.0):
        check_target({"_target_": "recsys.stages.explore.Epsilon", "epsilon": epsilon}, "order", base=Order)


@pytest.mark.parametrize(("epsilon", "n", "k"), [(0.4, 6, 4), (0.0, 5, 3), (1.0, 4, 4), (0.1, 1, 1), (0.3, 30, 3)])
def test_epsilon_probabilities_are_those_of_draws(epsilon: float, n: int, k: int) -> None:
    expected = epsilon_probabilities(epsilon, n, k)
    assert expected.sum(1) == pytest.approx(1) and (expected >= 0).all() and (expected.sum(0) <= 1 + 1e-12).all()
    part, rng, counts = Epsilon(epsilon), np.random.default_rng(0), np.zeros((k, n))
    ranked = Ranked(np.arange(n), -np.arange(n, dtype=float))
    for _ in range(DRAWS // 4):
        found = part.apply(small_stages.visitor(), ranked, k, rng)
        counts[np.arange(k), found.items[:k]] += 1
    assert np.abs(counts / (DRAWS // 4) - expected).max() < 0.025
    assert found.probability(found.items[:k], np.arange(k)) == pytest.approx(expected[np.arange(k), found.items[:k]])
    assert found.probability(np.array([n + 5]), np.array([0])).tolist() == [0]
    assert found.probability(np.array([0]), np.array([k])).tolist() == [0]


@pytest.mark.slow
def test_thompson_propensities_are_shares_of_draws() -> None:
    items = small_stages.catalogue({"clicks": [50, 1, None], "shown": [100, 10, None]})
    part = Thompson(strength=4, successes="clicks", trials="shown", draws=2000)
    part.bind(small_stages.resources(items), "order.explore")
    rng, counts = np.random.default_rng(0), np.zeros((2, 3))
    ranked = Ranked(np.arange(3), np.array([0.2, 0.4, 0.5]))
    for _ in range(2000):
        found = part.apply(small_stages.visitor(), ranked, 2, rng)
        counts[[0, 1], found.items[:2]] += 1
    at = np.arange(3)
    assert found.probability(at, np.zeros(3, np.int64)) == pytest.approx(counts[0] / 2000, abs=0.05)
    assert found.probability(at, np.ones(3, np.int64)) == pytest.approx(counts[1] / 2000, abs=0.05)
    with pytest.raises(UserError, match="needs scores that are probabilities"):
        part.apply(small_stages.visitor(), Ranked(np.arange(2), np.array([3.0, 1.0])), 2, rng)
    with pytest.raises(UserError, match="set both"):
        Thompson(successes="clicks").bind(small_stages.resources(items), "order.explore")


def test_estimates_are_unbiased() -> None:
    """Lists logged with epsilon = 0.5, rewards by item and position: the value of the reversed list is found."""
    n, k, requests = 5, 2, 30_000
    rng = np.random.default_rng(1)
    reward = rng.uniform(0.1, 0.9, (k, n))
    part = Epsilon(0.5)
    ranked = Ranked(np.arange(n), -np.arange(n, dtype=float))
    shown = [part.apply(small_stages.visitor(), ranked, k, rng) for _ in range(requests)]
    items = np.concatenate([x.items[:k] for x in shown])
    position = np.tile(np.arange(k), requests)
    propensity = np.concatenate([x.probability(x.items[:k], np.arange(k)) for x in shown])
    drawn = (rng.random(len(items)) < reward[position, items]).astype(float)
    other = np.array([4, 3])  # the list whose reward is wanted
    target = (items == other[position]).astype(float)
    model = np.clip(reward + 0.2, 0, 1)  # biased by as much: the doubly robust estimate must not be
    logged = Logged(
        np.repeat(np.arange(requests), k), position, propensity, drawn, target, model[position, items],
        np.tile(model[np.arange(k), other], (requests, 1)),
    )  # fmt: skip
    truth = reward[np.arange(k), other].sum()
    found = estimates(logged)
    for name in ("ips", "snips", "dr"):
        error = found[name].std() / np.sqrt(requests)
        assert abs(found[name].mean() - truth) < 4 * error, name
    assert found["dr"].std() < found["ips"].std()
    assert abs(found["logged"].mean() - truth) > 0.05
    assert 1 < effective_size(logged) < len(items)


def test_the_logged_list_itself() -> None:
    """Of a policy that draws nothing, all estimates are the mean reward."""
    reward = np.array([1.0, 0.0, 0.0, 1.0])
    ones = np.ones(4)
    logged = Logged(
        np.array([0, 0, 1, 1]), np.array([0, 1, 0, 1]), ones, reward, ones, np.full(4, np.nan), np.zeros((2, 2))
    )
    assert {n: x.mean() for n, x in estimates(logged).items()} == pytest.approx({"logged": 1, "ips": 1, "snips": 1})
    assert effective_size(logged) == 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"propensity": [0.5, 0.0]}, "row 2: propensity 0.0: must be above 0"),
        ({"position": [0, 1]}, "position 0: must be at least 1"),
        ({"reward": None}, "has no column reward"),
    ],
)
def test_mistakes_of_a_log(change: dict[str, list[float] | None], message: str) -> None:
    columns = {"request": [1, 1], "item": ["a", "b"], "position": [1, 2], "propensity": [1.0, 1.0], "reward": [0, 1],
               "user": ["u", "u"]}  # fmt: skip
    frame = pl.DataFrame({n: x for n, x in (columns | change).items() if x is not None})
    with pytest.raises(UserError, match=message):
        check_log(frame, "user")
