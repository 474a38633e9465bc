"""The command, its figures and files, the times that servers count, and every mistake that a user can make."""

import csv
import json
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from v2_server import Toy, serving

from recsys.base.errors import UserError
from recsys.loadtest.client_processes import Load, merge
from recsys.loadtest.drive import Timings
from recsys.loadtest.endpoint import Endpoint
from recsys.loadtest.figures import Measurement, measurement, notes, within_slo
from recsys.loadtest.grpc_target import GrpcTarget
from recsys.loadtest.measure_loads import make_loads, prepare
from recsys.loadtest.server_times import ServerTimes, from_metrics, from_statistics, mean_times, reader
from recsys.loadtest.target import HttpTarget
from recsys.schema.command_schemas import LoadTestConfig

OURS = """
# TYPE recsys_seconds histogram
recsys_seconds_bucket{model="toy",version="1",part="queue",le="0.5"} 4.0
recsys_seconds_count{model="toy",version="1",part="queue"} 4.0
recsys_seconds_sum{model="toy",version="1",part="queue"} 0.004
recsys_seconds_count{model="toy",version="1",part="features"} 2.0
recsys_seconds_sum{model="toy",version="1",part="features"} 0.004
recsys_seconds_count{model="toy",version="1",part="model"} 2.0
recsys_seconds_sum{model="toy",version="1",part="model"} 0.006
recsys_seconds_count{model="toy",version="1",part="total"} 4.0
recsys_seconds_sum{model="toy",version="1",part="total"} 0.04
recsys_seconds_sum{model="other",version="1",part="total"} 99.0
"""


COUNTS = {"success": {"count": 4, "ns": 40_000_000}, "fail": {"count": 9, "ns": 90_000_000}}
COUNTS |= {"queue": {"count": 4, "ns": 4_000_000}, "compute_infer": {"count": 4, "ns": 20_000_000}}
STATISTICS = {"model_stats": [{"name": "toy", "inference_stats": COUNTS}]}


TRITON = (Path(__file__).parent / "triton_metrics.txt").read_text()  # of Triton 2.51, after a load test


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.csv"
    path.write_text("name,price\na,1.5\nb,2\n")
    return path


@pytest.fixture(scope="module")
def http() -> Iterator[Toy]:
    with serving(Toy()) as toy:
        yield toy


@pytest.fixture(scope="module")
def rpc() -> Iterator[Toy]:
    with serving(Toy(), "grpc") as toy:
        yield toy


def command(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "recsys.loadtest", *arguments]
    return subprocess.run(line, cwd=folder, capture_output=True, text=True, timeout=60)


def test_the_command_writes_what_it_measures(tmp_path: Path, rows: Path) -> None:
    with serving(Toy(delay=0.02, status={40: "503"}, stats=STATISTICS)) as toy:
        target = f"target=http://127.0.0.1:{toy.port}"
        load = ("concurrency=[2,4]", "batch_sizes=[1,2]", "seconds=0.4", "warmup_s=0.1", "processes=2", "slo_ms=1000")
        done = command(target, "model=toy", f"rows={rows}", *load, "output=out", "token=hidden", folder=tmp_path)
    assert (done.returncode, "503: 1" in done.stderr) == (0, True), done.stderr

    written = json.loads((tmp_path / "out" / "results.json").read_text())
    measured = written["measurements"]
    assert [(m["batch_size"], m["connections"]) for m in measured] == [(1, 2), (1, 4), (2, 2), (2, 4)]
    assert all(20 <= m["p50_ms"] < 90 and m["p50_ms"] <= m["p99_ms"] <= m["p999_ms"] for m in measured)
    assert all(m["rows_per_s"] == m["requests_per_s"] * m["batch_size"] > 0 for m in measured)
    assert sum(m["errors"] for m in measured) == 1 and not any(m["client_limited"] for m in measured)
    assert sum(m["requests"] for m in measured) + 1 < len(toy.seen)  # less the requests of the warm-up
    table = list(csv.DictReader((tmp_path / "out" / "results.csv").open()))
    assert [float(r["p50_ms"]) for r in table] == [m["p50_ms"] for m in measured]
    assert Counter(r["error_kinds"] for r in table) == {"": 3, "status_503=1": 1}
    assert (
        "hidden" not in done.stdout + done.stderr + json.dumps(written) + (tmp_path / "out/load_test.html").read_text()
    )


