"""Draws, their propensities, and what they make possible: unbiased estimates of another list's reward."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import small_stages
from hypothesis import given
from hypothesis import strategies as st

from recsys.base.errors import UserError
from recsys.job.check_built import check_target
from recsys.online.servable import Query
from recsys.schema.pipeline_schema import EvaluateStagesConfig, TableConfig
from recsys.stages.evaluate.evaluate_pipeline import _off_policy
from recsys.stages.evaluate.off_policy import Logged, check_log, effective_size, estimates
from recsys.stages.explore import Epsilon, Thompson, epsilon_probabilities
from recsys.stages.merge import Retrieved
from recsys.stages.open_models import Models
from recsys.stages.order import Order, Ranked
from recsys.stages.score import Score
from recsys.stages.visitor import Visitor

DRAWS = 40_000
MOST = 5  # candidates to draw from


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
    assert found.probability(found.items[:k], np.arange(k), k) == pytest.approx(expected[np.arange(k), found.items[:k]])
    assert found.probability(np.array([n + 5]), np.array([0]), k).tolist() == [0]
    assert found.probability(np.array([0]), np.array([k]), k).tolist() == [0]


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
    assert found.probability(at, np.zeros(3, np.int64), 2) == pytest.approx(counts[0] / 2000, abs=0.05)
    assert found.probability(at, np.ones(3, np.int64), 2) == pytest.approx(counts[1] / 2000, abs=0.05)
    with pytest.raises(UserError, match="needs scores that are probabilities"):
        part.apply(small_stages.visitor(), Ranked(np.arange(2), np.array([3.0, 1.0])), 2, rng)
    with pytest.raises(UserError, match="set both"):
        Thompson(successes="clicks").bind(small_stages.resources(items), "order.explore")


def drawing(name: str, candidates: int | None) -> dict[str, Order]:
    parts = {
        "nothing": None,
        "epsilon": Epsilon(0.4, candidates),
        "thompson": Thompson(3.0, None, None, candidates, 20),
    }
    return {} if (part := parts[name]) is None else {"explore": part}


class Scored(Score):
    """Probabilities that fall from item to item."""

    def open(self, models: Models, key: str) -> None: ...

    def bind(self, *_: object) -> None: ...

    def scores(
        self, visitor: Visitor, items: np.ndarray, retrieved: Retrieved
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        return 1 / (items + 1.5), {}


@given(
    st.sampled_from(["nothing", "epsilon", "thompson"]),
    st.integers(1, 9),
    st.one_of(st.none(), st.integers(1, 9)),
    st.integers(1, 8),
)
def test_each_place_of_a_list_has_one_item(name: str, k: int, candidates: int | None, n: int) -> None:
    """Probabilities add up to 1 over the items at a place of the list, to 0 behind it, and to 1 or less over places."""
    items = small_stages.catalogue({"stock": [1] * 9})
    sources, order = {"all": small_stages.Listed(range(n))}, drawing(name, candidates)
    pipeline = small_stages.recommender(items, sources, order=order, score=Scored(), k=k)
    [answer] = pipeline.answers([Query([])])
    every, place = (x.ravel() for x in np.meshgrid(np.arange(9), np.arange(10)))
    found = answer.probability(every, place).reshape(10, 9)
    length = len(answer.items)
    assert length == min(k, n)
    assert found.sum(1) == pytest.approx([1.0] * length + [0.0] * (10 - length))
    assert found.min() >= 0 and found.sum(0).max() <= 1 + 1e-9
    drawn = 0 if name == "nothing" else min(candidates or n, length)
    assert [found[t, answer.items[t]] for t in range(drawn, length)] == [1.0] * (length - drawn)
    if answer.propensities is not None:
        assert (
            answer.propensities == pytest.approx(found[np.arange(length), answer.items]) and answer.propensities.all()
        )


@pytest.mark.parametrize(
    ("k", "order"), [(3, {}), (8, {}), (3, {"explore": Epsilon(0.4, MOST)}), (8, {"explore": Epsilon(0.4, MOST)})]
)
def test_rewards_behind_the_end_of_the_list_are_not_earned(k: int, order: dict[str, Order], tmp_path: Path) -> None:
    """Lists of 8 were shown in random order; a reward is the value of the item, divided by its position."""
    n, requests, rng = 8, 4000, np.random.default_rng(0)
    value = np.linspace(0.9, 0.2, n)
    lists = np.array([rng.permutation(n) for _ in range(requests)])
    position = np.tile(np.arange(n), requests)
    shown = {"request": np.repeat(np.arange(requests), n), "item": [f"i{i}" for i in lists.ravel()]}
    known = {"position": position + 1, "reward": value[lists.ravel()] / (position + 1)}
    log = pl.DataFrame(shown | known).with_columns(user=pl.lit("u"), propensity=pl.lit(1 / n))
    log.write_parquet(tmp_path / "log.parquet")
    pipeline = small_stages.recommender(
        small_stages.catalogue({"stock": [1] * n}), {"all": small_stages.Listed(range(n))}, order=order, k=k
    )
    shares = np.eye(k, n)
    if order:
        m = min(n, MOST)
        shares[:m, :m] = epsilon_probabilities(0.4, m, min(k, m))
    truth = (shares * value / (1 + np.arange(k))[:, None]).sum()
    config = replace(
        pipeline.settings,
        evaluate=EvaluateStagesConfig(log=TableConfig(file=["log.parquet"]), resamples=200),
        root=str(tmp_path),
    )
    found = _off_policy(pipeline, config)
    for name in ("ips", "snips"):
        assert found[name]["low"] - 0.02 <= truth <= found[name]["high"] + 0.02, (name, truth, found[name])


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
    propensity = np.concatenate([x.probability(x.items[:k], np.arange(k), k) for x in shown])
    drawn = (rng.random(len(items)) < reward[position, items]).astype(float)
    other = np.array([4, 3])  # the list whose reward is wanted
    target = (items == other[position]).astype(float)
    model = np.clip(reward + 0.2, 0, 1)  # biased by as much: the doubly robust estimate must not be
    request, wanted = np.repeat(np.arange(requests), k), np.tile(model[np.arange(k), other], (requests, 1))
    logged = Logged(request, position, propensity, drawn, target, model[position, items], wanted)
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
    columns = {"request": [1, 1], "item": ["a", "b"], "user": ["u", "u"]}
    columns |= {"position": [1, 2], "propensity": [1.0, 1.0], "reward": [0, 1]}
    frame = pl.DataFrame({n: x for n, x in (columns | change).items() if x is not None})
    with pytest.raises(UserError, match=message):
        check_log(frame, "user")
