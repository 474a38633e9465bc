"""Tests that may be looked at after every observation: a false alarm at any time has at most the probability alpha.

Betting against a mean, with a fixed mixture of bets: I. Waudby-Smith and A. Ramdas, Estimating means of bounded random
variables by betting, Journal of the Royal Statistical Society B 86(1), 2024, https://arxiv.org/abs/2010.09686. Whoever
bets the fraction c of a capital of 1 that observations x in [0, 1] have a mean above `mean` multiplies it by
1 + c (x / mean - 1) at each. As long as the mean is not above, no capital grows on average, and by Ville's inequality
the mixture of capitals ever reaches 1 / alpha with probability at most alpha. The means that are not refuted are a
confidence sequence.
"""

from __future__ import annotations

import math
from collections import deque

BETS = tuple(0.9 / 2**k for k in range(8))  # large ones find large differences soon, small ones small differences
MOST_WAITING = 1000  # observations of one side that wait for the other's
STEPS = 32  # to which differences are rounded, so that a histogram is all that a test has to keep


class BettingTest:
    """Tests that a mean is at most `mean`. `restart`: forget the past while it speaks against a larger mean.

    With `restart`, the mean time to a false alarm is at least 1 / alpha observations (an e-detector: J. Shin, A. Ramdas
    and A. Rinaldo, E-detectors, New England Journal of Statistics in Data Science 2(2), 2024).
    """

    def __init__(self, mean: float, alpha: float, *, restart: bool = False) -> None:
        self._mean, self._needed, self._restart = mean, math.log(1 / alpha), restart
        self._logs = [0.0] * len(BETS)  # of the capitals

    @property
    def has_evidence(self) -> bool:
        """Return whether any observations, since the last restart, speak for a larger mean."""
        return max(self._logs) > 0

    def update(self, x: float, times: int = 1) -> bool:
        """Add an observation from 0 to 1, `times` times, and return whether the mean is larger than `mean`."""
        ratio = x / self._mean - 1
        logs = [max(v, 0.0) for v in self._logs] if self._restart else self._logs
        self._logs = logs = [v + times * math.log1p(c * ratio) for v, c in zip(logs, BETS, strict=True)]
        highest = max(logs)
        if highest < self._needed:  # the mixture is not above the highest
            return False
        return highest + math.log(sum(math.exp(v - highest) for v in logs) / len(logs)) >= self._needed


class DifferenceTest:
    """Tests that the mean of observations in [0, 1] of a canary exceeds a baseline's by more than a margin.

    The i-th observation of the one is compared with the i-th of the other: x is (1 + difference) / 2. All state but the
    observations that wait is `counts`, a histogram of the differences.
    """

    def __init__(self, margin: float, alpha: float, counts: list[int] | None = None) -> None:
        self._alpha = alpha
        self._waiting: tuple[deque[float], deque[float]] = (deque(maxlen=MOST_WAITING), deque(maxlen=MOST_WAITING))
        self.counts = [0] * (2 * STEPS + 1) if counts is None else list(counts)
        self._test, self.alarm = self._of_counts(margin)

    @property
    def pairs(self) -> int:
        """Return the number of differences."""
        return sum(self.counts)

    def update(self, is_canary: bool, x: float) -> bool:
        """Add an observation, from 0 to 1, and return whether the canary's mean is, or was, larger by more."""
        own, other = self._waiting if is_canary else self._waiting[::-1]
        if not other:
            own.append(x)
            return self.alarm
        difference = x - other.popleft() if is_canary else other.popleft() - x
        place = round((1 + difference) * STEPS)
        self.counts[place] += 1
        self.alarm = self._test.update(place / (2 * STEPS)) or self.alarm
        return self.alarm

    def lower_bound(self) -> float:
        """Return the lower end of the confidence sequence of the difference of the means."""
        low, high = -1.0, 1.0
        for _ in range(20):
            middle = (low + high) / 2
            low, high = (middle, high) if self._of_counts(middle)[1] else (low, middle)
        return low

    def _of_counts(self, margin: float) -> tuple[BettingTest, bool]:
        """Return a test with all differences so far, and whether it refutes the margin. Their order does not matter."""
        test, refutes = BettingTest((1 + margin) / 2, self._alpha), False
        for place, times in enumerate(self.counts):
            refutes = test.update(place / (2 * STEPS), times)
        return test, refutes
