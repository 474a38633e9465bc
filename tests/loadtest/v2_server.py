"""A tiny server of the open inference protocol v2 for tests: HTTP by hand, gRPC with tritonclient's stubs.

It runs in a thread of its own. Its model `toy` takes a text and a number a row, and answers after `delay` seconds.
"""

import asyncio
import json
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceServicer, add_GRPCInferenceServiceServicer_to_server

INPUTS = [("name", "BYTES", [-1, 1]), ("price", "FP32", [-1])]


@dataclass
class Toy:
    """How the server behaves, and what it has received."""

    delay: float = 0.0
    stall_s: float = 0.0  # once, at the request number `stall_at`
    stall_at: int = -1
    status: dict[int, str] = field(default_factory=dict)  # request number -> "503", "hang", "drop" or "close"
    inputs: list[tuple[str, str, list[int]]] = field(default_factory=lambda: list(INPUTS))
    seen: list[tuple[bytes, bytes]] = field(default_factory=list)  # head and body of inference requests
    messages: list[Any] = field(default_factory=list)  # of gRPC
    speaks_v2: bool = True
    has_index: bool = True
    stats: dict[str, Any] | None = None
    metrics: str = ""
    token: str | None = None
    answer: bytes = b""  # to every inference request, instead of the right one
    raw: bytes = b""  # sent as it is, head and all, as the answer to the inference requests after the first `right`
    right: int = 0
    port: int = 0
    transports: list[Any] = field(default_factory=list)

    def next_number(self) -> int:
        number = len(self.seen) + len(self.messages) - 1
        if number == self.stall_at:
            time.sleep(self.stall_s)  # blocks the whole server, as a garbage collection does
        return number


def right_answer(path: str, head: bytes, body: bytes) -> bytes:
    """Return an answer with a score of 0.5 for each row."""
    if path.endswith("/predict"):
        return json.dumps({"predictions": [0.5] * len(json.loads(body)["rows"])}).encode()
    name = b"inference-header-content-length: "
    size = next((int(x[len(name) :]) for x in head.split(b"\r\n") if x.startswith(name)), None)
    rows = json.loads(body[:size])["inputs"][0]["shape"][0]
    output: dict[str, Any] = {"name": "score", "datatype": "FP32", "shape": [rows]}
    if size is None:
        return json.dumps({"outputs": [output | {"data": [0.5] * rows}]}).encode()
    output |= {"parameters": {"binary_data_size": 4 * rows}}
    return json.dumps({"outputs": [output]}).encode() + struct.pack(f"<{rows}f", *[0.5] * rows)


class Stream(asyncio.Protocol):
    def __init__(self, toy: Toy) -> None:
        self.toy, self.buffer = toy, b""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.toy.transports.append(transport)

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        head, mark, rest = self.buffer.partition(b"\r\n\r\n")
        if not mark:
            if not b"POST".startswith(self.buffer[:4]) and not b"GET ".startswith(self.buffer[:4]):
                self.transport.close()
            return
        length = next((int(x[15:]) for x in head.split(b"\r\n") if x.lower().startswith(b"content-length:")), 0)
        if len(rest) >= length:
            self.buffer = rest[length:]
            self.receive(head, rest[:length])

    def receive(self, head: bytes, body: bytes) -> None:
        path = head.split(b" ", 2)[1].decode()
        toy = self.toy
        if toy.token is not None and f"authorization: Bearer {toy.token}".encode() not in head:
            self.answer(b"401 Unauthorized", b'{"error": "no token"}')
            return
        if path.endswith(("/infer", "/predict")):
            if "toy" not in path and path != "/predict":
                self.answer(b"404 Not Found", b'{"error": "no such model"}')
                return
            toy.seen.append((head, body))
            answer = toy.answer or right_answer(path, head, body)
            asyncio.get_running_loop().call_later(toy.delay, self.infer, toy.next_number(), answer)
            return
        pages: dict[str, Any] = {
            "/v2": {"name": "toy server"}
            if toy.stats is None
            else {"name": "toy server", "extensions": ["statistics"]},
            "/v2/repository/index": [{"name": "toy"}],
            "/v2/models/toy": {"inputs": [{"name": n, "datatype": d, "shape": s} for n, d, s in toy.inputs]},
        }
        if not toy.has_index:  # as KServe
            del pages["/v2/repository/index"]
            pages["/v2/models"] = {"models": ["toy"]}
        if toy.stats is not None:
            pages["/v2/models/toy/stats"] = toy.stats
        if toy.metrics and path == "/metrics":
            self.answer(b"200 OK", toy.metrics.encode())
        elif toy.speaks_v2 and path in pages:
            self.answer(b"200 OK", json.dumps(pages[path]).encode())
        else:
            self.answer(b"404 Not Found", b'{"error": "no such path"}')

    def infer(self, number: int, answer: bytes) -> None:
        how = self.toy.status.get(number, "200")
        if how == "drop":
            self.transport.abort()
        elif how == "close":
            self.answer(b"200 OK", answer, b"connection: close\r\n")
            self.transport.close()
        elif how != "hang":
            wrong = b'{"error": "row 0: column price is wrong"}'
            self.answer(how.encode() + b" x", answer if how == "200" else wrong)

    def answer(self, status: bytes, body: bytes, more: bytes = b"") -> None:
        if self.toy.raw and len(self.toy.seen) > self.toy.right:
            self.transport.write(self.toy.raw)
            return
        head = b"HTTP/1.1 %s\r\n%scontent-length: %d\r\n\r\n" % (status, more, len(body))
        self.transport.write(head + body)


