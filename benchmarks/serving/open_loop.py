"""The open loop of recsys.loadtest beside an independent client that counts from when a request was due, and was sent.

    python benchmarks/serving/open_loop.py [rate=2000] [busy_us=100] [rounds=5] [seconds=2]
    chrt -f 10 python benchmarks/serving/open_loop.py     # as root: neither client waits for a core

The server answers one request after another, each after `busy_us` microseconds of work. The clients take turns, with
arrivals at equal intervals and at random. The independent client has one thread and calls only select and sockets.
"""

from __future__ import annotations

import contextlib
import ctypes
import select
import socket
import statistics
import sys
import time
from collections import deque
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

sys.path.append(str(Path(__file__).parents[1]))

from recsys.loadtest.client_processes import due_times
from recsys.loadtest.drive import LoadJob, drive
from recsys.loadtest.endpoint import Endpoint

CONNECTIONS = 64
REQUEST = b"POST /predict HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}"
BODY = b'{"predictions": [0.5]}'
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(BODY), BODY)
OPTIONS = {"rate": 2000.0, "busy_us": 100.0, "rounds": 5.0, "seconds": 2.0}


def serve(listening: socket.socket, busy_s: float) -> None:
    """Answer requests, one after another, until the process is ended."""
    poll = select.epoll()
    poll.register(listening, select.EPOLLIN)
    connections: dict[int, socket.socket] = {}
    while True:
        for number, _ in poll.poll():
            if number == listening.fileno():
                connection = listening.accept()[0]
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connections[connection.fileno()] = connection
                poll.register(connection, select.EPOLLIN)
            elif not connections[number].recv(4096):
                connections.pop(number).close()
            else:
                end = time.monotonic() + busy_s
                while time.monotonic() < end:
                    pass
                connections[number].sendall(ANSWER)


def independent(port: int, due: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Send a request at each time, in seconds from the beginning; return seconds from when it was due, and sent."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(29, ctypes.c_ulong(1))  # PR_SET_TIMERSLACK: as recsys.loadtest does
    free = deque(socket.create_connection(("127.0.0.1", port)) for _ in range(CONNECTIONS))
    for connection in free:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    waiting: dict[socket.socket, tuple[float, float]] = {}
    found: list[tuple[float, float]] = []
    times, at = (time.monotonic() + 0.1 + due).tolist(), 0
    while len(found) < len(times):
        while at < len(times) and free and times[at] <= time.monotonic():
            connection = free.popleft()
            waiting[connection] = (times[at], time.monotonic())
            connection.sendall(REQUEST)
            at += 1
        wait = max(times[at] - time.monotonic(), 0.0) if at < len(times) and free else 1.0
        for connection in select.select(list(waiting), [], [], wait)[0]:
            connection.recv(4096)
            now, (was_due, sent) = time.monotonic(), waiting.pop(connection)
            found.append((now - was_due, now - sent))
            free.append(connection)
    for connection in free:
        connection.close()
    from_due, from_sent = np.array(found).T
    return from_due, from_sent


def ours(port: int, due: np.ndarray, seconds: float) -> tuple[np.ndarray, np.ndarray]:
    """Do the same with recsys.loadtest."""
    job = (CONNECTIONS, seconds, 5.0, due, time.monotonic() + 0.2)
    timings = drive(LoadJob("rows", Endpoint("127.0.0.1", port), [REQUEST], *job))
    if timings.errors:
        sys.exit(f"errors: {dict(timings.errors)}")
    return timings.latencies, timings.latencies - timings.delays


def main() -> None:
    options: dict[str, Any] = OPTIONS | {k: float(v) for k, v in (a.split("=", 1) for a in sys.argv[1:])}
    listening = socket.create_server(("127.0.0.1", 0), backlog=2 * CONNECTIONS)
    port, seconds = listening.getsockname()[1], options["seconds"]
    server = get_context("fork").Process(target=serve, args=(listening, options["busy_us"] * 1e-6), daemon=True)
    server.start()
    medians: dict[tuple[str, str, str], list[tuple[float, float]]] = {}
    for _ in range(int(options["rounds"])):
        for arrivals in ("fixed", "poisson"):
            due = due_times(options["rate"], seconds, arrivals == "poisson")
            of_clients = {"independent": independent(port, due), "recsys.loadtest": ours(port, due, seconds)}
            for client, measured in of_clients.items():
                for since, times in zip(("due", "sent"), measured, strict=True):
                    figures = (float(np.median(times)) * 1e3, float(times.mean()) * 1e3)
                    medians.setdefault((arrivals, client, since), []).append(figures)
    server.terminate()
    for (arrivals, client, since), rounds in medians.items():
        p50, mean = (statistics.median(x) for x in zip(*rounds, strict=True))
        print(f"{arrivals:8} {client:16} from when it was {since:5} p50 {p50:.2f} ms, mean {mean:.2f} ms")


if __name__ == "__main__":
    main()
