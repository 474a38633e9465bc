"""Measurements in client processes of their own, so that this one can show the progress."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.pool import Pool

import numpy as np

from recsys.base.errors import UserError
from recsys.loadtest.answers import ExpectedAnswer
from recsys.loadtest.drive import LoadJob, Timings, drive
from recsys.loadtest.endpoint import Endpoint

CONNECT_S = 0.2  # from the order to the beginning of a measurement; more connections take longer
PER_CONNECTION_S = 0.001
Tick = Callable[[float], None]  # called with seconds that have passed

TICK_S = 0.2  # between two updates of the progress bar


@dataclass(frozen=True)
class Load:
    """The load of a measurement.

    connections: number of connections; in a closed loop each has one request under way
    rate: requests per second of an open loop; None for a closed loop
    poisson: whether the times between the requests of an open loop are exponential; they are equal otherwise
    """

    batch_size: int
    connections: int
    rate: float | None = None
    poisson: bool = True


def due_times(rate: float, seconds: float, poisson: bool, part: int = 0, parts: int = 1) -> np.ndarray:
    """Return when the requests of one of several processes are due, which together send `rate` requests per second.

    Args:
        poisson: whether the requests come at random, as a Poisson process, instead of at equal intervals.
        part: number of this process, from 0.
        parts: number of processes.

    Returns:
        Seconds from the beginning, in increasing order, below `seconds`.
    """
    if not poisson:
        every = np.arange(round(rate * seconds)) / rate
        return every[part::parts]
    random = np.random.default_rng(part)
    mean = rate / parts * seconds
    # a Poisson process, given its number of events
    return np.sort(random.uniform(0, seconds, random.poisson(mean)))  # nosec B311


class Clients:
    """Client processes. Use it in a `with` block, which ends them.

    Args:
        timeout_s: seconds after which an answer is an error.
    """

    def __init__(self, processes: int, protocol: str, endpoint: Endpoint, timeout_s: float) -> None:
        self._number, self._protocol, self._endpoint, self._timeout = processes, protocol, endpoint, timeout_s
        # Ctrl-C is left to this process, which ends the others
        self._pool: Pool = get_context("spawn").Pool(processes, signal.signal, (signal.SIGINT, signal.SIG_IGN))

    def __enter__(self) -> Clients:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.terminate()
        self._pool.join()

    def measure(
        self, load: Load, requests: Sequence[bytes], seconds: float, tick: Tick, expected: ExpectedAnswer
    ) -> Timings:
        """Send requests for some seconds, and wait for their answers.

        Args:
            requests: the requests, which are repeated.
            tick: called again and again with the seconds that have passed, together `seconds`.
            expected: what the answers must have.

        Raises:
            UserError: the server does not take the connections.
        """
        parts, jobs = min(self._number, load.connections), []
        begin = time.monotonic() + CONNECT_S + PER_CONNECTION_S * load.connections
        for part in range(parts):
            connections = len(range(part, load.connections, parts))
            due = None if load.rate is None else due_times(load.rate, seconds, load.poisson, part, parts)
            timing = (seconds, self._timeout, due, begin)
            jobs.append(LoadJob(self._protocol, self._endpoint, requests, connections, *timing, expected))
        outcome = self._pool.map_async(drive, jobs, chunksize=1)
        last, end = begin, begin + seconds
        while not outcome.ready():
            outcome.wait(TICK_S)
            if time.monotonic() > end + 2 * self._timeout + 60:  # the last request may have waited before it was sent
                raise RuntimeError("a client process has ended without a result")
            if (now := min(time.monotonic(), end)) > last:
                tick(now - last)
                last = now
        tick(end - last)
        try:
            return merge(outcome.get())
        except OSError as e:
            where = f"target={self._endpoint.address}"
            raise UserError(f"{where}: does not take {load.connections} connections ({e.strerror or e})") from e


def merge(parts: Sequence[Timings]) -> Timings:
    """Return the timings of all processes together. cpu: of the busiest process"""
    return Timings(
        np.concatenate([p.latencies for p in parts]),
        np.concatenate([p.delays for p in parts]),
        sum(p.completed for p in parts),
        sum((p.errors for p in parts), Counter[str]()),
        max(p.cpu for p in parts),
    )
