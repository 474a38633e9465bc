"""The test that may be looked at after every observation: closed forms, false alarms, power, and its confidence bound."""

from __future__ import annotations

import json
import math
import statistics
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recsys.server.canary_guard import BETS, BettingTest, DifferenceTest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks" / "serving"))

import canaries

RANDOM = np.random.default_rng(0)


@pytest.mark.parametrize(("margin", "alpha"), [(0.0, 0.05), (0.01, 0.0125), (0.2, 0.01)])
def test_a_canary_that_always_fails_is_found_after_a_number_that_follows_from_the_bets(
    margin: float, alpha: float
) -> None:
    """Each capital then grows by the same factor with each pair."""
    factors = [1 + c * (2 / (1 + margin) - 1) for c in BETS]
    wanted = next(n for n in range(1, 100) if statistics.mean(f**n for f in factors) >= 1 / alpha)
    test = DifferenceTest(margin, alpha)
    pairs = 0
    while not test.alarm:
        test.update(False, 0.0)
        test.update(True, 1.0)
        pairs += 1
    assert pairs == wanted == test.blocks == test.min_blocks


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize(("rate", "margin"), [(0.01, 0.0), (0.3, 0.0), (0.5, 0.0)])
def test_false_alarms_with_a_look_after_each_request(rate: float, margin: float) -> None:
    """5,000 requests each in 2,000 runs without a difference: at most 5 %, and three standard errors of that."""
    runs = 2000
    alarms = np.mean(canaries.betting(rate, rate, margin, 0.05, runs, 5000, RANDOM) > 0)
    assert alarms <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / runs)


def test_a_canary_at_its_margin_is_left_alone() -> None:
    assert np.mean(canaries.betting(0.06, 0.05, 0.01, 0.05, 500, 5000, RANDOM) > 0) <= 0.08


def test_power() -> None:
    """As docs/how_to/serve/canaries.md says: errors of 20 % against 1 %, one of four metrics, and a margin of 1 %."""
    found = canaries.betting(0.2, 0.01, 0.01, 0.05 / 4, 1000, 400, RANDOM)
    assert (found > 0).all()
    assert 50 <= np.median(found) <= 70 and np.quantile(found, 0.95) <= 140


def test_the_simulation_is_the_test() -> None:
    random = np.random.default_rng(3)
    found = canaries.betting(0.2, 0.02, 0.01, 0.05, 20, 300, random)
    random = np.random.default_rng(3)
    draws = [(random.random(20) < 0.2, random.random(20) < 0.02) for _ in range(300)]
    for run in range(20):
        test, first = DifferenceTest(0.01, 0.05), 0
        for i, (canary, baseline) in enumerate(draws):
            test.update(True, float(canary[run]))
            if test.update(False, float(baseline[run])) and not first:
                first = i + 1
        assert first == found[run]


@pytest.mark.slow
@given(
    st.lists(st.tuples(st.booleans(), st.floats(0, 1), st.integers(0, 3)), max_size=200),
    st.floats(0, 0.5),
    st.integers(0, 4),
)
def test_the_state_is_the_histogram_of_blocks(
    observations: list[tuple[bool, float, int]], margin: float, seconds: int
) -> None:
    test, now, block, differences = (
        DifferenceTest(margin, 0.05, seconds=seconds),
        0,
        list[tuple[bool, float, int]](),
        [],
    )
    for is_canary, x, later in observations:
        now += later
        test.update(is_canary, x, now)
        block.append((is_canary, x, now))
        baseline, canary = ([v for side, v, _ in block if side == wanted] for wanted in (False, True))
        if baseline and canary and now - block[0][2] >= seconds:
            differences.append(statistics.fmean(canary) - statistics.fmean(baseline))
            block = []
    assert test.blocks == len(differences)
    again = DifferenceTest(margin, 0.05, counts=json.loads(json.dumps(test.counts)))
    assert again.blocks == test.blocks and again.lower_bound() == test.lower_bound()
    if differences:
        assert statistics.fmean(differences) - 1 / 100 - 1e-6 <= test.mean() <= statistics.fmean(differences) + 1e-6
        assert test.lower_bound() <= test.mean() + 1e-5


def test_differences_beyond_the_width_count_as_those_at_it() -> None:
    tests = [DifferenceTest(0.1, 0.05, width=0.25) for _ in range(2)]
    for test, x in zip(tests, (0.4, 1.0), strict=True):
        for _ in range(test.min_blocks):
            test.update(False, 0.0)
            test.update(True, x)
    assert tests[0].alarm and tests[1].alarm


@pytest.mark.slow
def test_the_confidence_bound_covers_at_all_times() -> None:
    misses = 0
    for _ in range(100):
        test = DifferenceTest(0.0, 0.05)
        worst = -1.0
        for i in range(400):
            test.update(True, float(RANDOM.random() < 0.3))
            test.update(False, float(RANDOM.random() < 0.2))
            if i % 20 == 19:
                worst = max(worst, test.lower_bound())
        misses += worst > 0.1
    assert misses <= 11  # of 100, three standard errors above 5


def test_a_detector_that_restarts_finds_a_late_change_as_soon_as_an_early_one() -> None:
    test = BettingTest(0.98, 1e-4, restart=True)
    good = [test.update(float(RANDOM.random() > 0.03)) for _ in range(20_000)]
    assert not any(good)
    steps = next(n for n in range(1, 20_000) if test.update(float(RANDOM.random() > 0.002)))
    assert steps < 2000