def test_an_open_loop_over_grpc(tmp_path: Path, rows: Path) -> None:
    """The server's statistics say 3 ms a request, 1 ms of it in the queue and 1 ms in the model."""
    with serving(Toy(delay=0.01), "grpc") as toy:
        load = ("rate=[50,100]", "arrivals=fixed", "batch_sizes=2", "seconds=0.5", "warmup_s=0", "output=out")
        where = (f"target=127.0.0.1:{toy.port}", "protocol=grpc", f"rows={rows}")
        done = command(*where, *load, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    measured = json.loads((tmp_path / "out" / "results.json").read_text())["measurements"]
    assert [(m["offered_per_s"], m["requests"], m["errors"]) for m in measured] == [(50, 25, 0), (100, 50, 0)]
    assert all((m["queue_ms"], m["compute_ms"]) == (pytest.approx(1), pytest.approx(1)) for m in measured)
    for m in measured:
        assert m["mean_ms"] == pytest.approx(m["client_ms"] + m["network_ms"] + 3) and m["mean_ms"] >= 10
    assert toy.messages[1].model_name == "toy" and list(toy.messages[1].inputs[0].shape) == [2, 1]
    assert "parts of the mean latency" in done.stdout


def test_mistakes_end_the_command(tmp_path: Path, rows: Path) -> None:
    done = command("target=127.0.0.1:1", f"rows={rows}", folder=tmp_path)
    assert done.returncode == 2 and not done.stdout
    assert done.stderr.startswith("error: target=127.0.0.1:1: refuses the connection") and done.stderr.count("\n") == 1


def test_a_server_that_goes_away_leaves_its_first_measurements(tmp_path: Path, rows: Path) -> None:
    with serving(Toy(delay=0.001)) as toy:
        load = ("concurrency=[2,4]", "batch_sizes=1", "seconds=1", "warmup_s=0", "output=out")
        line = [sys.executable, "-m", "recsys.loadtest", f"target=127.0.0.1:{toy.port}", f"rows={rows}", *load]
        started = subprocess.Popen(line, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        while len(toy.seen) < 100:
            time.sleep(0.01)
    shown, said = started.communicate(timeout=60)
    assert started.returncode == 2 and "does not take 4 connections" in said.splitlines()[-1]
    [m] = json.loads((tmp_path / "out" / "results.json").read_text())["measurements"]
    assert m["requests"] >= 90 and m["error_kinds"]["connection"] > 2 and "load test of toy" in shown


def config(toy: Toy, rows: Path, **changes: Any) -> LoadTestConfig:
    given = {"target": f"127.0.0.1:{toy.port}", "rows": str(rows), "concurrency": [1], "batch_sizes": [1]} | changes
    return LoadTestConfig(**given)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_name": "tou"}, "model=tou: the server {address} has no such model; did you mean toy?"),
        ({"model_name": "toy", "version": "9"}, "model=toy, version 9: "),
        ({"protocol": "grpc"}, "target={address}: "),
        ({"target": "nowhere.invalid"}, "target=nowhere.invalid:80: cannot be reached"),
        ({"metrics": "h:1"}, "metrics=h:1: is not an address"),
        ({"metrics": "http://{address}/v2"}, "metrics=http://{address}/v2: has no metrics"),
    ],
)
def test_mistakes(http: Toy, rows: Path, changes: dict[str, Any], message: str) -> None:
    address = f"127.0.0.1:{http.port}"
    changes = {k: v.replace("{address}", address) for k, v in changes.items()}
    with pytest.raises(UserError) as caught:  # noqa: PT012  (the second line is reached if the first does not raise)
        plan = prepare(config(http, rows, **changes))
        reader(plan.target, plan.model.name, plan.settings.metrics)
    assert str(caught.value).startswith(message.replace("{address}", address)) and "\n" not in str(caught.value)


def test_the_wrong_protocol(http: Toy, rpc: Toy, rows: Path) -> None:
    for toy, protocol, hint in ((http, "grpc", "http"), (rpc, "http", "grpc")):
        with pytest.raises(UserError, match=f"does not .*add protocol={hint}$"):
            prepare(config(toy, rows, protocol=protocol))
    with serving(Toy(speaks_v2=False)) as toy:
        with pytest.raises(UserError, match=r"does not speak the open inference protocol v2 .* add protocol=rows"):
            prepare(config(toy, rows))
        assert prepare(config(toy, rows, protocol="rows")).requests[1][0].startswith(b"POST /predict ")


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_closed_ports(rows: Path, protocol: str) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        toy = Toy(port=free.getsockname()[1])
        with pytest.raises(UserError, match="refuses the connection; start the server, or correct the port"):
            prepare(config(toy, rows, protocol=protocol))


def test_the_only_model_need_not_be_named(http: Toy, rows: Path) -> None:
    assert prepare(config(http, rows)).model.name == "toy"
    with serving(Toy(has_index=False)) as toy:
        assert prepare(config(toy, rows)).model.name == "toy"
    target = HttpTarget(Endpoint("127.0.0.1", http.port))
    for names, listed in ((["a", "b"], r"several models \(a, b\)"), ([], "no list of its models")):
        target.models = lambda names=names: names  # type: ignore[method-assign]
        with pytest.raises(UserError, match=f"^model: is missing, and the server .* has {listed}; add model=NAME$"):
            target.only_model()


