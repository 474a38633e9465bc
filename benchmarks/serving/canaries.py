"""python benchmarks/serving/canaries.py

Simulates canaries without a server: how often the test of recsys.serve, and a z test that is looked at as often as 50
times, raise a false alarm, and after how many requests a worse canary is found. A pair is one request of the canary and
one of the baseline.
"""

from __future__ import annotations

import math

import numpy as np

from recsys.server.sequential import BETS

RUNS = 2000


def betting(
    canary: float, baseline: float, margin: float, alpha: float, runs: int, pairs: int, generator: np.random.Generator
) -> np.ndarray:
    """Return the pair (runs,) after which the test of rates raises an alarm, looked at after each; 0 without one."""
    bets, mean = np.array(BETS), (1 + margin) / 2
    capital, first = np.zeros((runs, len(bets))), np.zeros(runs, int)
    for i in range(pairs):
        difference = (generator.random(runs) < canary).astype(float) - (generator.random(runs) < baseline)
        capital += np.log1p(bets * ((1 + difference) / 2 / mean - 1)[:, None])
        highest = capital.max(1)
        mixture = highest + np.log(np.exp(capital - highest[:, None]).mean(1))
        first[(first == 0) & (mixture >= math.log(1 / alpha))] = i + 1
    return first


def z_test(
    canary: float, baseline: float, alpha: float, *, runs: int, pairs: int, every: int, generator: np.random.Generator
) -> np.ndarray:
    """Return the same for a two-sided z test of two rates, looked at after each `every` pairs."""
    assert alpha == 0.05
    a, b = (np.cumsum(generator.random((runs, pairs)) < p, axis=1)[:, every - 1 :: every] for p in (canary, baseline))
    n = np.arange(every, pairs + 1, every)
    pooled = (a + b) / (2 * n)
    z = (a - b) / np.sqrt(np.maximum(2 * n * pooled * (1 - pooled), 1e-12))
    alarms = np.abs(z) > 1.959964
    return np.where(alarms.any(1), (alarms.argmax(1) + 1) * every, 0)


def main() -> None:
    """Print all figures."""
    generator = np.random.default_rng(0)
    for rate in (0.01, 0.05, 0.5):
        ours = np.mean(betting(rate, rate, 0.0, 0.05, RUNS, 10_000, generator) > 0)
        looks = [
            np.mean(z_test(rate, rate, 0.05, runs=RUNS, pairs=10_000, every=n, generator=generator) > 0)
            for n in (200, 2000)
        ]
        z = f"z test looked at 50 times {looks[0]:.1%}, 5 times {looks[1]:.1%}"
        print(f"both fail {rate:.0%}, 10,000 pairs: false alarms {ours:.1%} looked at after each; {z}")
    for canary, baseline in ((1.0, 0.01), (0.2, 0.01), (0.05, 0.01), (0.03, 0.01)):
        pairs = betting(canary, baseline, 0.01, 0.05 / 4, RUNS, 12_000, generator)
        median, high = np.median(pairs[pairs > 0]), np.quantile(pairs[pairs > 0], 0.95)
        found = np.mean(pairs > 0)
        print(f"{canary:.0%} against {baseline:.0%}: found {found:.1%}, median {median:.0f} pairs, 95 % {high:.0f}")


if __name__ == "__main__":
    main()
