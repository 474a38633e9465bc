"""python benchmarks/serving/canaries.py

Simulates canaries without a server: how often the test of recsys.serve, and a z test that is looked at as often as 50
times, raise a false alarm, and after how many requests a worse canary is found. A pair is one request of the canary and
one of the baseline. Latencies that depend on each other go through the guard itself.
"""

from __future__ import annotations

import math

import numpy as np

from recsys.files.model_folder import GuardSettings
from recsys.server.canary_guard import BETS, CanaryGuard

RUNS = 2000
SHORT_RUNS = 200  # of latencies, in plain Python


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


def switching(times: np.ndarray, on: float, off: float, generator: np.random.Generator) -> np.ndarray:
    """Return the state (n,) at each time of a process that is on, and off, for these mean seconds."""
    number = int(2 * times[-1] / (on + off)) * 2 + 20
    lengths = generator.exponential(np.resize([on, off], number))
    changes = np.cumsum(lengths) - generator.random() * (on + off)
    return np.searchsorted(changes, times) % 2 == 0


def correlated(times: np.ndarray, seconds: float, generator: np.random.Generator) -> np.ndarray:
    """Return an autoregressive process (n,) of mean 0 and variance 1 whose correlation falls by e in `seconds`."""
    steps = np.diff(times, prepend=times[0] - 99 * seconds)
    kept = np.exp(-steps / seconds)
    values, noise = np.zeros(len(times)), generator.standard_normal(len(times)) * np.sqrt(1 - kept**2)
    for i in range(1, len(times)):
        values[i] = kept[i] * values[i - 1] + noise[i]
    return values


def paused(times: np.ndarray, every: float, length: float, generator: np.random.Generator) -> np.ndarray:
    """Return how long a request waits (n,) for the end of a pause that comes at regular times."""
    return np.maximum(length - (times + generator.random() * every) % every, 0)


CROWDS = (
    "independent",
    "heavy tails",
    "bursts of load",
    "bursts of each version",
    "autoregressive",
    "pauses of each version",
    "all of these",
)


def latencies(
    crowd: str, rate: float, seconds: float, slower: float, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return times (n,), whether the canary answers (n,), and latencies (n,) of compared requests.

    crowd: what makes latencies depend on each other; of each version: another course for each, as the processor of its
        thread may be crowded
    slower: factor of the canary's latencies
    """
    g, times = generator, np.sort(generator.random(generator.poisson(rate * seconds))) * seconds
    is_canary, value = g.random(len(times)) < 0.5, 0.003 * np.exp(0.3 * g.standard_normal(len(times)))
    if crowd == "heavy tails":
        value *= g.pareto(1.1, len(times)) + 1
    if crowd in ("bursts of load", "all of these"):
        value *= 1 + 9 * switching(times, 2.0, 6.0, g)
    if crowd in ("bursts of each version", "all of these"):
        value *= 1 + 9 * np.where(is_canary, switching(times, 0.25, 1.0, g), switching(times, 0.25, 1.0, g))
    if crowd == "autoregressive":
        each = np.where(is_canary, correlated(times, 0.25, g), correlated(times, 0.25, g))
        value *= np.exp(0.7 * (correlated(times, 5.0, g) + each))
    if crowd in ("pauses of each version", "all of these"):
        value += np.where(is_canary, paused(times, 1.7, 0.2, g), paused(times, 1.7, 0.2, g))
    return times, is_canary, value * np.where(is_canary, slower, 1.0)


def seconds_until_alarm(
    settings: GuardSettings, draw: tuple[np.ndarray, np.ndarray, np.ndarray]
) -> tuple[float, int] | None:
    """Return seconds and requests of the canary until the guard raises an alarm; None without one."""
    guard = CanaryGuard(settings, feedback=False)
    for time, is_canary, value in zip(*(a.tolist() for a in draw), strict=True):
        guard.answered(is_canary, 200, value, None, time)
        if guard.why:
            return time, guard.requests[True]
    return None


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
    for crowd in CROWDS:
        alike = GuardSettings(metrics=["latency"], margins={"latency": 0.0})
        draws = [latencies(crowd, 80, 60, 1.0, generator) for _ in range(SHORT_RUNS)]
        alarms = np.mean([seconds_until_alarm(alike, draw) is not None for draw in draws])
        print(f"latencies: {crowd}, equal versions, no margin, 60 s of 40 requests a second of each: {alarms:.1%}")
        for slower in (2.0, 3.0):
            draws = [latencies(crowd, 80, 60, slower, generator) for _ in range(SHORT_RUNS // 4)]
            ends = [a for draw in draws if (a := seconds_until_alarm(GuardSettings(), draw)) is not None]
            median = np.median(ends, 0) if ends else (math.nan, math.nan)
            share, when = len(ends) / len(draws), f"{median[0]:.0f} s, {median[1]:.0f} requests of the canary"
            print(f"    {slower:g} times as slow, the defaults: found {share:.0%}, median {when}")
    for canary, baseline in ((1.0, 0.01), (0.2, 0.01), (0.05, 0.01), (0.03, 0.01)):
        pairs = betting(canary, baseline, 0.01, 0.05 / 4, RUNS, 12_000, generator)
        median, high = np.median(pairs[pairs > 0]), np.quantile(pairs[pairs > 0], 0.95)
        found = np.mean(pairs > 0)
        print(f"{canary:.0%} against {baseline:.0%}: found {found:.1%}, median {median:.0f} pairs, 95 % {high:.0f}")


if __name__ == "__main__":
    main()
