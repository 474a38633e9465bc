"""Requests of 1 and of 64 rows that 16 connections send to recsys.serve: rows a second, CPU of the server, and tail.

    python -m recsys.train model=dlrm data=criteo data.sample.rows=50000 run_dir=run
    python -m recsys.export run=run output=artefact name=dlrm
    python benchmarks/serving/loads.py artefact [before=CHECKOUT] [rounds=5] [seconds=3]

Each protocol is compared with `POST /predict` and `/recommend`; with `before=`, the same requests also go to a server
of another checkout, round by round. CPU seconds are those of the server alone. A model that retrieves gets one history
a request. Writes benchmarks/results/serving_loads.json or serving_lists.json.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))

from steady import Claim, Sample, measure

HERE = Path(__file__).parents[2]
LOADS = {  # arguments of recsys.loadtest
    "/predict, 64 rows": ("protocol=rows", "batch_sizes=[64]"),
    "JSON tensors, 64 rows": ("protocol=http", "binary=false", "batch_sizes=[64]"),
    "binary tensors, 64 rows": ("protocol=http", "batch_sizes=[64]"),
    "gRPC, 64 rows": ("protocol=grpc", "batch_sizes=[64]"),
    "/predict, 1 row": ("protocol=rows", "batch_sizes=[1]"),
    "binary tensors, 1 row": ("protocol=http", "batch_sizes=[1]"),
    "gRPC, 1 row": ("protocol=grpc", "batch_sizes=[1]"),
}
LISTS = {
    "/recommend, 1 history": ("protocol=rows", "batch_sizes=[1]"),
    "binary tensors, 1 history": ("protocol=http", "batch_sizes=[1]"),
    "gRPC, 1 history": ("protocol=grpc", "batch_sizes=[1]"),
}


def arguments(usage: str | None) -> tuple[Path, dict[str, str]]:
    """Return the artefact and the options of this process, or exit with the usage."""
    words = [a for a in sys.argv[1:] if "=" not in a]
    if len(words) != 1:
        sys.exit(usage)
    return Path(words[0]).resolve(), dict(a.split("=", 1) for a in sys.argv[1:] if "=" in a)


class Server:
    """recsys.serve of a checkout, with one worker. tails: p99 / p50 of each load's rounds"""

    def __init__(self, checkout: Path, artefact: Path, port: int, grpc_port: int | None = None) -> None:
        self.url, self.tails = f"http://127.0.0.1:{port}", dict[str, list[float]]()
        self.grpc = f"127.0.0.1:{grpc_port}"
        ports = [f"port={port}", f"grpc_port={grpc_port or 'null'}"]
        command = [sys.executable, "-m", "recsys.serve", str(artefact), *ports]
        environment = {**os.environ, "PYTHONPATH": str(checkout)}
        self.process = subprocess.Popen(command, env=environment, cwd=checkout, stderr=subprocess.DEVNULL)
        while not self._is_ready():
            if self.process.poll() is not None:
                sys.exit(f"the server of {checkout} has ended with status {self.process.returncode}")

    def _is_ready(self) -> bool:
        try:
            return bool(urllib.request.urlopen(f"{self.url}/v2/health/ready", timeout=1))  # nosec B310 (http only)
        except OSError:
            return False

    def cpu(self) -> float:
        """Return the CPU seconds of the worker: the supervisor sleeps."""
        pid = self.process.pid
        [worker] = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        fields = Path(f"/proc/{worker}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self) -> None:
        """End the server."""
        self.process.terminate()
        self.process.wait()

    def load(self, name: str, artefact: Path, arguments: tuple[str, ...], seconds: str) -> Callable[[], Sample]:
        """Return a round of a load."""

        def run() -> Sample:
            with tempfile.TemporaryDirectory() as folder:
                target = self.grpc if "protocol=grpc" in arguments else self.url
                command = [sys.executable, "-m", "recsys.loadtest", f"target={target}", f"rows={artefact}"]
                command += [*arguments, "concurrency=[16]", f"seconds={seconds}", "warmup_s=0", f"output={folder}/load"]
                before = self.cpu()
                subprocess.run(command, check=True, capture_output=True, text=True, cwd=HERE)
                cpu = self.cpu() - before
                [found] = json.loads(Path(folder, "load", "results.json").read_text())["measurements"]
            if found["errors"]:
                sys.exit(f"{name}: {found['error_kinds']}")
            self.tails.setdefault(name, []).append(found["p99_ms"] / found["p50_ms"])
            rows = found["requests"] * found["batch_size"]
            return Sample(rows, rows / found["rows_per_s"], cpu)

        return run


def pairs(loads: list[str]) -> list[tuple[str, str]]:
    """Return each load of the open inference protocol with the load of as many rows in recsys.serve's own protocol."""
    own = {load.rpartition(", ")[2]: load for load in loads if load.startswith("/")}
    return [(load, own[load.rpartition(", ")[2]]) for load in loads if load not in own.values()]


def main() -> None:
    artefact, options = arguments(__doc__)
    seconds = options.get("seconds", "3")
    lists = "retrieval" in (artefact / "manifest.json").read_text()
    loads = LISTS if lists else LOADS
    checkouts = {"now": HERE} | ({"before": Path(options["before"]).resolve()} if "before" in options else {})
    servers = {
        name: Server(checkout, artefact, 8320 + 2 * i, 8321 + 2 * i)
        for i, (name, checkout) in enumerate(checkouts.items())
    }
    claims = [Claim(f"now, {load}", f"now, {other}") for load, other in pairs(list(loads))]
    if "before" in options:
        claims += [Claim(f"now, {load}", f"before, {load}") for load in loads]
    try:
        measure(
            "serving_lists" if lists else "serving_loads",
            "requests over 16 connections to a server of one worker; CPU seconds of the server",
            {f"{name}, {load}": server.load(load, artefact, arguments, seconds)
             for load, arguments in loads.items() for name, server in servers.items()},
            claims,
            int(options.get("rounds", "5")),
            "rows",
        )  # fmt: skip
    finally:
        for server in servers.values():
            server.stop()
    for name, server in servers.items():
        for load, tails in server.tails.items():
            print(f"{name}, {load}: p99 / p50 {statistics.median(tails):.2f} ({min(tails):.2f} - {max(tails):.2f})")


if __name__ == "__main__":
    main()
