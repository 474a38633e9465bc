"""A connection that sends HTTP/1.1 requests of ready bytes, one at a time, and reads their answers, of bounded size."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import cast

from httptools import HttpParserError, HttpResponseParser

from recsys.loadtest.answers import LARGE, MAX_BYTES
from recsys.loadtest.endpoint import Endpoint, tls_context

RETRY_S = 0.05  # before another attempt to connect
LOST = "connection"  # kind of the errors of lost and refused connections
TIMEOUT = "timeout"
OnDone = Callable[[str | None, bytes], None]  # called with None and the answer, or the kind of the error


class HttpConnection:
    """A connection that is opened again if it is lost, and after a timeout."""

    def __init__(self, endpoint: Endpoint, timeout_s: float, on_done: OnDone) -> None:
        self._endpoint, self._timeout, self._on_done = endpoint, timeout_s, on_done
        self._tls = tls_context(endpoint.tls_ca) if endpoint.tls else None
        self._stream: _Stream | None = None
        self._busy = False
        self._deadline = 0.0
        self._opening: asyncio.Task[None] | None = None

    async def connect(self) -> None:
        """Open the connection. Raises OSError."""
        loop = asyncio.get_running_loop()
        host, port = self._endpoint.host, self._endpoint.port
        _, self._stream = await loop.create_connection(lambda: _Stream(self), host, port, ssl=self._tls)

    def send(self, request: bytes) -> None:
        """Send a request. The one before must be done."""
        self._busy = True
        self._deadline = time.monotonic() + self._timeout
        if self._stream is None:
            self._opening = asyncio.get_running_loop().create_task(self._send_again(request))
        else:
            self._stream.transport.write(request)

    async def _send_again(self, request: bytes) -> None:
        try:
            await self.connect()
        except OSError:
            await asyncio.sleep(RETRY_S)
            self.done(LOST)
            return
        if self._busy and self._stream is not None:
            self._stream.transport.write(request)

    def done(self, error: str | None, body: bytes = b"") -> None:
        """End the request that is under way."""
        if self._busy:
            self._busy = False
            self._on_done(error, body)
        else:  # an answer that nobody asked for would be taken for that to the next request
            self.drop_stream()

    def lost(self) -> None:
        """Note that the stream is closed, which ends the request that is under way."""
        self._stream = None
        self.done(LOST)

    def too_large(self) -> None:
        """End the request that is under way, and its connection: the answer has too many bytes."""
        self.drop_stream()
        self.done(LARGE)

    def expire(self, now: float) -> None:
        """End the request that is under way, and its connection, if it has taken too long."""
        if self._busy and now > self._deadline:
            self._abort()
            self.done(TIMEOUT)

    async def close(self) -> None:
        """Close the connection, without an answer to the request that is under way."""
        self._abort()

    def _abort(self) -> None:
        if self._opening is not None:
            self._opening.cancel()
        self.drop_stream()

    def drop_stream(self) -> None:
        """Close the stream; the next request opens another one."""
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.abandon()


class _Stream(asyncio.Protocol):
    """A TCP connection and the parser of its answers."""

    def __init__(self, owner: HttpConnection) -> None:
        self._owner: HttpConnection | None = owner
        self._parser = HttpResponseParser(self)
        self._parts: list[bytes] = []
        self._size = self._answers = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._answers = 0
        try:
            self._parser.feed_data(data)
        except HttpParserError:
            self.transport.abort()

    def on_body(self, part: bytes) -> None:
        self._parts.append(part)
        self._size += len(part)
        if self._size > MAX_BYTES and self._owner is not None:
            self._parts.clear()
            self._owner.too_large()

    def on_message_complete(self) -> None:
        parts, self._parts, self._size = self._parts, [], 0
        owner = self._owner
        if owner is None:
            return
        self._answers += 1
        if self._answers > 1:  # the server cannot have read the next request yet
            owner.drop_stream()
            owner.done(LOST)
            return
        status = self._parser.get_status_code()
        if not self._parser.should_keep_alive():
            owner.drop_stream()
        body = parts[0] if len(parts) == 1 else b"".join(parts)
        owner.done(None if 200 <= status < 300 else f"status {status}", body)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._owner is not None:
            self._owner.lost()

    def abandon(self) -> None:
        """Close the connection, and report nothing any more."""
        self._owner = None
        self.transport.abort()
