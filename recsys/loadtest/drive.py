"""Send requests for some seconds, in a closed loop or at a rate, and time the answers."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import sys
import threading
import time
from abc import ABC, abstractmethod
from array import array
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from recsys.loadtest.answers import ANY, AnswerCheck, ExpectedAnswer
from recsys.loadtest.endpoint import Endpoint
from recsys.loadtest.http_connection import TIMEOUT, HttpConnection

if TYPE_CHECKING:
    from recsys.loadtest.grpc_target import GrpcConnection

SWEEP_S = 0.02  # between two looks for requests that have taken too long
CONNECT_TOGETHER = 32  # connections that are opened at the same time
PR_SET_TIMERSLACK = 29  # of prctl(2)


@dataclass(frozen=True)
class LoadJob:
    """The share of one process in a measurement.

    connections: in a closed loop, each sends its next request once the answer has come
    due: seconds, after the beginning, at which requests are due, in increasing order; None for a closed loop
    expected: what the answers must have
    begin: time.monotonic() at which all processes begin
    """

    protocol: str
    endpoint: Endpoint
    requests: Sequence[bytes]
    connections: int
    seconds: float
    timeout_s: float
    due: np.ndarray | None
    begin: float
    expected: ExpectedAnswer = ANY


@dataclass
class Timings:
    """The outcome of a measurement.

    latencies: seconds from when a request was due to its answer; in a closed loop it is due when it is sent
    delays: seconds from when it was due to when it was sent
    completed: number of requests that were answered before the end of the measurement
    errors: number of failed requests, by kind
    cpu: share of one core that the process used
    """

    latencies: np.ndarray
    delays: np.ndarray
    completed: int
    errors: Counter[str]
    cpu: float


class Lane:
    """A connection with the times of the request that is under way.

    Args:
        job: the requests and the server.
        first: number of the first request that is sent.
        loop: takes the outcome of each request.
    """

    def __init__(self, job: LoadJob, first: int, loop: _Loop) -> None:
        self.connection: HttpConnection | GrpcConnection
        if job.protocol == "grpc":
            from recsys.loadtest.grpc_target import GrpcConnection

            self.connection = GrpcConnection(job.endpoint, job.timeout_s, self._done)
        else:
            self.connection = HttpConnection(job.endpoint, job.timeout_s, self._done)
        self._requests, self._next = job.requests, first % len(job.requests)
        self._loop, self._due, self._sent = loop, 0.0, 0.0

    def start(self, due: float, now: float) -> None:
        """Send the next request, which was due at `due`."""
        self._due, self._sent = due, now
        self.connection.send(self._requests[self._next])

    def _done(self, error: str | None, body: bytes) -> None:
        now = time.monotonic()  # before the answer is checked
        error = self._loop.check.error(self._next, body) if error is None else error
        self._next = (self._next + 1) % len(self._requests)
        self._loop.add(self._due, self._sent, now, error)
        self._loop.free(self, now)


class _Loop(ABC):
    """The connections of a measurement, and the outcomes of their requests, as in Timings."""

    def __init__(self, job: LoadJob) -> None:
        self.timeout_s, self.end = job.timeout_s, 0.0
        self.latencies, self.delays = array("d"), array("d")
        self.completed, self.errors = 0, Counter[str]()
        self.check = AnswerCheck(replace(job.expected, protocol=job.protocol))
        self.lanes = [Lane(job, i * 7, self) for i in range(job.connections)]
        self._finished = asyncio.Event()

    def add(self, due: float, sent: float, now: float, error: str | None) -> None:
        """Note that a request is done. An answer that comes later than `timeout_s` after it was due is an error.

        Args:
            due: when it was due, in seconds on this process's clock, as `sent` and `now`.
            sent: when it was sent.
            now: when its answer came, or when it failed.
            error: the kind of the error; None for a good answer.
        """
        if error is None and now - due > self.timeout_s:  # it has waited for a connection, too
            error = TIMEOUT
        if error is None:
            self.latencies.append(now - due)
            self.delays.append(sent - due)
            self.completed += now <= self.end
        else:
            self.errors[error] += 1

    @abstractmethod
    async def run(self, begin: float, end: float) -> None:
        """Send requests, and wait for the answers."""

    @abstractmethod
    def free(self, lane: Lane, now: float) -> None:
        """Note that a lane has its answer, or an error instead."""

    def expire(self, now: float) -> None:  # noqa: B027
        """Drop the requests that have waited too long for a connection."""


class ClosedLoop(_Loop):
    """Each lane sends its next request once the answer has come."""

    def __init__(self, job: LoadJob) -> None:
        super().__init__(job)
        self._running = len(self.lanes)

    async def run(self, begin: float, end: float) -> None:
        self.end = end
        for lane in self.lanes:
            now = time.monotonic()
            lane.start(now, now)
        await self._finished.wait()

    def free(self, lane: Lane, now: float) -> None:
        if now < self.end:
            lane.start(now, now)
            return
        self._running -= 1
        if not self._running:
            self._finished.set()


class OpenLoop(_Loop):
    """Requests are due on a schedule that does not wait for answers.

    A request that finds all connections busy waits, and its latency counts from when it was due: a server that stalls
    delays all requests that were due meanwhile, as it delays users (no coordinated omission).
    """

    def __init__(self, job: LoadJob) -> None:
        super().__init__(job)
        assert job.due is not None
        self._idle = deque(self.lanes)
        self._offsets = job.due
        self._due = np.empty(0)
        self._at = 0  # number of requests that have become due
        self._waiting: deque[float] = deque()

    async def run(self, begin: float, end: float) -> None:
        self.end = end
        self._due = begin + self._offsets
        if not len(self._due):
            return
        loop = asyncio.get_running_loop()
        pacer = threading.Thread(target=self._pace, args=(loop,), daemon=True)
        pacer.start()
        await self._finished.wait()
        pacer.join()

    def _pace(self, loop: asyncio.AbstractEventLoop) -> None:
        """Wake the event loop when requests are due; its own timers have a resolution of a millisecond."""
        wake_on_time()
        at = 0
        while at < len(self._due):
            if (wait := self._due[at] - time.monotonic()) > 0:
                time.sleep(wait)
            loop.call_soon_threadsafe(self._dispatch)
            at = max(at + 1, int(np.searchsorted(self._due, time.monotonic(), side="right")))

    def _dispatch(self) -> None:
        now = time.monotonic()
        while self._at < len(self._due) and self._due[self._at] <= now:
            self._waiting.append(float(self._due[self._at]))
            self._at += 1
        self._send()

    def free(self, lane: Lane, now: float) -> None:
        self._idle.append(lane)
        self._send()

    def _send(self) -> None:
        now = time.monotonic()
        while self._waiting and now - self._waiting[0] > self.timeout_s:  # no connection was free in time
            self._waiting.popleft()
            self.errors[TIMEOUT] += 1
        while self._waiting and self._idle:
            self._idle.popleft().start(self._waiting.popleft(), time.monotonic())
        if self._at == len(self._due) and not self._waiting and len(self._idle) == len(self.lanes):
            self._finished.set()

    def expire(self, now: float) -> None:
        self._send()


def wake_on_time() -> None:
    """Let this thread sleep no longer than it asks for. Linux adds up to 50 microseconds, to wake threads together."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, ctypes.c_ulong(1))


