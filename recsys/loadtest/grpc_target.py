"""A server that speaks gRPC: the inputs of its models, whether it takes a request, and a connection to it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import grpc
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

from recsys.loadtest.answers import MAX_BYTES
from recsys.loadtest.encode_tensors import InputSpec
from recsys.loadtest.endpoint import Endpoint, TargetModel
from recsys.loadtest.http_connection import LOST, RETRY_S, TIMEOUT, OnDone
from recsys.loadtest.target import SECONDS, TargetBase

INFER = "/inference.GRPCInferenceService/ModelInfer"
OPTIONS = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", MAX_BYTES),
    ("grpc.max_send_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),  # each channel has a connection of its own
)


def metadata(endpoint: Endpoint) -> tuple[tuple[str, str], ...]:
    """Return the metadata of each call: the token."""
    return (("authorization", f"Bearer {endpoint.token}"),) if endpoint.token else ()


def open_channel(api: ModuleType, endpoint: Endpoint) -> Any:
    """Return a channel. api: grpc, or grpc.aio"""
    if not endpoint.tls:
        return api.insecure_channel(endpoint.address, OPTIONS)
    trusted = None if endpoint.tls_ca is None else Path(endpoint.tls_ca).read_bytes()
    return api.secure_channel(endpoint.address, grpc.ssl_channel_credentials(trusted), OPTIONS)


class GrpcTarget(TargetBase):
    """A server that speaks gRPC, with the methods of HttpTarget."""

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(endpoint)
        self._channel = open_channel(grpc, endpoint)
        self._stub = GRPCInferenceServiceStub(self._channel)

    def _call(self, method: Callable[..., Message], request: Message) -> Message | grpc.RpcError:
        """Return the answer of a call, or the grpc.RpcError. Raises UserError if the server is not one of gRPC."""
        try:
            return method(request, timeout=SECONDS, metadata=metadata(self.endpoint))
        except grpc.RpcError as e:
            code, details = e.code(), str(e.details())
            if code is grpc.StatusCode.UNAVAILABLE and "refused" in details:
                raise self.error("refuses the connection; start the server, or correct the port") from e
            if "Hostname Verification Check failed" in details:
                raise self.untrusted("host name mismatch") from e
            if "CERTIFICATE_VERIFY_FAILED" in details:
                raise self.untrusted(details.rpartition("CERTIFICATE_VERIFY_FAILED: ")[2].partition(":")[0]) from e
            if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL) and "http" in details.lower():
                raise self.error("does not speak gRPC; for an HTTP port, add protocol=http") from e
            if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                why = f"does not answer in gRPC ({' '.join(details.split())[:200]})"
                raise self.error(f"{why}; for TLS write grpcs://..., for an HTTP port add protocol=http") from e
            if code in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED):
                raise self.refused_token() from e
            return e

    def _answer(self, method: Callable[..., Message], request: Message) -> Message | None:
        """Return the answer of a call, None if the server refuses it. Raises UserError as `_call`."""
        answer = self._call(method, request)
        return None if isinstance(answer, grpc.RpcError) else answer

    def check(self) -> None:
        if self._answer(self._stub.ServerMetadata, pb.ServerMetadataRequest()) is None:
            raise self.error("speaks gRPC, but not the open inference protocol v2")

    def extensions(self) -> list[str]:
        about = self._answer(self._stub.ServerMetadata, pb.ServerMetadataRequest())
        return [] if about is None else list(about.extensions)

    def models(self) -> list[str]:
        index = self._answer(self._stub.RepositoryIndex, pb.RepositoryIndexRequest())
        return [] if index is None else sorted({m.name for m in index.models})

    def model(self, name: str, version: str | None) -> TargetModel:
        about = self._answer(self._stub.ModelMetadata, pb.ModelMetadataRequest(name=name, version=version or ""))
        if about is None:
            raise self.no_such_model(name, version)
        inputs = tuple(InputSpec(i.name, i.datatype, tuple(i.shape)) for i in about.inputs)
        return TargetModel(name, version, inputs, {o.name: o.datatype for o in about.outputs})

    def ask(self, request: bytes) -> tuple[str | None, bytes]:
        answer = self._call(self._channel.unary_unary(INFER), request)
        if isinstance(answer, grpc.RpcError):
            return f"{answer.code().name}, {' '.join(str(answer.details()).split())[:300]}", b""
        return None, answer

    def statistics(self, name: str) -> Mapping[str, Any] | None:
        answer = self._answer(self._stub.ModelStatistics, pb.ModelStatisticsRequest(name=name))
        return None if answer is None else MessageToDict(answer, preserving_proto_field_name=True)


class GrpcConnection:
    """A channel with a connection of its own."""

    def __init__(self, endpoint: Endpoint, timeout_s: float, on_done: OnDone) -> None:
        self._timeout, self._on_done, self._metadata = timeout_s, on_done, metadata(endpoint)
        self._channel = open_channel(grpc.aio, endpoint)
        self._infer = self._channel.unary_unary(INFER)
        self._call: asyncio.Task[None] | None = None

    async def connect(self) -> None:
        """Open the connection. Raises OSError."""
        try:
            await asyncio.wait_for(self._channel.channel_ready(), self._timeout)
        except TimeoutError as e:
            raise ConnectionError("the channel does not become ready") from e

    def send(self, request: bytes) -> None:
        """Send a request. The one before must be done."""
        self._call = asyncio.get_running_loop().create_task(self._send(request))

    async def _send(self, request: bytes) -> None:
        error, body = None, b""
        try:
            body = await self._infer(request, timeout=self._timeout, metadata=self._metadata)
        except grpc.aio.AioRpcError as e:
            if e.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                error = TIMEOUT
            elif e.code() is grpc.StatusCode.UNAVAILABLE:
                error = LOST
                await asyncio.sleep(RETRY_S)
            else:
                error = f"status {e.code().name}"
        self._on_done(error, body)

    def expire(self, now: float) -> None:
        """Do nothing: each call has a deadline."""

    async def close(self) -> None:
        """Close the connection, without an answer to the request that is under way."""
        if self._call is not None:
            self._call.cancel()
        await self._channel.close()
