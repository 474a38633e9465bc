"""A connection that sends gRPC requests of ready bytes, one at a time."""

from __future__ import annotations

import asyncio

import grpc

from recsys.loadtest.endpoint import Endpoint
from recsys.loadtest.grpc_target import INFER, metadata, open_channel
from recsys.loadtest.http_connection import LOST, RETRY_S, TIMEOUT, OnDone


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
