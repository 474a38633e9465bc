"""uvicorn's HTTP protocol with limits on the size of headers and on the time that a request may take."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

# How long an idle connection is kept once the server drains: a request may be on its way, which a close would lose.
LINGER_SECONDS = 0.5
_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
_TOO_SLOW = b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class _Transport:
    """A transport that closes after what a caller is still sending, of which it reads and drops the rest.

    Closing while data is on its way resets the connection: a caller that sends all before it reads sees no answer.
    """

    def __init__(self, transport: asyncio.Transport, protocol: LimitedProtocol) -> None:
        self._transport, self._protocol = transport, protocol
        self.drops = False  # whether it only waits for the caller's end

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if not self.drops:  # else the answer to a request before the one that was closed on: nobody waits for it
            self._transport.write(data)

    def is_closing(self) -> bool:
        return self.drops or self._transport.is_closing()

    def close(self) -> None:
        if not self._protocol.receiving or self._transport.is_closing():
            self._transport.close()
        elif not self.drops:
            self.drops = True
            if self._transport.can_write_eof():  # not with TLS
                self._transport.write_eof()
            self._protocol.drop_rest()


class LimitedProtocol(HttpToolsProtocol):
    """A connection whose requests have limited headers.

    header_bytes: the largest size of a request's line and headers
    seconds: the longest time from the start of a connection, or of a request, to the end of its headers, and from an
        early answer to the end of the request
    receiving: whether a part of a request is still to come
    """

    def __init__(self, header_bytes: int, seconds: float, **uvicorn: Any) -> None:
        super().__init__(**uvicorn)
        self._header_bytes, self._seconds = header_bytes, seconds
        self._size = 0  # of the complete headers
        self._pending = 0  # bytes of a request whose headers are not complete
        self._headers_done = self._answered = self.receiving = False
        self._timer: asyncio.TimerHandle | None = None
        self._draining = False

    def connection_made(self, transport: Any) -> None:
        self._closing = _Transport(transport, self)
        super().connection_made(self._closing)  # type: ignore[arg-type]
        self._timer = self.loop.call_later(self._seconds, self._expire)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self.receiving = False
        super().connection_lost(exc)

    def drop_rest(self) -> None:
        """Read what comes for a while, without looking at it, and close then, or when the caller does."""
        self._stop_timer()
        self.flow.resume_reading()
        self._timer = self.loop.call_later(self._seconds, self._abort)

    def _abort(self) -> None:
        self.transport.abort()

    def shutdown(self) -> None:
        """Close the connection after the request that runs, or after one that comes within LINGER_SECONDS."""
        self._draining = True
        if self._idle():
            self.loop.call_later(LINGER_SECONDS, self._close_idle)
        else:
            super().shutdown()

    def _idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _close_idle(self) -> None:
        if self._closing.drops:
            self._abort()
        if not self._idle() or self.transport.is_closing():
            return
        if self.scheme == "https" and not self.transport.get_write_buffer_size():  # type: ignore[attr-defined]
            self.transport.abort()  # close() would wait for the peer's end of TLS, which idle callers do not send
        else:
            self.transport.close()

    def data_received(self, data: bytes) -> None:
        if self._closing.drops:
            return
        super().data_received(data)
        if self._closing.drops:
            return
        if self._headers_done:
            if not (self._answered and self.receiving):
                self._stop_timer()
            return
        self._pending += len(data)
        self._check(self._pending)
        if self._timer is None and not self.transport.is_closing():
            self._timer = self.loop.call_later(self._seconds, self._expire)

    def on_message_begin(self) -> None:
        self._size, self._pending, self._headers_done, self._answered, self.receiving = 0, 0, False, False, True
        super().on_message_begin()

    def on_body(self, body: bytes) -> None:
        if self.cycle is not None and not self.transport.is_closing():
            super().on_body(body)

    def on_message_complete(self) -> None:
        self.receiving = False
        if self.cycle is not None and not self.transport.is_closing():
            super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.receiving and self._timer is None and not self.transport.is_closing():  # such as with a wrong token
            self._answered = True
            self._timer = self.loop.call_later(self._seconds, self.transport.close)

    def on_url(self, url: bytes) -> None:
        self._size += len(url)
        self._check(self._size)
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._size += len(name) + len(value)
        self._check(self._size)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._headers_done = True
        if not self.transport.is_closing():
            super().on_headers_complete()
            if self._draining and self.cycle is not None:
                self.cycle.keep_alive = False

    def _check(self, size: int) -> None:
        if size > self._header_bytes:
            self._refuse(_TOO_LARGE)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expire(self) -> None:
        self._timer = None
        self._refuse(_TOO_SLOW)

    def _refuse(self, answer: bytes) -> None:
        if not self.transport.is_closing():
            self.transport.write(answer)
            self.transport.close()
