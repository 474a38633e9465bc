"""Tests that may be looked at after every observation: a false alarm at any time has at most the probability alpha.

Betting against a mean, with a fixed mixture of bets: I. Waudby-Smith and A. Ramdas, Estimating means of bounded random
variables by betting, Journal of the Royal Statistical Society B 86(1), 2024, https://arxiv.org/abs/2010.09686. Whoever
bets the fraction c of a capital of 1 that observations x in [0, 1] have a mean above `mean` multiplies it by
1 + c (x / mean - 1) at each. As long as the mean is not above, no capital grows on average, and by Ville's inequality
the mixture of capitals ever reaches 1 / alpha with probability at most alpha. The means that are not refuted are a
confidence sequence.
"""

from __future__ import annotations

import itertools
import math

BETS = tuple(0.9 / 2**k for k in range(8))  # large ones find large differences soon, small ones small differences
STEPS = 100  # to which differences are rounded, so that a histogram is all that a test has to keep


class BettingTest:
    """Tests that a mean is at most `mean`. `restart`: forget the past while it speaks against a larger mean.

    With `restart`, the mean time to a false alarm is at least 1 / alpha observations (an e-detector: J. Shin, A. Ramdas
    and A. Rinaldo, E-detectors, New England Journal of Statistics in Data Science 2(2), 2024).

    >>> test = BettingTest(mean=0.1, alpha=0.05)
    >>> any(test.update(i % 2 == 0) for i in range(100))
    True
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

    A block of observations ends as soon as it has one or more of each side and is `seconds` old; there is one bet a
    block, on the difference of its two means. Within a block, observations may depend on each other; what lasts longer
    than a block must not favour a side. A difference counts as at most `width` away from the margin, so that many small
    ones are evidence as well as a few large ones. All state but the present block is `counts`, a histogram of the
    differences, which are rounded down.
    """

    def __init__(
        self,
        margin: float,
        alpha: float,
        seconds: float = 0.0,
        width: float | None = None,
        counts: list[int] | None = None,
    ) -> None:
        self._margin, self._alpha, self._seconds, self._width = margin, alpha, seconds, width
        self._since, self._numbers, self._sums = 0.0, [0, 0], [0.0, 0.0]  # of the present block, baseline and canary
        self.counts = [0] * (2 * STEPS + 1) if counts is None else list(counts)
        self._test, self.alarm = self._of_counts(margin)
        top = self._scaled(2 * STEPS, margin)
        self.min_blocks = next(n for n in itertools.count(1) if BettingTest(0.5, alpha).update(top, n))

    @property
    def blocks(self) -> int:
        """Return the number of blocks that have ended."""
        return sum(self.counts)

    def update(self, is_canary: bool, x: float, now: float = 0.0) -> bool:
        """Add an observation, from 0 to 1, and return whether the canary's mean is, or was, larger by more."""
        if not any(self._numbers):
            self._since = now
        self._numbers[is_canary] += 1
        self._sums[is_canary] += x
        if 0 in self._numbers or now - self._since < self._seconds:
            return self.alarm
        baseline, canary = (s / n for s, n in zip(self._sums, self._numbers, strict=True))
        self._numbers, self._sums = [0, 0], [0.0, 0.0]
        place = int((1 + canary - baseline) * STEPS + 1e-9)
        self.counts[place] += 1
        self.alarm = self._test.update(self._scaled(place, self._margin)) or self.alarm
        return self.alarm

    def mean(self) -> float:
        """Return the mean difference of the blocks."""
        return sum(place * times for place, times in enumerate(self.counts)) / max(self.blocks, 1) / STEPS - 1

    def lower_bound(self) -> float:
        """Return the lower end of the confidence sequence of the difference of the means."""
        low, high = -1.0, 1.0
        for _ in range(20):
            middle = (low + high) / 2
            low, high = (middle, high) if self._of_counts(middle)[1] else (low, middle)
        return low

    def _scaled(self, place: int, margin: float) -> float:
        """Return a difference as a number from 0 to 1, which is 1/2 at the margin."""
        width = 1 + margin if self._width is None else self._width
        return min(max((1 + (place / STEPS - 1 - margin) / width) / 2, 0.0), 1.0)

    def _of_counts(self, margin: float) -> tuple[BettingTest, bool]:
        """Return a test with all differences so far, and whether it refutes the margin. Their order does not matter."""
        test, refutes = BettingTest(0.5, self._alpha), False
        for place, times in enumerate(self.counts):
            refutes = test.update(self._scaled(place, margin), times)
        return test, refutes
