"""Closed and open loops against a server whose delay, stalls and failures are known."""

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from v2_server import Toy, serving

from recsys.loadtest.client_processes import due_times
from recsys.loadtest.drive import LoadJob, Timings, drive
from recsys.loadtest.encode_tensors import InputSpec
from recsys.loadtest.endpoint import Endpoint, TargetModel
from recsys.loadtest.requests import encode_binary, encode_grpc

ROWS = [{"name": "a", "price": 1.0}]
MODEL = TargetModel("toy", None, (InputSpec("name", "BYTES", (-1, 1)), InputSpec("price", "FP32", (-1,))))


def run(toy: Toy, protocol: str = "http", **changes: Any) -> Timings:
    endpoint = Endpoint("127.0.0.1", toy.port)
    encoded = encode_grpc(MODEL, ROWS) if protocol == "grpc" else encode_binary(endpoint, MODEL, ROWS)
    job = {"connections": 4, "seconds": 0.6, "timeout_s": 2.0, "due": None, "begin": time.monotonic()} | changes
    return drive(LoadJob(protocol, endpoint, [encoded], **job))


@pytest.fixture(params=["http", "grpc"])
def protocol(request: pytest.FixtureRequest) -> Iterator[str]:
    return request.param


def test_closed_loop_measures_the_servers_delay(protocol: str) -> None:
    with serving(Toy(delay=0.03), protocol) as toy:
        timings = run(toy, protocol)
    assert 0.03 <= np.median(timings.latencies) < 0.09  # tests share the cores
    assert timings.latencies.min() >= 0.029 and not timings.errors
    received = len(toy.seen) + len(toy.messages)
    assert len(timings.latencies) == received and received - 4 <= timings.completed <= received
    assert 4 * 0.6 / 0.09 < timings.completed <= 4 * 0.6 / 0.03  # Little's law: 4 requests are under way


def test_requests_are_sent_in_turn() -> None:
    with serving(Toy()) as toy:
        endpoint = Endpoint("127.0.0.1", toy.port)
        requests = [encode_binary(endpoint, MODEL, [{"name": f"row {i}", "price": i}]) for i in range(10)]
        drive(LoadJob("http", endpoint, requests, 1, 0.6, 2.0, None, time.monotonic()))
    sent = [requests.index(head + b"\r\n\r\n" + body) for head, body in toy.seen]
    assert len(sent) > 10 and sent == [i % 10 for i in range(len(sent))]


def test_open_loop_keeps_the_rate_whatever_the_delay(protocol: str) -> None:
    with serving(Toy(delay=0.1), protocol) as toy:
        timings = run(toy, protocol, connections=32, due=due_times(100, 0.6, poisson=False))
    assert len(timings.latencies) == 60 and not timings.errors
    assert 0.1 <= np.median(timings.latencies) < 0.2
    assert np.median(timings.delays) < 0.05  # connections were free


def test_no_coordinated_omission() -> None:
    """A server stalls for 0.4 s. An open loop sees all requests that were due meanwhile, a closed loop one each."""
    stall = {"stall_s": 0.4, "stall_at": 40}
    with serving(Toy(**stall)) as toy:
        opened = run(toy, due=due_times(200, 1.0, poisson=False), seconds=1.0)
    assert len(opened.latencies) == 200
    assert np.sum(opened.latencies > 0.05) >= 60  # 0.35 s of 200 requests per second
    assert np.sum(opened.latencies > 0.3) >= 15 and np.percentile(opened.latencies, 99) > 0.35
    assert np.percentile(opened.delays, 99) > 0.25  # 4 connections: most of it is waiting for one of them
    with serving(Toy(delay=0.002, **stall)) as toy:
        closed = run(toy, seconds=1.0)
    assert 1 <= np.sum(closed.latencies > 0.3) <= 4 and np.percentile(closed.latencies, 95) < 0.3


def test_errors_are_counted_by_kind() -> None:
    status = {5: "503", 6: "429", 9: "503", 12: "drop", 15: "hang"}
    with serving(Toy(delay=0.005, status=status)) as toy:
        timings = run(toy, timeout_s=1.0)
    assert timings.errors == {"status 503": 2, "status 429": 1, "connection": 1, "timeout": 1}
    assert len(timings.latencies) == len(toy.seen) - 5


def test_a_server_that_closes_connections_causes_no_errors() -> None:
    with serving(Toy(status=dict.fromkeys(range(0, 10_000, 3), "close"))) as toy:
        timings = run(toy, connections=2, seconds=0.3)
    assert not timings.errors and len(timings.latencies) == len(toy.seen) > 20


def test_a_server_that_goes_away() -> None:
    """Requests fail, at a pace that leaves the client idle."""
    with serving(Toy()) as toy:
        job = LoadJob("http", Endpoint("127.0.0.1", toy.port), [b"GET /v2 HTTP/1.1\r\n\r\n"], 1, 0.5, 1.0, None, 0.0)
        toy.status = dict.fromkeys(range(100_000), "drop")
        timings = run(toy, connections=2, seconds=0.3)
    assert timings.errors.keys() == {"connection"} and not len(timings.latencies)
    with pytest.raises(OSError, match=r"refused|failed"):
        drive(job)


def test_an_answer_that_comes_too_late_after_its_due_time_is_a_timeout(protocol: str) -> None:
    """Three times as many requests are due as the server takes: none waits 0.4 s alone, and most do in all."""
    with serving(Toy(delay=0.1), protocol) as toy:
        timings = run(toy, protocol, connections=4, due=due_times(120, 1.0, poisson=False), seconds=1.0, timeout_s=0.4)
    assert len(timings.latencies) > 10 and timings.latencies.max() <= 0.4
    assert timings.errors == {"timeout": 120 - len(timings.latencies)}


@settings(deadline=None, max_examples=50)
@given(st.floats(1, 3000), st.floats(0.1, 5), st.integers(1, 4), st.booleans())
def test_due_times(rate: float, seconds: float, parts: int, poisson: bool) -> None:
    """Together the processes send `rate` requests per second, in order, none after the end."""
    times = [due_times(rate, seconds, poisson, part, parts) for part in range(parts)]
    count, mean = sum(map(len, times)), rate * seconds
    assert all((np.diff(t) >= 0).all() and (t < seconds + 1 / rate).all() for t in times)
    assert abs(count - mean) <= (6 * mean**0.5 + 1 if poisson else 1)
    if not poisson:
        assert all(np.allclose(np.diff(t), parts / rate) for t in times)  # each process at an even pace
        assert np.allclose(np.sort(np.concatenate(times)), np.arange(count) / rate)


def test_poisson_arrivals_are_exponential() -> None:
    gaps = np.diff(due_times(1000, 20, poisson=True))
    assert gaps.mean() == pytest.approx(1e-3, rel=0.05) and gaps.std() == pytest.approx(1e-3, rel=0.05)
