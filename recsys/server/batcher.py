"""Dynamic batching: requests that wait for a model are computed together as soon as the model is free."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate
from time import perf_counter
from typing import Any

from recsys.online.servable import Servable
from recsys.server.payloads import Payload, Result
from recsys.server.request_error import RequestError

# A batch that is expected to take less than this runs in the event loop's thread: passing it to another thread would
# cost more, since both threads need the interpreter's lock.
INLINE_SECONDS = 0.0002
FORGET = 0.9  # weight of the past in the expected duration of a batch


@dataclass(frozen=True)
class BatchLimits:
    """The limits of a batcher.

    rows: the most rows of a batch, unless one request has more
    delay: seconds to wait for more rows
    preferred: numbers of rows at which a batch does not wait longer, and to which longer queues are cut
    queue: the most rows that wait; further requests are refused
    inline: whether short batches may run in the event loop's thread
    """

    rows: int = 1024
    delay: float = 0.0
    preferred: tuple[int, ...] = ()
    queue: int = 16384
    inline: bool = True

    @property
    def enough(self) -> int:
        """Return the number of rows at which a batch does not wait longer."""
        return min(self.preferred, default=self.rows)


class Work:
    """A request that waits for its outputs."""

    __slots__ = ("future", "model_seconds", "payload", "queue_seconds", "queued", "timer", "transform_seconds")

    def __init__(self, payload: Payload, future: asyncio.Future[Any]) -> None:
        self.payload, self.future, self.queued = payload, future, perf_counter()
        self.timer: asyncio.TimerHandle | None = None
        self.queue_seconds = 0.0
        self.transform_seconds = self.model_seconds = 0.0  # of its batch

    def expire(self) -> None:
        """Fail with the status 504. Work that has not begun is then skipped."""
        if not self.future.done():
            self.future.set_exception(RequestError(504, "the deadline has passed before the model has answered"))

    def finish(self, outcome: Any) -> None:
        """Set the outputs, or the error."""
        if self.timer is not None:
            self.timer.cancel()
        if self.future.done():  # expired, or the caller has gone
            return
        if isinstance(outcome, BaseException):
            self.future.set_exception(outcome)
        else:
            self.future.set_result(outcome)


# Takes requests, results of batches and seconds; may return work for the model's thread. It must not refer to the
# batcher: a version that is replaced would keep its memory and its thread until Python collects cycles.
Observer = Callable[[Sequence[Work], Sequence[Result], float], Callable[[], None] | None]


class Batcher:
    """The queue in front of one model. All methods run in the event loop's thread."""

    def __init__(self, servable: Servable, limits: BatchLimits) -> None:
        self._servable, self.limits = servable, limits
        self.observe: Observer | None = None  # called after each batch
        self._loop = asyncio.get_running_loop()
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="model")
        self._waiting: deque[Work] = deque()
        self._busy = False
        self._scheduled: asyncio.Handle | None = None
        self._delayed = False  # whether `_scheduled` waits for more rows
        self._expected: dict[int, float] = {}  # seconds of a batch by the bit length of its number of rows
        self.waiting_rows = 0

    def submit(self, payload: Payload, deadline: float | None = None) -> Work:
        """Queue a request, and return the work whose future will have its outputs.

        Args:
            deadline: time of the event loop's clock after which the request fails.

        Raises:
            RequestError: the queue is full (429), or the deadline has passed (504).
        """
        if self._waiting and self.waiting_rows + payload.weight > self.limits.queue:
            raise RequestError(429, f"the queue of the model is full ({self.waiting_rows} rows wait); try again later")
        work = Work(payload, self._loop.create_future())
        if deadline is not None:
            if deadline <= self._loop.time():
                raise RequestError(504, "the deadline has passed before the request was queued")
            work.timer = self._loop.call_at(deadline, work.expire)
        self._waiting.append(work)
        self.waiting_rows += payload.weight
        if not self._busy:
            self._schedule()
        return work

    async def warm_up(self, payload: Payload) -> None:
        """Compute a payload a few times, to learn how long the smallest batch takes. Errors are ignored."""
        for _ in range(3):
            started = perf_counter()
            try:
                await self._loop.run_in_executor(self._executor, payload.compute, self._servable)
            except Exception:  # an empty row need not be valid
                return
            self._learn(payload.weight, perf_counter() - started)

    def _schedule(self) -> None:
        """Start the next batch in the event loop's next round, or after the delay while the batch is small."""
        full = self.limits.delay == 0 or self.waiting_rows >= self.limits.enough
        if self._scheduled is not None:
            if not (full and self._delayed):
                return
            self._scheduled.cancel()
        self._delayed = not full
        if full:
            self._scheduled = self._loop.call_soon(self._start)
        else:
            self._scheduled = self._loop.call_later(self.limits.delay, self._start)

    def _start(self) -> None:
        self._scheduled = None
        most = max((p for p in self.limits.preferred if p <= self.waiting_rows), default=self.limits.rows)
        now, rows = perf_counter(), 0
        works: list[Work] = []
        while self._waiting:
            work = self._waiting[0]
            if not work.future.done():  # somebody waits for it
                if works and rows + work.payload.weight > most:
                    break
                work.queue_seconds = now - work.queued
                rows += work.payload.weight
                works.append(work)
            self._waiting.popleft()
            self.waiting_rows -= work.payload.weight
        if not works:
            return
        self._busy = True
        if self.limits.inline and self._expected.get(rows.bit_length(), 1.0) < INLINE_SECONDS:
            self._finish(works, rows, _compute(self._servable, works))
            return
        running = self._loop.run_in_executor(self._executor, _compute, self._servable, works)
        running.add_done_callback(lambda done: self._finish(works, rows, done.result()))

    def _finish(self, works: list[Work], rows: int, done: tuple[list[Any], list[Result], float]) -> None:
        outcomes, results, seconds = done
        for work, outcome in zip(works, outcomes, strict=True):
            work.finish(outcome)
        if not any(isinstance(o, BaseException) for o in outcomes):  # errors may come early
            self._learn(rows, seconds)
        self._busy = False
        if self._waiting:
            self._schedule()
        if self.observe is not None and (aside := self.observe(works, results, seconds)) is not None:
            self._executor.submit(aside)

    def _learn(self, rows: int, seconds: float) -> None:
        """Update the expected duration. One fast batch lowers it at once: slow ones may have waited for the lock."""
        key = rows.bit_length()
        expected = self._expected.get(key, seconds)
        self._expected[key] = min(seconds, FORGET * expected + (1 - FORGET) * seconds)