def drive(job: LoadJob) -> Timings:
    """Measure: connect, send requests from job.begin for job.seconds, and wait for the answers."""
    import uvloop

    gc.collect()
    gc.disable()  # a collection would delay answers
    try:
        return uvloop.run(_drive(job))
    finally:
        gc.enable()


async def _drive(job: LoadJob) -> Timings:
    loop: _Loop = ClosedLoop(job) if job.due is None else OpenLoop(job)
    connections = [lane.connection for lane in loop.lanes]
    for i in range(0, len(connections), CONNECT_TOGETHER):
        await asyncio.gather(*(c.connect() for c in connections[i : i + CONNECT_TOGETHER]))
    await asyncio.sleep(max(0.0, job.begin - time.monotonic()))
    begin = max(job.begin, time.monotonic())
    cpu = time.process_time()
    sweeping = asyncio.create_task(_sweep(loop, connections))
    await loop.run(begin, begin + job.seconds)
    share = (time.process_time() - cpu) / (time.monotonic() - begin)
    sweeping.cancel()
    await asyncio.gather(*(c.close() for c in connections))
    return Timings(np.array(loop.latencies), np.array(loop.delays), loop.completed, loop.errors, share)


async def _sweep(loop: _Loop, connections: Sequence[HttpConnection | GrpcConnection]) -> None:
    """End the requests that have taken too long, again and again."""
    while True:
        await asyncio.sleep(SWEEP_S)
        now = time.monotonic()
        loop.expire(now)
        for connection in connections:
            connection.expire(now)
