"""Compare a canary with a baseline, the same share of the requests that the current version answers.

The metrics are errors (the share of requests that fail), latency (the share that is slower than a quantile of the last
requests), score (where the scores lie among the baseline's, and how far from their middle) and click (the share of
requests with a click). Each has an equal part of the probability of a false alarm.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable

from recsys.files.model_folder import GuardSettings

BETS = tuple(0.9 / 2**k for k in range(8))  # large ones find large differences soon, small ones small differences
STEPS = 100  # to which differences are rounded, so that a histogram is all that a test has to keep
MAX_REFERENCE = 200  # values with which later ones are compared
SLOW = 1.5  # times the median: a request is slow
# Each version computes in a thread of its own. While other processes are busy, requests of a version whose thread waits
# for a processor take ten times as long as the other's, for up to half a second, measured with two processors.
_BLOCKS = {"latency": (1.0, 0.25)}  # seconds, and the width of their differences
LATE = (429, 504)  # statuses of a request that the model has not answered in time
_VIEWS: dict[str, tuple[tuple[str, Callable[[float], float]], ...]] = {  # of an observation; larger is worse
    "errors": (("share of failed requests is larger", float),),
    "latency": (
        ("share of slow requests is larger", lambda x: float(x > 0)),
        ("share of very slow requests is larger", lambda x: float(x == 1)),
    ),
    "click": (("click rate is lower", lambda x: 1 - x),),
    "score": (
        ("scores are higher", float),
        ("scores are lower", lambda x: 1 - x),
        ("scores are farther from the middle", lambda x: abs(2 * x - 1)),
        ("scores are nearer to the middle", lambda x: 1 - abs(2 * x - 1)),
    ),
}


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


class _Metric:
    def __init__(self, name: str, margin: float, alpha: float) -> None:
        views = _VIEWS[name]
        self._margin = margin
        self._tests = [
            (what, view, DifferenceTest(margin, alpha / len(views), *_BLOCKS.get(name, ()))) for what, view in views
        ]
        self.numbers = [0, 0]  # of the baseline's and of the canary's observations

    @property
    def can_judge(self) -> bool:
        """Return whether there were enough blocks to find a canary whose every observation is worse."""
        return all(test.blocks >= test.min_blocks for *_, test in self._tests)

    def update(self, is_canary: bool, x: float, now: float) -> str | None:
        """Add an observation, and return why the canary is worse, or None."""
        self.numbers[is_canary] += 1
        for what, view, test in self._tests:
            if test.update(is_canary, view(x), now):
                least = f"at least {test.lower_bound():.3g}, more than {self._margin:g}"
                return f"its {what} by {test.mean():.3g}, {least}, after {test.blocks} blocks"
        return None


class _Reference:
    """Ranks values among the first ones of the baseline."""

    def __init__(self, size: int) -> None:
        self._size, self._values = size, list[float]()

    def rank(self, is_canary: bool, value: float) -> float | None:
        """Return the rank, from 0 to 1; None as long as the first values come."""
        if len(self._values) == self._size:
            return (bisect_left(self._values, value) + bisect_right(self._values, value)) / (2 * self._size)
        if not is_canary:
            self._values.append(value)
            if len(self._values) == self._size:
                self._values.sort()
        return None


class _Slowness:
    """Ranks latencies by two thresholds: a quantile, and SLOW times the median.

    Each is the smaller one of both versions' last `size` requests, so that it treats them alike, and is renewed after
    as many, so that it follows the load. Before the first ones, when a version may still be cold, there is no rank.
    """

    def __init__(self, size: int, quantile: float) -> None:
        self._size, self._places = size, ((size - 1) // 2, math.ceil(size * quantile) - 1)
        self._values = deque[float](maxlen=size), deque[float](maxlen=size)
        self._thresholds: tuple[float, ...] = ()

    def rank(self, is_canary: bool, seconds: float) -> float | None:
        """Return the share of the thresholds that a request exceeds, None without any."""
        rank = sum(seconds > t for t in self._thresholds) / 2 if self._thresholds else None
        self._values[is_canary].append(seconds)
        if min(map(len, self._values)) >= self._size:
            ordered = [sorted(values) for values in self._values]
            middle, high = (min(values[place] for values in ordered) for place in self._places)
            self._thresholds = SLOW * middle, high
            for values in self._values:
                values.clear()
        return rank


class CanaryGuard:
    """The comparison of one canary. `why` says how it is worse, once that is known.

    feedback: whether clicks are observed, so that a canary without them does not pass
    """

    def __init__(self, settings: GuardSettings, *, feedback: bool) -> None:
        self.settings, self.why, self.metric = settings, "", ""
        alpha = settings.alpha / len(settings.margins)
        self._metrics: dict[str, _Metric] = {n: _Metric(n, m, alpha) for n, m in settings.margins.items()}
        size = max(20, min(MAX_REFERENCE, settings.min_requests // 2))
        self._latencies, self._scores = _Slowness(size, settings.quantile), _Reference(size)
        self._needs_clicks = feedback and "click" in self._metrics
        self.requests = {True: 0, False: 0}  # of the canary, and of the baseline
        self._since: float | None = None

    def answered(self, is_canary: bool, status: int, seconds: float, score: float | None, now: float) -> None:
        """Add a request that was answered. If latency is compared, one that was late is slow, not an error."""
        self._since = now if self._since is None else self._since
        self.requests[is_canary] += 1
        is_late = status in LATE and "latency" in self._metrics
        if not is_late:
            self._update("errors", is_canary, float(status != 200), now)
        if status != 200 and not is_late:
            return
        if (rank := self._latencies.rank(is_canary, math.inf if is_late else seconds)) is not None:
            self._update("latency", is_canary, rank, now)
        if score is not None and (rank := self._scores.rank(is_canary, score)) is not None:
            self._update("score", is_canary, rank, now)

    def clicked(self, is_canary: bool, clicked: bool) -> None:
        """Add whether a request had a click."""
        self._update("click", is_canary, float(clicked), 0.0)

    def seconds(self, now: float) -> float:
        """Return the time since the first request."""
        return 0.0 if self._since is None else now - self._since

    def has_passed(self, now: float) -> bool:
        """Return whether there were enough requests and time without an alarm."""
        numbers = [*self.requests.values(), *(self._metrics["click"].numbers if self._needs_clicks else ())]
        enough = min(numbers) >= self.settings.min_requests and self.seconds(now) >= self.settings.min_seconds
        latency = self._metrics.get("latency")
        return enough and not self.why and (latency is None or latency.can_judge)

    def _update(self, name: str, is_canary: bool, x: float, now: float) -> None:
        metric = None if self.why else self._metrics.get(name)
        if metric is not None and (why := metric.update(is_canary, x, now)) is not None:
            self.why, self.metric = why, name
