"""Measure an exported model: alone, behind recsys.serve with and without batching, and behind Triton and KServe.

    python -m recsys.train model=dlrm data=criteo data.sample.rows=60000 trainer.max_epochs=1 run_dir=run
    python -m recsys.export run=run output=artefact name=dlrm format=single_graph triton=true dense_backend=python \\
        python_path=$PWD
    python benchmarks/serving/compare.py artefact triton=triton_environment kserve=kserve_environment [rounds=3]

Loads alternate between the servers, round by round, in one run on one machine; `python -m recsys.loadtest` sends them.
Writes benchmarks/results/serving_alone.csv and serving_servers.csv: the median of each figure over the rounds. Leave
`triton=` or `kserve=` out to measure without that server.
"""

from __future__ import annotations

import csv
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from recsys.export.artefact import load
from recsys.export.artefact.graph_io import SingleGraph

HERE = Path(__file__).parent
RESULTS = HERE.parent / "results"
SECONDS = "4"
REPEATS = {1: 3000, 64: 400, 1024: 40}  # calls of each batch size in a round
LOADS = (("one row, 1 connection", 1, 1), ("one row, 16 connections", 1, 16), ("64 rows, 16 connections", 64, 16))


@dataclass(frozen=True)
class Server:
    """A server that runs. target: its URL; protocol: of recsys.loadtest"""

    name: str
    process: subprocess.Popen[bytes]
    target: str
    protocol: str


def start(name: str, command: list[str], target: str, protocol: str = "http") -> Server:
    """Start a server and wait until it is ready."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    for _ in range(1200):
        try:
            with urllib.request.urlopen(f"{target}/v2/health/ready", timeout=1):  # nosec B310 (http only)
                return Server(name, process, target, protocol)
        except (urllib.error.URLError, OSError):
            if process.poll() is not None:
                sys.exit(f"{name} ended with status {process.returncode}: {' '.join(command)}")
            time.sleep(0.25)
    sys.exit(f"{name} is not ready after 5 minutes")


def servers(artefact: Path, options: dict[str, str]) -> list[Server]:
    """Start the servers that are measured."""
    serve = [sys.executable, "-m", "recsys.serve", str(artefact), "grpc_port=null"]
    ours = start("recsys.serve", [*serve, "port=8310"], "http://127.0.0.1:8310")
    alone = start("recsys.serve, max_batch=1", [*serve, "port=8311", "max_batch=1"], "http://127.0.0.1:8311")
    two = [*serve, "port=8317", "workers=2"]
    found = [
        Server("recsys.serve, POST /predict", ours.process, ours.target, "rows"),
        Server("recsys.serve, POST /predict, max_batch=1", alone.process, alone.target, "rows"),
        start("recsys.serve, POST /predict, workers=2", two, "http://127.0.0.1:8317", "rows"),
        ours,
        alone,
    ]
    if "triton" in options:
        more = ["http=8312", "grpc=8313", "metrics=8314", "packages=[onnxruntime,polars,xxhash,orjson,rich,omegaconf]"]
        environment = f"environment={options['triton']}"
        command = [sys.executable, str(HERE / "triton.py"), "serve", str(artefact / "triton"), environment, *more]
        found.append(start("Triton, Python backend", command, "http://127.0.0.1:8312"))
    if "kserve" in options:
        environment = f"environment={options['kserve']}"
        command = [sys.executable, str(HERE / "kserve_model.py"), "serve", str(artefact), environment]
        found.append(start("KServe", [*command, "http=8315", "grpc=8316"], "http://127.0.0.1:8315"))
    return found


def measure_load(server: Server, artefact: Path, rows: int, connections: int) -> dict[str, float]:
    """Return the figures of one load."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "load"
        command = [sys.executable, "-m", "recsys.loadtest", f"target={server.target}", f"rows={artefact}"]
        command += [
            f"protocol={server.protocol}",
            "model=dlrm",
            f"batch_sizes=[{rows}]",
            f"concurrency=[{connections}]",
        ]
        subprocess.run([*command, f"seconds={SECONDS}", f"output={output}"], check=True, capture_output=True)
        [found] = json.loads((output / "results.json").read_text())["measurements"]
    return {n: found[n] for n in ("requests_per_s", "rows_per_s", "p50_ms", "p99_ms", "errors", "client_cpu")}