def _compute(servable: Servable, works: Sequence[Work]) -> tuple[list[Any], list[Result], float]:
    """Compute the outputs of several requests, in one batch for each kind of payload.

    Returns the outputs or the error of each request, the results of the batches, and the duration in seconds.
    """
    started = perf_counter()
    groups: dict[Any, list[int]] = {}
    for i, work in enumerate(works):
        groups.setdefault(work.payload.kind(servable), []).append(i)
    outcomes: list[Any] = [None] * len(works)
    results: list[Result] = []
    for places in groups.values():
        group_outcomes = _compute_group(servable, [works[i] for i in places], results)
        for i, outcome in zip(places, group_outcomes, strict=True):
            outcomes[i] = outcome
    return outcomes, results, perf_counter() - started


def _compute_group(servable: Servable, works: list[Work], results: list[Result]) -> list[Any]:
    """Compute requests of one kind together; if that fails, compute each alone, so that only the bad ones fail."""
    first = works[0].payload
    try:
        others: Any = [w.payload for w in works[1:]]
        merged = first.merge(others) if others else first
        result = merged.compute(servable)
        outcomes, outputs = [result.outputs], result.outputs
        if others:
            expected = sum(w.payload.count for w in works)
            lengths = map(len, outputs.values()) if isinstance(outputs, dict) else [len(outputs)]
            if any(n != expected for n in lengths):
                raise RuntimeError(f"the model has not returned {expected} rows for a batch of {expected}")
            ends = list(accumulate(w.payload.count for w in works))
            outcomes = [
                w.payload.divide(outputs, end - w.payload.count, end) for w, end in zip(works, ends, strict=True)
            ]
    except Exception as e:
        if len(works) == 1:
            return [e]
        return [outcome for w in works for outcome in _compute_group(servable, [w], results)]
    results.append(result)
    for work in works:
        work.transform_seconds, work.model_seconds = result.transform_seconds, result.model_seconds
    return outcomes
