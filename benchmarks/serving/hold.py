"""python benchmarks/serving/hold.py ARTEFACT OTHER_ARTEFACT [MINUTES] [WORKERS] [CONNECTIONS]

Whether a server holds: its memory under a long load, hot reloads, a killed worker and SIGTERM, each under load.

    python -m recsys.export run=RUN output=exported/1 version=1
    python -m recsys.export run=RUN output=exported/2 version=2
    python benchmarks/serving/hold.py exported/1 exported/2 10

`python -m recsys.serve` serves both folders as versions of one model, and gets rows of the artefact's examples.json, 1
or 16 a request, over connections that each send the next request once the last one is answered. A request has failed
if its connection ends without an answer or if its status is not 200; all requests are counted. SIGTERM is also sent
while each request opens a connection of its own. benchmarks/results/serving_hold.csv gets all figures.
"""

from __future__ import annotations

import asyncio
import csv
import json
import os
import signal
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import uvloop

RESULTS = Path(__file__).parents[1] / "results" / "serving_hold.csv"
WARM_UP = 0.3  # share of the time under load that the slope of the memory leaves out
RELOADS = 100
Table = list[tuple[str, float, str, float]]  # part, second, measure, value


class Connection(asyncio.Protocol):
    """A connection that sends a request, waits for its answer, and sends the next one."""

    def __init__(self, load: Load) -> None:
        self._load, self._received = load, b""
        self.in_flight = False

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._load.connections.add(self)
        self._send()

    def _send(self) -> None:
        if self._load.stopped:
            self._transport.close()
            return
        self.in_flight = True
        self._load.sent += 1
        self._transport.write(self._load.requests[self._load.sent % len(self._load.requests)])

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, complete, body = self._received.partition(b"\r\n\r\n")
        if not complete:
            return
        lower = head.lower()
        length = int(lower.partition(b"content-length: ")[2].partition(b"\r\n")[0])
        if len(body) < length:
            return
        self._received, self.in_flight = b"", False
        self._load.outcomes[head[9:12].decode()] += 1
        if self._load.one_request_each or b"connection: close" in lower:
            self._transport.close()
        else:
            self._send()

    def connection_lost(self, error: Exception | None) -> None:
        self._load.connections.discard(self)
        if self.in_flight:
            self._load.outcomes["no answer"] += 1
        self._load.reconnect()


class Load:
    """Connections to a server, and the outcomes of their requests.

    outcomes: number of requests by their status, "no answer" if the connection ended before
    one_request_each: whether each request opens a connection
    """

    def __init__(self, port: int, requests: list[bytes], connections: int, one_request_each: bool = False) -> None:
        self.requests, self.one_request_each = requests, one_request_each
        self._port, self._count = port, connections
        self.connections: set[Connection] = set()
        self.outcomes: Counter[str] = Counter()
        self.sent, self.refused, self.stopped = 0, 0, False
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Load:
        for _ in range(self._count):
            self.reconnect()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.stopped = True
        while self.connections or self._tasks:
            await asyncio.sleep(0.02)

    def reconnect(self) -> None:
        """Open a connection in the place of one that has ended."""
        if not self.stopped:
            task = asyncio.get_running_loop().create_task(self._connect())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _connect(self) -> None:
        while not self.stopped:
            try:
                await asyncio.get_running_loop().create_connection(lambda: Connection(self), "127.0.0.1", self._port)
                return
            except OSError:
                self.refused += 1
                await asyncio.sleep(0.01)

    @property
    def answered(self) -> int:
        return self.outcomes.total() - self.outcomes["no answer"]

    @property
    def failed(self) -> int:
        return self.outcomes.total() - self.outcomes["200"]

    @property
    def in_flight(self) -> int:
        return sum(c.in_flight for c in self.connections)


class Server:
    """A running `python -m recsys.serve` on a folder with two versions of one model."""

    def __init__(self, versions: list[Path], workers: int, folder: Path) -> None:
        name = json.loads((versions[0] / "manifest.json").read_text())["artefact"]["name"]
        self.model, self.workers = folder / "models" / name, workers
        self.model.mkdir(parents=True)
        for i, version in enumerate(versions):
            (self.model / str(i + 1)).symlink_to(version.resolve())
        self.choose("1")
        self.log = folder / "log"
        self.port, self.arguments = free_port(), list[str]()
        examples = json.loads((versions[0] / "examples.json").read_text())["rows"]
        parts = [examples[i : i + 1] for i in range(len(examples))] + [examples[i : i + 16] for i in range(0, 64, 16)]
        self.requests = [_request(f"/models/{name}/predict", {"rows": rows}) for rows in parts]

    async def start(self) -> None:
        arguments = [str(self.model.parent), f"port={self.port}", "grpc_port=null", f"workers={self.workers}"]
        arguments += self.arguments
        with self.log.open("a") as log:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "recsys.serve", *arguments, stdout=log, stderr=log
            )
        while "serving" not in self.log.read_text():
            if self.process.returncode is not None:
                sys.exit(self.log.read_text())
            await asyncio.sleep(0.1)

    async def stop(self) -> None:
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGTERM)
        await self.process.wait()

    def choose(self, version: str) -> None:
        """Let a version answer, as a deployment does: write serving.json beside, then rename."""
        beside = self.model / ".serving.json"
        beside.write_text(json.dumps({"version": version}))
        beside.rename(self.model / "serving.json")

    def loads(self) -> int:
        """Return the number of versions that workers have loaded."""
        return self.log.read_text().count('"event":"loaded"')

    def pids(self) -> list[int]:
        return [int(p) for p in Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()]

    def memory(self) -> list[dict[str, float]]:
        """Return the resident and the anonymous memory in MB and the number of threads of each worker."""
        return [_memory(pid) for pid in self.pids()]


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def _request(path: str, body: object) -> bytes:
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(content)}\r\n\r\n"
    return head.encode() + content