def alone(artefact: Path) -> dict[str, Callable[[int], object]]:
    """Return the ways to score rows in this process: functions of the number of rows."""
    rows = json.loads((artefact / "examples.json").read_text())["rows"]
    rows = [rows[i % len(rows)] for i in range(max(REPEATS))]
    columns = {name: [row.get(name) for row in rows] for name in rows[0]}
    model = load(artefact)
    feeds = {n: {k: np.ascontiguousarray(x) for k, x in model.features(rows[:n]).feed.items()} for n in REPEATS}
    ways: dict[str, Callable[[int], object]] = {
        "rows: transforms": lambda n: model.features(rows[:n]),
        "columns: transforms": lambda n: model.features_of_columns({k: v[:n] for k, v in columns.items()}, n),
        "rows to predictions": lambda n: model.run(model.features(rows[:n])),
        "features to predictions": lambda n: model.run_tensors(feeds[n]),
    }
    if (artefact / "single_graph.onnx").is_file():
        graph = SingleGraph(artefact / "single_graph.onnx")
        raw = {n: graph.feed(rows[:n]) for n in REPEATS}
        ways["one graph: raw tensors to predictions"] = lambda n: graph.session.run(None, raw[n])
    return ways


def write(name: str, rows: list[dict[str, object]]) -> None:
    RESULTS.mkdir(exist_ok=True)
    with (RESULTS / name).open("w", newline="") as f:
        writer = csv.DictWriter(f, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    for row in rows:
        print(", ".join(f"{k} {v}" for k, v in row.items()))


def measure_alone(artefact: Path, rounds: int) -> None:
    """Measure the artefact in this process, on one thread."""
    ways = alone(artefact)
    times: dict[tuple[str, int], list[float]] = {}
    for _ in range(rounds):
        for n, repeats in REPEATS.items():
            for name, score in ways.items():
                score(n)
                for _ in range(repeats):
                    started = time.perf_counter()
                    score(n)
                    times.setdefault((name, n), []).append(time.perf_counter() - started)
    found: list[dict[str, object]] = []
    for (name, n), x in times.items():
        p50, p99 = (float(np.percentile(x, q)) for q in (50, 99))
        found.append({"what": name, "rows": n, "p50_us": round(p50 * 1e6, 1), "p99_us": round(p99 * 1e6, 1),
                      "rows_per_s": round(n / p50)})  # fmt: skip
    write("serving_alone.csv", found)


def measure_servers(artefact: Path, options: dict[str, str], rounds: int) -> None:
    """Measure all servers, a load at a time."""
    running = servers(artefact, options)
    loads = [*LOADS, ("one row, 64 connections", 1, 64)]
    figures: dict[tuple[str, str], list[dict[str, float]]] = {}
    try:
        for i in range(rounds):
            for load_name, rows, connections in loads:
                for server in running:
                    print(f"round {i + 1}: {server.name}, {load_name}", file=sys.stderr)
                    found = measure_load(server, artefact, rows, connections)
                    figures.setdefault((load_name, server.name), []).append(found)
    finally:
        for server in running:
            os.killpg(server.process.pid, signal.SIGTERM) if server.process.poll() is None else None
    medians: list[dict[str, object]] = []
    for (load_name, name), values in figures.items():
        own = {n: round(statistics.median(v[n] for v in values), 3) for n in values[0]}
        medians.append({"load": load_name, "server": name, **own})
    write("serving_servers.csv", medians)


def main() -> None:
    words = [a for a in sys.argv[1:] if "=" not in a]
    options = dict(a.split("=", 1) for a in sys.argv[1:] if "=" in a)
    if len(words) != 1:
        sys.exit(__doc__)
    artefact, rounds = Path(words[0]), int(options.get("rounds", "3"))
    measure_alone(artefact, rounds)
    measure_servers(artefact, options, rounds)


if __name__ == "__main__":
    main()
