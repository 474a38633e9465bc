"""Compare a canary with a baseline, the same share of the requests that the current version answers.

The metrics are errors (the share of requests that fail), latency (the share that is slower than a quantile of the
baseline's), score (where the scores lie among the baseline's, and how far from their middle) and click (the share of
requests with a click). Each has an equal part of the probability of a false alarm.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable

from recsys.server.canary_settings import GuardSettings
from recsys.server.sequential import DifferenceTest

MOST_REFERENCE = 200  # first values of the baseline, with which later ones of both are compared
_VIEWS: dict[str, tuple[tuple[str, Callable[[float], float]], ...]] = {  # of an observation; larger is worse
    "errors": (("share of failed requests is larger", float),),
    "latency": (("share of slow requests is larger", float),),
    "click": (("click rate is lower", lambda x: 1 - x),),
    "score": (
        ("scores are higher", float),
        ("scores are lower", lambda x: 1 - x),
        ("scores are farther from the middle", lambda x: abs(2 * x - 1)),
        ("scores are nearer to the middle", lambda x: 1 - abs(2 * x - 1)),
    ),
}


class _Metric:
    def __init__(self, name: str, margin: float, alpha: float) -> None:
        views = _VIEWS[name]
        self._margin = margin
        self._tests = [(what, view, DifferenceTest(margin, alpha / len(views))) for what, view in views]
        self.numbers, self._sums = [0, 0], [0.0, 0.0]  # of the baseline's and of the canary's observations

    def update(self, is_canary: bool, x: float) -> str | None:
        """Add an observation, and return why the canary is worse, or None."""
        self.numbers[is_canary] += 1
        self._sums[is_canary] += x
        for what, view, test in self._tests:
            if test.update(is_canary, view(x)):
                least = f"at least {test.lower_bound():.3g}, more than {self._margin:g}"
                return f"its {what} by {least}: {self._means()} after {test.pairs} pairs"
        return None

    def _means(self) -> str:
        baseline, canary = (s / max(n, 1) for s, n in zip(self._sums, self.numbers, strict=True))
        return f"mean {canary:.3g}, the baseline's {baseline:.3g}"


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


class CanaryGuard:
    """The comparison of one canary. `why` says how it is worse, once that is known.

    feedback: whether clicks are observed, so that a canary without them does not pass
    """

    def __init__(self, settings: GuardSettings, *, feedback: bool) -> None:
        self.settings, self.why, self.metric = settings, "", ""
        alpha = settings.alpha / len(settings.margins)
        self._metrics = {name: _Metric(name, margin, alpha) for name, margin in settings.margins}
        size = max(20, min(MOST_REFERENCE, settings.min_requests // 2))
        self._latencies, self._scores = _Reference(size), _Reference(size)
        self._needs_clicks = feedback and "click" in self._metrics
        self.requests = {True: 0, False: 0}  # of the canary, and of the baseline
        self._since: float | None = None

    def answered(self, is_canary: bool, failed: bool, seconds: float, score: float | None, now: float) -> None:
        """Add a request that was answered."""
        self._since = now if self._since is None else self._since
        self.requests[is_canary] += 1
        self._update("errors", is_canary, float(failed))
        if failed:
            return
        if (rank := self._latencies.rank(is_canary, seconds)) is not None:
            self._update("latency", is_canary, float(rank > self.settings.quantile))
        if score is not None and (rank := self._scores.rank(is_canary, score)) is not None:
            self._update("score", is_canary, rank)

    def clicked(self, is_canary: bool, clicked: bool) -> None:
        """Add whether a request had a click."""
        self._update("click", is_canary, float(clicked))

    def seconds(self, now: float) -> float:
        """Return the time since the first request."""
        return 0.0 if self._since is None else now - self._since

    def has_passed(self, now: float) -> bool:
        """Return whether there were enough requests and time without an alarm."""
        numbers = [*self.requests.values(), *(self._metrics["click"].numbers if self._needs_clicks else ())]
        enough = min(numbers) >= self.settings.min_requests and self.seconds(now) >= self.settings.min_seconds
        return enough and not self.why

    def _update(self, name: str, is_canary: bool, x: float) -> None:
        metric = None if self.why else self._metrics.get(name)
        if metric is not None and (why := metric.update(is_canary, x)) is not None:
            self.why, self.metric = why, name
