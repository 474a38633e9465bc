"""python benchmarks/serving/deltas.py FOLDER [ROUNDS] [VALUES]

How long requests take while a server applies a delta, beside a server at rest and one that reloads a full artefact.

In FOLDER, a DLRM with 26 tables of VALUES (100,000) rows of 16 columns is trained, and then another run that goes on
from it with 1 % of the values, of which a tenth are new. The first run is exported in full, the second as a delta, and
`recsys.export apply` makes a full artefact of both. Then two servers with one worker each run side by side:

    deltas         its version changes to the delta, which it applies
    full reloads   its version changes to the full artefact, which is loaded as if no other were there

Rounds (6) alternate: both at rest, a delta, a full reload; then both return to the first version, and what was applied
is removed. Both servers get 100 requests a second of 1 or 16 rows at fixed times (open loop), and the time of a request
counts from when it was due. What is not at rest counts from the change of serving.json until the worker has loaded the
version. benchmarks/results/serving_deltas.csv gets all figures.
"""

from __future__ import annotations

import asyncio
import csv
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import hold
import numpy as np
import polars as pl

from recsys.export.artefact import load as load_artefact

RESULTS = Path(__file__).parents[1] / "results" / "serving_deltas.csv"
TABLES, RATE, REST_SECONDS, CONNECTIONS = 26, 100, 3.0, 16
DATA = """
name: days
source: {format: parquet, files: [day0.parquet]}
label: {column: y}
split: {by: order, validation: 0, test: 0.02}
dense: {x: {transform: [standardise]}}
sparse: {%s}
"""
SERVED = ("deltas", "full reloads")


def load(folder: Path, *, threads: int = 1, before: object = None) -> Any:  # noqa: ARG001
    """Load an artefact as if no other were loaded: the loader of the server that reloads."""
    return load_artefact(folder, threads=threads)


def run(*command: str, folder: Path) -> None:
    """Run a command of recsys and print its seconds."""
    start = time.perf_counter()
    done = subprocess.run([sys.executable, "-m", *command], cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stderr[-3000:]}")
    print(f"{time.perf_counter() - start:6.1f} s: {' '.join(command)[:100]}", flush=True)
    print(*re.findall(r"delta of [^;\n]*", done.stderr), flush=True)


def write_day(folder: Path, day: int, values: int) -> None:
    """Write the rows of a day: all values once or, later, a hundredth of them, of which a tenth are new."""
    rng, few = np.random.default_rng(day), values // 100
    low = values - few + few // 10 * day if day else 0
    size = few if day else values
    columns = {f"c{i}": low + rng.permutation(size) for i in range(TABLES)}
    frame = pl.DataFrame({**columns, "x": rng.normal(size=size), "y": (rng.random(size) < 0.3).astype(int)})
    frame.write_parquet(folder / "data" / f"day{day}.parquet")


def prepare(folder: Path, values: int) -> None:
    """Train both runs and export them."""
    (folder / "conf" / "data").mkdir(parents=True)
    (folder / "data").mkdir()
    sparse = ", ".join(f"c{i}: {{}}" for i in range(TABLES))
    (folder / "conf" / "data" / "days.yaml").write_text(DATA % sparse)
    ours, full = (folder / name / "dlrm" for name in SERVED)
    model = ["model=dlrm", "model.dim=16", "model.bottom_mlp=[64,16]", "model.top_mlp=[64]", "data=days"]
    for day, start in enumerate((model, ["start_from=run0"])):
        write_day(folder, day, values)
        data = [f"data.root={folder / 'data'}", f"data.source.files=[day{day}.parquet]", "trainer.batch_size=1000"]
        export = [f"run=run{day}", f"version={day + 1}", "name=dlrm", f"events_until={_now()}"]
        run("recsys.train", *start, *data, f"run_dir=run{day}", folder=folder)
        if day:
            run("recsys.export", *export, f"output={ours / '2'}", f"delta_from={full / '1'}", folder=folder)
            run("recsys.export", "apply", str(full / "1"), str(ours / "2"), f"output={full / '2'}", folder=folder)
        else:
            run("recsys.export", *export, f"output={full / '1'}", folder=folder)
            ours.mkdir(parents=True)
            (ours / "1").symlink_to(full / "1")


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


class Server(hold.Server):
    """A server of the versions in a folder, with one worker."""

    def __init__(self, models: Path, arguments: list[str]) -> None:
        self.model, self.workers, self.arguments = models / "dlrm", 1, arguments
        self.log, self.port = models / "log", hold.free_port()
        self.choose("1")
        examples = json.loads((self.model / "1" / "examples.json").read_text())["rows"]
        parts = [examples[:1], examples[1:2], examples[:16]]
        self.requests = [hold._request("/models/dlrm/predict", {"rows": rows}) for rows in parts]