def test_loads(rows: Path) -> None:
    toy = Toy()
    closed = list(make_loads(config(toy, rows, concurrency=[1, 8, 8], batch_sizes=4)))
    assert closed == [Load(4, 1), Load(4, 8)]
    opened = list(make_loads(config(toy, rows, rate=[10, 20.5], arrivals="fixed", connections=3)))
    assert opened == [Load(1, 3, 10.0, False), Load(1, 3, 20.5, False)]


def timings(milliseconds: Any, **changes: Any) -> Timings:
    latencies = np.array(milliseconds, dtype=float) / 1e3
    made = Timings(latencies, np.zeros(len(latencies)), len(latencies), Counter(), 0.5)
    return replace(made, **changes)


def test_figures() -> None:
    parts = [timings(range(1, 501), cpu=0.2), timings(range(501, 1002), errors=Counter(timeout=2))]
    m = measurement(Load(8, 4), 2.0, merge(parts), ServerTimes(0.4, 0.1, 0.2))
    assert (m.p50_ms, m.p90_ms, m.p99_ms, m.p999_ms) == tuple(map(pytest.approx, (501, 901, 991, 1000)))
    assert (m.requests, m.requests_per_s, m.rows_per_s, m.client_cpu) == (1001, 500.5, 4004, 0.5)
    assert (m.errors, m.error_kinds, m.client_limited) == (2, {"timeout": 2}, False)
    assert (m.mean_ms, m.network_ms) == (pytest.approx(501), pytest.approx(101))
    assert (m.queue_ms, m.compute_ms, m.other_ms) == tuple(map(pytest.approx, (100, 200, 100)))
    none = measurement(Load(8, 4), 2.0, timings([]), None)
    assert none.p99_ms is None and none.rows_per_s == 0 and none.network_ms is None


def measured(size: int, connections: int, milliseconds: float, **changes: Any) -> Measurement:
    made = measurement(Load(size, connections), 1.0, timings([milliseconds] * connections), None)
    return replace(made, **changes)


def test_the_most_throughput_within_a_limit() -> None:
    ones = [measured(1, 2, 3), measured(1, 4, 9), measured(1, 8, 11), measured(1, 16, 5, errors=1)]
    assert within_slo(ones, 10) == {1: ones[1]} and within_slo(ones, 1) == {}
    assert notes(ones, 10) == ["batch size 1: at most 4 rows/s with a p99 within 10 ms, at 4 connections"]
    assert notes(ones[:1], 1) == ["batch size 1: no load has a p99 within 1 ms and no errors"]


@pytest.mark.parametrize("sums", [from_metrics(OURS, "toy"), from_statistics(STATISTICS)])
def test_the_times_of_a_server(sums: Any) -> None:
    """Four requests of 10 ms each, 1 ms in the queue and 5 ms in the model."""
    times = mean_times({}, sums)
    assert times is not None and (times.total, times.queue, times.compute) == tuple(
        map(pytest.approx, (0.01, 0.001, 0.005))
    )
    assert mean_times(sums, sums) is None and mean_times({}, {}) is None
    assert from_metrics(OURS, "unknown") == {} == from_metrics("{nonsense", None)


def test_the_metrics_of_a_real_triton() -> None:
    """The parser adds `_total` to the names of a page that types its counters, as Triton's does."""
    untyped = "".join(line for line in TRITON.splitlines(keepends=True) if not line.startswith("#"))
    for page in (TRITON, untyped):
        times = mean_times({}, from_metrics(page, "identity"))
        assert times is not None and times.total == pytest.approx(2.111675 / 9708)
        assert times.queue == pytest.approx(0.743732 / 9708)
        assert times.compute == pytest.approx((0.104417 + 0.973911 + 0.267678) / 9708)
        assert from_metrics(page, "unknown") == {}


def test_where_times_are_read() -> None:
    for toy, expected in ((Toy(stats=STATISTICS), 0.01), (Toy(metrics=OURS), 0.01), (Toy(), None)):
        with serving(toy):
            target = HttpTarget(Endpoint("127.0.0.1", toy.port))
            read = reader(target, "toy", None)
            times = mean_times({}, read()) if read else None
            assert (times.total if times else None) == (expected and pytest.approx(expected))
            if toy.metrics:
                named = reader(target, "toy", f"http://127.0.0.1:{toy.port}/metrics")
                assert named is not None and named() == read()
    with serving(Toy(messages=[1, 2]), "grpc") as toy:
        read = reader(GrpcTarget(Endpoint("127.0.0.1", toy.port)), "toy", None)
        assert read is not None and mean_times({}, read()) == ServerTimes(*map(pytest.approx, (0.003, 0.001, 0.001)))