def _memory(pid: int) -> dict[str, float]:
    fields = dict(line.split(":") for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:])
    megabytes = {name: int(fields[name].split()[0]) * 1024 / 1e6 for name in ("Rss", "Anonymous")}
    return {**megabytes, "threads": len(list(Path(f"/proc/{pid}/task").iterdir()))}


async def hold(server: Server, connections: int, minutes: float) -> Table:
    """Keep the load for some minutes, and read the memory of the workers 100 times."""
    table: Table = []
    seconds, points = minutes * 60, []
    async with Load(server.port, server.requests, connections) as load:
        start = time.monotonic()
        while (now := time.monotonic() - start) < seconds:
            await asyncio.sleep(seconds / 100)
            memory = server.memory()
            points.append((load.answered / 1e6, sum(m["Anonymous"] for m in memory)))
            table += [("hold", now, f"worker {i} {n}", v) for i, m in enumerate(memory, 1) for n, v in m.items()]
    warm = np.array(points[int(WARM_UP * len(points)) :])
    slope, _ = np.polyfit(warm[:, 0], warm[:, 1], 1)
    table += _outcomes("hold", seconds, load)
    table.append(("hold", seconds, "anonymous MB per million requests, all workers", float(slope)))
    table.append(("hold", seconds, "anonymous MB, growth after warm-up", float(warm[-1, 1] - warm[0, 1])))
    return [*table, ("hold", seconds, "requests per second", load.answered / seconds)]


async def reload(server: Server, connections: int) -> Table:
    """Let the versions answer in turn under load. Each change waits until all workers have loaded the version."""
    table: Table = [("reload", 0, n, v) for n, v in _sums(server.memory(), "before")]
    start = time.monotonic()
    async with Load(server.port, server.requests, connections) as load:
        for i in range(RELOADS):
            wanted = server.loads() + server.workers
            server.choose("21"[i % 2])
            while server.loads() < wanted:
                await asyncio.sleep(0.05)
        await asyncio.sleep(1)
        table += [("reload", time.monotonic() - start, n, v) for n, v in _sums(server.memory(), "after")]
    return [*table, *_outcomes("reload", time.monotonic() - start, load)]


def _sums(memory: list[dict[str, float]], when: str) -> list[tuple[str, float]]:
    return [(f"{name}, all workers, {when}", sum(m[name] for m in memory)) for name in memory[0]]


async def kill(server: Server, connections: int) -> Table:
    """Kill a worker under load; wait until there is another."""
    start = time.monotonic()
    async with Load(server.port, server.requests, connections) as load:
        await asyncio.sleep(2)
        in_flight, loads = load.in_flight, server.loads()
        os.kill(server.pids()[0], signal.SIGKILL)
        while server.loads() == loads:
            await asyncio.sleep(0.05)
        again = time.monotonic() - start - 2
        await asyncio.sleep(1)
    seconds = time.monotonic() - start
    table: Table = [("kill", seconds, "in flight at the kill", in_flight), ("kill", seconds, "s to another", again)]
    return [*table, *_outcomes("kill", seconds, load)]


async def terminate(server: Server, connections: int, one_request_each: bool) -> Table:
    """Send SIGTERM under load. What is refused afterwards has not been accepted, and is no failure."""
    part = "SIGTERM, a connection a request" if one_request_each else "SIGTERM"
    async with Load(server.port, server.requests, connections, one_request_each) as load:
        await asyncio.sleep(2)
        in_flight, start = load.in_flight, time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        status = await server.process.wait()
        seconds = time.monotonic() - start
    table: Table = [(part, seconds, "in flight at the signal", in_flight), (part, seconds, "exit status", status)]
    return [*table, *_outcomes(part, seconds, load)]


def _outcomes(part: str, second: float, load: Load) -> Table:
    counts = {"sent": load.sent, "failed": load.failed, "connections refused": load.refused, **load.outcomes}
    return [(part, second, name, value) for name, value in sorted(counts.items())]


async def measure(versions: list[Path], minutes: float, workers: int, connections: int) -> Table:
    """Return the figures of all parts, each on a fresh server."""
    parts: list[Callable[[Server], Awaitable[Table]]] = [
        lambda server: hold(server, connections, minutes),
        lambda server: reload(server, connections),
        lambda server: kill(server, connections),
        lambda server: terminate(server, connections, one_request_each=False),
        lambda server: terminate(server, connections, one_request_each=True),
    ]
    table: Table = []
    for part in parts:
        with tempfile.TemporaryDirectory() as folder:
            server = Server(versions, workers, Path(folder))
            await server.start()
            figures = await part(server)
            await server.stop()
        for name, second, measure, value in figures:
            if not measure.startswith("worker "):
                print(f"{name}, {second:,.1f} s: {measure}: {value:,.10g}", flush=True)
        table += figures
    return table


def main() -> None:
    versions = [Path(a) for a in sys.argv[1:3]]
    if len(versions) < 2:
        sys.exit(__doc__)
    numbers = [float(a) for a in sys.argv[3:]]
    minutes, workers, connections = [*numbers, *(10.0, 2.0, 16.0)[len(numbers) :]]
    table = uvloop.run(measure(versions, minutes, int(workers), int(connections)))
    with RESULTS.open("w", newline="") as file:
        rows = [(part, f"{second:.1f}", measure, f"{value:.6g}") for part, second, measure, value in table]
        csv.writer(file).writerows([("part", "second", "measure", "value"), *rows])


if __name__ == "__main__":
    main()