class Clients:
    """Connections that send requests to a server at fixed times, and the seconds of each request."""

    def __init__(self, server: Server) -> None:
        self.server, self.part, self.failed = server, "", 0
        self.seconds: dict[str, list[float]] = defaultdict(list)
        self._free: asyncio.Queue[Any] = asyncio.Queue()
        self._tasks: set[asyncio.Task[None]] = set()

    async def send(self) -> None:
        for _ in range(CONNECTIONS):
            self._free.put_nowait(await asyncio.open_connection("127.0.0.1", self.server.port))
        start = time.perf_counter()
        for i in range(10**9):
            due = start + i / RATE
            await asyncio.sleep(max(0, due - time.perf_counter()))
            task = asyncio.create_task(self._request(self.server.requests[i % 3], due))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _request(self, request: bytes, due: float) -> None:
        part = self.part
        reader, writer = await self._free.get()
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]))
        self._free.put_nowait((reader, writer))
        self.failed += head[9:12] != b"200"
        self.seconds[part].append(time.perf_counter() - due)


async def change(clients: Clients, part: str, version: int) -> float:
    """Let another version answer; return the seconds until it is loaded."""
    wanted, start = clients.server.loads() + 1, time.perf_counter()
    clients.part = part
    clients.server.choose(str(version))
    while clients.server.loads() < wanted:
        await asyncio.sleep(0.02)
    seconds = time.perf_counter() - start
    clients.part = "after"
    await asyncio.sleep(0.5)
    return seconds


async def measure(folder: Path, rounds: int) -> list[tuple[str, str, float]]:
    os.environ |= {"PYTHONPATH": str(Path(__file__).parent), "RECSYS_DELTA_DIR": str(folder / "applied")}
    servers = [Server(folder / name, []) for name in SERVED]
    servers[1].arguments = ["loader=deltas:load"]
    for server in servers:
        await server.start()
    clients = [Clients(server) for server in servers]
    sending = [asyncio.create_task(c.send()) for c in clients]
    await asyncio.sleep(REST_SECONDS)
    rows: list[tuple[str, str, float]] = [
        (n, "memory MB before", _anonymous(s)) for n, s in zip(SERVED, servers, strict=True)
    ]
    for _ in range(rounds):
        for name, one in zip(SERVED, clients, strict=True):
            for c in clients:
                c.part = "rest"
            await asyncio.sleep(REST_SECONDS)
            for c in clients:
                c.part = "other"
            rows.append((name, "seconds until it is loaded", await change(one, "change", 2)))
        for one in clients:
            await change(one, "after", 1)
        shutil.rmtree(folder / "applied")
    rows += [(n, "memory MB after", _anonymous(s)) for n, s in zip(SERVED, servers, strict=True)]
    for name, one in zip(SERVED, clients, strict=True):
        for part in ("rest", "change"):
            times = np.array(one.seconds[part]) * 1000
            figures = {
                "requests": float(len(times)),
                **{f"p{q}": float(np.percentile(times, q)) for q in (50, 99, 100)},
            }
            rows += [(name, f"{part}: {n}{' ms' if n[0] == 'p' else ''}", v) for n, v in figures.items()]
        rows.append((name, "failed", float(one.failed)))
    rows += [(SERVED[0], name, value) for name, value in _times(servers[0])]
    for task in sending:
        task.cancel()
    for server in servers:
        await server.stop()
    return rows


def _anonymous(server: Server) -> float:
    return sum(m["Anonymous"] for m in server.memory())


def _times(server: Server) -> list[tuple[str, float]]:
    """Return the seconds from the last version's newest event to its export and to its service, by the metrics page."""
    connection = HTTPConnection("127.0.0.1", server.port)
    connection.request("GET", "/metrics")
    page = connection.getresponse().read().decode()
    found = re.findall(r'recsys_model_time_seconds{model="dlrm",of="(\w+)",version="(\d+)"} (\S+)', page)
    last = max(int(v) for _, v, _ in found)
    times = {what: float(value) for what, version, value in found if int(version) == last}
    return [(f"seconds from the events of version {last} until {n}", t - times["events"]) for n, t in times.items()]


def main() -> None:
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    folder = Path(sys.argv[1]).resolve()
    rounds, values = [*map(int, sys.argv[2:]), *(6, 100_000)[len(sys.argv) - 2 :]]
    if not (folder / "conf").exists():
        prepare(folder, values)
    rows = asyncio.run(measure(folder, rounds))
    with RESULTS.open("w", newline="") as file:
        csv.writer(file).writerows([("server", "measure", "value"), *((s, m, f"{v:.4g}") for s, m, v in rows)])
    for server, what, value in rows:
        print(f"{server:14} {what:55} {value:,.4g}")


if __name__ == "__main__":
    main()
