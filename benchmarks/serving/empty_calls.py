"""What a call costs a server that does nothing: gRPC (grpc.aio) and HTTP (uvicorn), CPU seconds of the server.

    python benchmarks/serving/empty_calls.py [rounds=5] [seconds=3]

16 connections of recsys.loadtest send a request of 39 inputs, and take any answer.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import grpc
import uvicorn
import uvloop
from tritonclient.grpc import service_pb2 as pb

from recsys.loadtest.answers import AnswerCheck
from recsys.loadtest.drive import LoadJob, drive
from recsys.loadtest.endpoint import Endpoint

PORTS = {"gRPC": 8340, "HTTP": 8341}
INPUTS = 39


async def _grpc() -> None:
    async def infer(_request: bytes, _context: Any) -> bytes:
        return b""

    server = grpc.aio.server()
    methods = {"ModelInfer": grpc.unary_unary_rpc_method_handler(infer)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("inference.GRPCInferenceService", methods),))
    server.add_insecure_port(f"127.0.0.1:{PORTS['gRPC']}")
    await server.start()
    await server.wait_for_termination()


async def _http(_scope: Any, receive: Any, send: Any) -> None:
    await receive()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"{}"})


def serve(protocol: str) -> None:
    """Answer calls until the process is ended."""
    if protocol == "gRPC":
        uvloop.run(_grpc())
    else:
        uvicorn.run(_http, port=PORTS["HTTP"], log_level="error", access_log=False, lifespan="off")


def requests() -> dict[str, bytes]:
    """Return a request of each protocol."""
    message = pb.ModelInferRequest(model_name="m")
    for i in range(INPUTS):
        message.inputs.add(name=f"column_{i}", datatype="BYTES", shape=[1, 1])
        message.raw_input_contents.append(b"\x08\0\0\x0068fd1e64")
    body = message.SerializeToString()
    endpoint = Endpoint("127.0.0.1", PORTS["HTTP"])
    return {"gRPC": body, "HTTP": endpoint.http_request("POST", "/", body)}


def cpu_seconds(pid: int) -> float:
    """Return the CPU seconds of a process and its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    options = {"rounds": "5", "seconds": "3"} | dict(a.split("=", 1) for a in sys.argv[1:])
    seconds = float(options["seconds"])
    AnswerCheck.error = lambda *_: None  # type: ignore[method-assign]
    servers = {p: get_context("spawn").Process(target=serve, args=(p,), daemon=True) for p in PORTS}
    for server in servers.values():
        server.start()
    time.sleep(10)
    costs: dict[str, list[float]] = {p: [] for p in PORTS}
    for _ in range(int(options["rounds"])):
        for protocol, request in requests().items():
            pid = servers[protocol].pid
            assert pid is not None
            before, how = cpu_seconds(pid), (16, seconds, 5.0, None, time.monotonic() + 0.2)
            timings = drive(LoadJob(protocol.lower(), Endpoint("127.0.0.1", PORTS[protocol]), [request], *how))
            if timings.errors:
                sys.exit(f"{protocol}: {dict(timings.errors)}")
            costs[protocol].append((cpu_seconds(pid) - before) / len(timings.latencies) * 1e3)
    for protocol, of_rounds in costs.items():
        low, high = min(of_rounds), max(of_rounds)
        print(f"{protocol}: {statistics.median(of_rounds):.3f} ms ({low:.3f} - {high:.3f}) of CPU a call")


if __name__ == "__main__":
    main()