class Servicer(GRPCInferenceServiceServicer):
    def __init__(self, toy: Toy) -> None:
        self.toy = toy

    async def ServerMetadata(self, request: Any, context: Any) -> Any:
        return pb.ServerMetadataResponse(name="toy server", extensions=["statistics"])

    async def RepositoryIndex(self, request: Any, context: Any) -> Any:
        return pb.RepositoryIndexResponse(models=[pb.RepositoryIndexResponse.ModelIndex(name="toy")])

    async def ModelMetadata(self, request: Any, context: Any) -> Any:
        if request.name != "toy":
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such model")
        tensor = pb.ModelMetadataResponse.TensorMetadata
        inputs = [tensor(name=n, datatype=d, shape=s) for n, d, s in self.toy.inputs]
        return pb.ModelMetadataResponse(name="toy", inputs=inputs)

    async def ModelStatistics(self, request: Any, context: Any) -> Any:
        answered = pb.StatisticDuration(count=len(self.toy.messages), ns=3_000_000 * len(self.toy.messages))
        queued = pb.StatisticDuration(count=len(self.toy.messages), ns=1_000_000 * len(self.toy.messages))
        statistics = pb.InferStatistics(success=answered, queue=queued, compute_infer=queued)
        return pb.ModelStatisticsResponse(model_stats=[pb.ModelStatistics(name="toy", inference_stats=statistics)])

    async def ModelInfer(self, request: Any, context: Any) -> Any:
        self.toy.messages.append(request)
        how = self.toy.status.get(self.toy.next_number(), "200")
        await asyncio.sleep(60 if how == "hang" else self.toy.delay)
        if how == "503":
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "the queue is full")
        if self.toy.answer:
            return pb.ModelInferResponse.FromString(self.toy.answer)
        answer = pb.ModelInferResponse(model_name="toy")
        rows = request.inputs[0].shape[0]
        answer.outputs.add(name="score", datatype="FP32", shape=[rows])
        answer.raw_output_contents.append(struct.pack(f"<{rows}f", *[0.5] * rows))
        return answer


@contextmanager
def serving(toy: Toy, protocol: str = "http") -> Iterator[Toy]:
    """Serve until the block ends; toy.port is the port."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    start = _start_grpc if protocol == "grpc" else _start_http
    server = asyncio.run_coroutine_threadsafe(start(toy), loop).result(10)
    try:
        yield toy
    finally:
        if protocol == "grpc":
            asyncio.run_coroutine_threadsafe(server.stop(None), loop).result(10)
        else:
            asyncio.run_coroutine_threadsafe(_stop_http(toy, server), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)


async def _start_http(toy: Toy) -> Any:
    server = await asyncio.get_running_loop().create_server(lambda: Stream(toy), "127.0.0.1", toy.port)
    toy.port = server.sockets[0].getsockname()[1]
    return server


async def _stop_http(toy: Toy, server: Any) -> None:
    server.close()
    for transport in toy.transports:
        transport.abort()
    await asyncio.sleep(0)


async def _start_grpc(toy: Toy) -> Any:
    server = grpc.aio.server()
    add_GRPCInferenceServiceServicer_to_server(Servicer(toy), server)
    toy.port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    return server
