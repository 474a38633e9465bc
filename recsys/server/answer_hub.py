"""The part of the supervisor that sees the answers of all workers: it compares canaries, and joins feedback.

It lives in the supervisor, so that a worker that dies takes no more with it than its answers of the last moment.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from recsys.base.errors import UserError
from recsys.base.json_log import log, log_failure
from recsys.server.canary_guard import BettingTest, CanaryGuard
from recsys.server.feedback import AnsweredRequest, AnsweredRequests
from recsys.server.model_versions import CANARY, Choice, Repository, Source

if TYPE_CHECKING:
    from recsys.server.prometheus import Metrics

KPI_ALPHA = 1e-4  # at least 10,000 requests, on average, between two false events


class KpiTest:
    """Watches a click rate for crossings of a threshold."""

    def __init__(self, threshold: float) -> None:
        self.threshold, self._is_below = threshold, False
        self._clicks = self._requests = 0  # since they speak for a crossing
        self._test = self._next_test()
        self.rate = 0.0  # at the last crossing

    def update(self, clicked: bool) -> bool:
        """Add a request, and return whether the rate has fallen below the threshold."""
        self._clicks, self._requests = self._clicks + clicked, self._requests + 1
        if not self._test.update(float(clicked == self._is_below)):
            if not self._test.has_evidence:
                self._clicks = self._requests = 0
            return False
        self._is_below, self.rate = not self._is_below, self._clicks / self._requests
        self._clicks = self._requests = 0
        self._test = self._next_test()
        return self._is_below

    def _next_test(self) -> BettingTest:
        return BettingTest(self.threshold if self._is_below else 1 - self.threshold, KPI_ALPHA, restart=True)


@dataclass
class _Watched:
    """A model. guard: None without a canary, and once it was rolled back"""

    choice: Choice
    guard: CanaryGuard | None = None
    kpi: KpiTest | None = None
    has_passed: bool = False
    said: set[str] = field(default_factory=set)  # errors that were logged


class AnswerHub:
    """Takes what workers report.

    Args:
        source: the models.
        feedback: whether clicks are joined.
        wait: seconds after which a request without feedback has no click.
        most: number of requests that wait for feedback.
        reload: lets the workers read serving.json.
        metrics: returns the metrics of this process.
    """

    def __init__(
        self,
        source: Source,
        *,
        feedback: bool,
        wait: float,
        most: int,
        reload: Callable[[], None],
        metrics: Callable[[], Metrics],
    ) -> None:
        self._repository = source if isinstance(source, Repository) else None
        self._feedback, self._reload, self._metrics = feedback, reload, metrics
        self._watched: dict[str, _Watched | None] = {}
        self._requests = AnsweredRequests(wait, most, self._settled, lambda what: metrics().feedback.labels(what).inc())

    def take(self, line: bytes) -> None:
        """Take a worker's report of answers and of feedback, JSON."""
        try:
            message, now = json.loads(line), time.monotonic()
            for model, version, role, request, rows, seconds, status, score in message.get("answers", ()):
                if (guard := self._guard(model, version, role)) is not None:
                    guard.answered(role == CANARY, status, seconds, score, now)
                    self._end_if_worse(model)
                if self._feedback and status == 200:
                    self._requests.add(AnsweredRequest(request, model, version, role, rows, now))
            for feedback in message.get("feedback", ()):
                self._requests.feed(feedback, now)
        except Exception as e:  # it must not end the server
            log_failure("report", e)

    def poll(self) -> None:
        """Read the files that have changed, settle old requests, and say which canaries have passed."""
        now = time.monotonic()
        try:
            self._requests.poll(now)
            for name in self._repository.changed() if self._repository is not None else ():
                if name in self._watched:
                    self._watched[name] = self._read(name, self._watched[name])
            for name, watched in self._watched.items() if self._repository is not None else ():
                if watched is None or (guard := watched.guard) is None:
                    continue
                self._end_if_worse(name)
                if not watched.has_passed and guard.has_passed(now):
                    watched.has_passed = True
                    self._say(name, watched, "canary_passed", _exposure(guard, now))
        except Exception as e:  # the next round may go well
            log_failure("poll", e)

    def _watch(self, name: str) -> _Watched | None:
        if name not in self._watched:
            self._watched[name] = self._read(name, None)
        return self._watched[name]

    def _guard(self, name: str, version: str, role: str) -> CanaryGuard | None:
        """Return the guard of a request's model if the request is one of those that it compares."""
        watched = self._watch(name) if role else None
        if watched is None:
            return None
        wanted = watched.choice.canary if role == CANARY else watched.choice.current
        return watched.guard if version == wanted else None

    def _read(self, name: str, before: _Watched | None) -> _Watched | None:
        """Read serving.json. A comparison goes on if nothing has changed that matters to it."""
        if self._repository is None:
            return None
        try:
            choice = self._repository.choice(name)
        except UserError:  # which the workers log
            return before
        watched = _Watched(choice)
        if before is not None and _compared(before.choice) == _compared(choice):
            watched.guard, watched.has_passed = before.guard, before.has_passed
        elif choice.guard is not None:
            watched.guard = CanaryGuard(choice.guard, feedback=self._feedback)
            watched.has_passed = self._repository.has_event(name, "canary_passed", str(choice.canary))
        same = before is not None and (before.choice.current, before.choice.kpi) == (choice.current, choice.kpi)
        if before is not None and same:
            watched.kpi = before.kpi
        elif "click" in choice.kpi:
            watched.kpi = KpiTest(choice.kpi["click"])
        return watched

    def _end_if_worse(self, name: str) -> None:
        watched = self._watched.get(name)
        if watched is None or watched.guard is None or not watched.guard.why or self._repository is None:
            return
        guard, choice = watched.guard, watched.choice
        try:
            is_ended = self._repository.end_canary(name, str(choice.canary), str(choice.current))
        except UserError as e:  # tried again
            self._fail(watched, name, e)
            return
        watched.guard = None
        if is_ended:
            self._reload()
            why = {"why": f"{guard.metric}: {guard.why}", "metric": guard.metric}
            self._say(name, watched, "rolled_back", why | _exposure(guard, time.monotonic()))
            self._watched[name] = self._read(name, watched)  # without the canary

    def _say(self, name: str, watched: _Watched, event: str, fields: dict[str, Any]) -> None:
        """Write one line to the log and one to the history, and count the event."""
        version = watched.choice.current if event == "kpi_below" else watched.choice.canary
        log("warning" if event != "canary_passed" else "info", event, model=name, version=version, **fields)
        self._metrics().events.labels(name, version, event).inc()
        assert self._repository is not None
        try:
            self._repository.record(name, event, version=version, current=watched.choice.current, **fields)
        except UserError as e:
            self._fail(watched, name, e)

    def _fail(self, watched: _Watched, name: str, error: UserError) -> None:
        if str(error) not in watched.said:
            watched.said.add(str(error))
            log("error", "canary guard", model=name, error=str(error))

    def _settled(self, answer: AnsweredRequest) -> None:
        self._metrics().click.labels(answer.model, answer.version).observe(answer.clicked)
        if (guard := self._guard(answer.model, answer.version, answer.role)) is not None:
            guard.clicked(answer.role == CANARY, answer.clicked)
            self._end_if_worse(answer.model)
        watched = self._watch(answer.model)
        if watched is None or watched.kpi is None or answer.version != watched.choice.current:
            return
        if watched.kpi.update(answer.clicked):
            fields = {"kpi": "click", "threshold": watched.kpi.threshold, "rate": round(watched.kpi.rate, 6)}
            self._say(answer.model, watched, "kpi_below", fields)


def _compared(choice: Choice) -> tuple[object, ...]:
    return choice.current, choice.canary, choice.share, choice.guard


def _exposure(guard: CanaryGuard, now: float) -> dict[str, Any]:
    canary, baseline = guard.requests[True], guard.requests[False]
    return {"requests": canary, "baseline_requests": baseline, "seconds": round(guard.seconds(now), 1)}
