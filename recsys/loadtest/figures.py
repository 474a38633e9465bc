"""The figures of measurements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from recsys.loadtest.client_processes import Load
from recsys.loadtest.drive import Timings
from recsys.loadtest.server_times import ServerTimes

BUSY = 0.9  # share of a core from which the client itself may be the limit
LATE = 0.2  # share of the mean latency from which requests count as sent late
PERCENTILES = {"p50_ms": 50, "p90_ms": 90, "p99_ms": 99, "p999_ms": 99.9}


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """The figures of one load. Times are milliseconds, None if the server does not count them or no request succeeded.

    connections: number of connections; in a closed loop the number of requests under way
    offered_per_s: rate at which an open loop sends requests; None for a closed loop
    requests: number of requests that were answered
    errors: number of requests that failed; error_kinds says how
    client_ms: mean time from when a request was due to when it was sent, which needs a free connection
    other_ms: mean time in the server outside the queue and the model, such as reading the request
    network_ms: mean time that neither the client nor the server counts: the network, and the server's HTTP or gRPC
    client_cpu: share of a core that the busiest client process used
    """

    batch_size: int
    connections: int
    offered_per_s: float | None
    requests: int
    errors: int
    error_kinds: dict[str, int]
    requests_per_s: float
    rows_per_s: float
    mean_ms: float | None = None
    p50_ms: float | None = None
    p90_ms: float | None = None
    p99_ms: float | None = None
    p999_ms: float | None = None
    client_ms: float | None = None
    network_ms: float | None = None
    queue_ms: float | None = None
    compute_ms: float | None = None
    other_ms: float | None = None
    client_cpu: float

    @property
    def client_limited(self) -> bool:
        """Return whether the client may have been the limit, and not the server."""
        return self.client_cpu > BUSY

    @property
    def sent_late(self) -> bool:
        """Return whether a large part of the latency passed before the requests of an open loop were sent."""
        return self.client_ms is not None and self.mean_ms is not None and self.client_ms > LATE * self.mean_ms


COLUMNS = tuple(f.name for f in fields(Measurement))


def measurement(load: Load, seconds: float, timings: Timings, server: ServerTimes | None) -> Measurement:
    """Return the figures of a measurement that took `seconds`.

    Args:
        load: the load that was offered.
        timings: the outcomes of the requests.
        server: the server's own times; None leaves out the shares of network, queue and model.
    """
    latencies = timings.latencies * 1e3
    times: dict[str, float] = {}
    if len(latencies):
        values = np.percentile(latencies, list(PERCENTILES.values()))
        mean, client = float(latencies.mean()), float(timings.delays.mean() * 1e3)
        times = dict(zip(PERCENTILES, map(float, values), strict=True)) | {"mean_ms": mean, "client_ms": client}
        if server is not None:
            total, queue, compute = server.total * 1e3, server.queue * 1e3, server.compute * 1e3
            times |= {"network_ms": max(0.0, mean - client - total), "queue_ms": queue, "compute_ms": compute}
            times["other_ms"] = max(0.0, total - queue - compute)
    return Measurement(
        batch_size=load.batch_size,
        connections=load.connections,
        offered_per_s=load.rate,
        requests=len(latencies),
        errors=timings.errors.total(),
        error_kinds=dict(sorted(timings.errors.items())),
        requests_per_s=timings.completed / seconds,
        rows_per_s=timings.completed * load.batch_size / seconds,
        client_cpu=timings.cpu,
        **times,
    )


def within_slo(measurements: Sequence[Measurement], slo_ms: float) -> dict[int, Measurement]:
    """Return the measurement with the most rows per second of each batch size whose p99 is at most `slo_ms`.

    Measurements with errors do not count.
    """
    best: dict[int, Measurement] = {}
    for m in measurements:
        if m.errors or m.p99_ms is None or m.p99_ms > slo_ms:
            continue
        if m.batch_size not in best or m.rows_per_s > best[m.batch_size].rows_per_s:
            best[m.batch_size] = m
    return best
