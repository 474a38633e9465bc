"""The HTTP side of a worker: an ASGI application without a framework, so that a request costs little."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import orjson

from recsys.base.errors import did_you_mean
from recsys.server import json_api, openapi, rest_v2, triton_extensions, v2_extensions
from recsys.server.bodies import check_encoding, decompressed
from recsys.server.core import Call, Core
from recsys.server.request_error import RequestError, one_line, status_of

Headers = list[tuple[bytes, bytes]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
Receive = Callable[[], Awaitable[dict[str, Any]]]

JSON, TEXT, HTML, BINARY = b"application/json", b"text/plain; version=0.0.4", b"text/html", b"application/octet-stream"
LOAD_TYPES = (b"application/json", b"application/octet-stream", b"application/x-www-form-urlencoded")  # curl's is last
BODIES = 16  # number of bodies of the largest size that a worker receives at the same time
OPEN = ("/v2/health/live", "/v2/health/ready")  # without a token, for load balancers
PLACES = ("/predict", "/recommend", "/feedback", "/v2", "/docs", "/openapi.json", "/metrics", "/models/NAME/predict")
_PAGE_HEADERS: Headers = [
    (b"content-security-policy", b"default-src 'none'; style-src 'unsafe-inline'"),
    (b"x-content-type-options", b"nosniff"),
]


class HttpRequest:
    """An HTTP request: its route, the headers that the server reads, and its body."""

    __slots__ = (
        "address",
        "authorization",
        "binary_header",
        "body",
        "call",
        "content_type",
        "encoding",
        "hosts",
        "length",
        "method",
        "origin",
        "path",
        "query",
        "timeout",
    )

    def __init__(self, scope: dict[str, Any]) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.query: bytes = scope["query_string"]
        self.authorization = self.binary_header = self.encoding = self.length = self.timeout = None
        self.content_type = self.origin = None
        self.body = b""
        self.hosts: list[str] = []
        request_id = routing_key = traceparent = None
        for name, value in scope["headers"]:
            if name == b"content-length":
                self.length = value
            elif name == rest_v2.BINARY_HEADER:
                self.binary_header = value
            elif name == b"authorization":
                self.authorization = value
            elif name == b"x-request-id":
                request_id = value.decode("latin-1")
            elif name == b"x-routing-key":
                routing_key = value
            elif name == b"timeout":
                self.timeout = value
            elif name == b"content-encoding":
                self.encoding = value
            elif name == b"host":
                self.hosts.append(value.decode("latin-1"))
            elif name == b"origin":
                self.origin = value.decode("latin-1")
            elif name == b"content-type":
                self.content_type = value
            elif name == b"traceparent":
                traceparent = value.decode("latin-1")
        self.address = f"{scope['scheme']}://{self.hosts[0] if self.hosts else 'HOST:PORT'}"
        self.call = Call("http", request_id)
        self.call.routing_key, self.call.traceparent = routing_key, traceparent

    def timeout_us(self) -> int | None:
        """Return the header `timeout`, in microseconds."""
        if self.timeout is None:
            return None
        if not self.timeout.isdigit() or len(self.timeout) > 15:
            raise RequestError(400, "header timeout: must be a whole number of microseconds")
        return int(self.timeout)


class Response:
    """The answer to a request.

    Args:
        body: the bytes after the headers.
        kind: content type.
        status: HTTP status.
        headers: further headers.
    """

    __slots__ = ("body", "headers", "kind", "status")

    def __init__(self, body: bytes, kind: bytes = JSON, status: int = 200, headers: Headers | None = None) -> None:
        self.body, self.kind, self.status, self.headers = body, kind, status, headers


class App:
    """The ASGI application."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self._largest = core.settings.max_body_mb * 2**20
        self._seconds = core.settings.read_s
        self._receiving = 0  # bytes of incomplete bodies

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request = HttpRequest(scope)
        call, error = request.call, None
        try:
            answer = await self._answer(request, receive)
        except asyncio.CancelledError:
            raise
        except Exception as e:
            error = e
            answer = _error_answer(e)
        if call.loaded is not None or error is not None:
            self.core.finish(call, error)
        headers = [
            (b"content-type", answer.kind),
            (b"content-length", b"%d" % len(answer.body)),
            (b"x-request-id", call.request_id.encode("latin-1")),
        ]
        if call.loaded is not None:
            headers.append((b"x-model-version", call.loaded.version.encode("latin-1", "replace")))
        if answer.headers is not None:
            headers += answer.headers
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if request.method == "HEAD" else answer.body})

    async def _answer(self, request: HttpRequest, receive: Receive) -> Response:
        if request.path not in OPEN:
            self._check_sender(request)
        if request.method == "POST":
            check_encoding(request.encoding)
            body = decompressed(await self._read(request, receive), request.encoding, self._largest)
            if body is None:
                raise self._too_large()
            request.body = body
            request.call.protocol = "json"
            self.core.set_timeout(request.call, request.timeout_us())
        return await self._route(request)

    def _check_sender(self, request: HttpRequest) -> None:
        """Raise RequestError if a page of another site may have sent a request, or if it lacks the token."""
        hosts = self.core.hosts
        for host in request.hosts:
            hosts.check_host(host)
        if request.method not in ("GET", "HEAD"):
            hosts.check_origin(request.origin, request.hosts[0] if request.hosts else None)
        self.core.check_token(request.authorization)

    async def _read(self, request: HttpRequest, receive: Receive) -> bytes:
        """Return the body of a request. Raises RequestError if it is too large or takes too long."""
        if request.length is not None and int(request.length) > self._largest:
            raise self._too_large()
        message = await receive()
        if not message.get("more_body"):
            body = message.get("body", b"")
            if len(body) > self._largest:
                raise self._too_large()
            return body
        try:
            async with asyncio.timeout(self._seconds):
                return await self._rest(message, receive)
        except TimeoutError as e:
            raise RequestError(408, f"the body did not come within {self._seconds:g} s") from e

    async def _rest(self, message: dict[str, Any], receive: Receive) -> bytes:
        parts, size = [], 0
        try:
            while True:
                if message["type"] == "http.disconnect":
                    raise RequestError(400, "the caller has gone before the body was complete")
                parts.append(message.get("body", b""))
                size += len(parts[-1])
                self._receiving += len(parts[-1])
                if size > self._largest:
                    raise self._too_large()
                if self._receiving > BODIES * self._largest:
                    raise RequestError(503, "too many large bodies are being received; try again later")
                if not message.get("more_body"):
                    return b"".join(parts)
                message = await receive()
        finally:
            self._receiving -= size

    def _too_large(self) -> RequestError:
        return RequestError(413, f"the body is larger than this server's limit of {self.core.settings.max_body_mb} MiB")

    async def _route(self, request: HttpRequest) -> Response:
        path, core = request.path, self.core
        if path in ("/predict", "/recommend"):
            return await self._people(request, path, None, None)
        if path == "/feedback":
            _check_method(request, "POST")
            return Response(await json_api.feedback(core, request.body))
        parts = path.strip("/").split("/")
        if parts[0] == "v2":
            return await self._v2(request, parts[1:])
        if parts[0] == "models" and len(parts) in (3, 5) and f"/{parts[-1]}" in ("/predict", "/recommend"):
            version = parts[3] if len(parts) == 5 and parts[2] == "versions" else None
            if len(parts) == 3 or version:
                return await self._people(request, f"/{parts[-1]}", parts[1], version)
        pages: dict[str, Callable[[], Response]] = {
            "/": lambda: Response(openapi.index(core), JSON),
            "/docs": lambda: Response(openapi.page(core, request.address), HTML, headers=_PAGE_HEADERS),
            "/openapi.json": lambda: Response(orjson.dumps(openapi.document(core))),
            "/metrics": lambda: Response(_metrics(core), TEXT),
        }
        if path not in pages:
            raise RequestError(404, f"{path[:80]}: no such path{did_you_mean(path[:80], PLACES)}")
        _check_method(request, "GET")
        return pages[path]()

    async def _people(self, request: HttpRequest, path: str, name: str | None, version: str | None) -> Response:
        _check_method(request, "POST")
        answer = json_api.predict if path == "/predict" else json_api.recommend
        return Response(await answer(self.core, request.call, name, version, request.body))

    async def _v2(self, request: HttpRequest, parts: list[str]) -> Response:
        core = self.core
        if not parts:
            _check_method(request, "GET")
            return Response(orjson.dumps(rest_v2.server_metadata()))
        if parts == ["models", "stats"] and core.registry.find("stats") is None:
            return self._statistics(request, None, None)
        if parts[0] == "models" and len(parts) > 1:
            return await self._v2_model(request, parts[1], parts[2:])
        if parts[0] == "health" and len(parts) == 2 and parts[1] in ("live", "ready"):
            _check_method(request, "GET")
            up = parts[1] == "live" or core.is_ready
            return Response(orjson.dumps({parts[1]: up}), status=200 if up else 503)
        if parts == ["repository", "index"]:
            _check_method(request, "POST")
            return Response(orjson.dumps(rest_v2.repository_index(core, request.body)))
        if parts[:2] == ["repository", "models"] and len(parts) == 4 and parts[3] in ("load", "unload"):
            _check_method(request, "POST")
            return await self._repository(request, parts[2], parts[3])
        v2_extensions.check_supported(parts[0])
        raise RequestError(404, f"{request.path[:80]}: no such path of the open inference protocol")

    async def _v2_model(self, request: HttpRequest, name: str, rest: list[str]) -> Response:
        version = None
        if len(rest) >= 2 and rest[0] == "versions":
            version, rest = rest[1], rest[2:]
        if rest == ["infer"]:
            _check_method(request, "POST")
            request.call.protocol = "v2"
            content, header = request.body, request.binary_header
            body, size = await rest_v2.infer(self.core, request.call, name, version, content, header)
            if size is None:
                return Response(body)
            return Response(body, BINARY, headers=[(rest_v2.BINARY_HEADER, b"%d" % size)])
        if rest == ["stats"]:
            return self._statistics(request, name, version)
        v2_extensions.check_supported("/".join(rest))
        if rest not in ([], ["ready"], ["config"]):
            raise RequestError(404, f"{request.path[:80]}: no such path of the open inference protocol")
        _check_method(request, "GET")
        loaded = rest_v2.metadata_version(self.core, name, version)
        if rest == ["ready"]:
            return Response(orjson.dumps({"name": name, "ready": True}))
        if rest == ["config"]:
            config = triton_extensions.model_config(self.core.registry.get(name), loaded, self.core.settings)
            return Response(orjson.dumps(triton_extensions.to_json(config)))
        return Response(orjson.dumps(rest_v2.model_metadata(self.core.registry.get(name), loaded)))

    def _statistics(self, request: HttpRequest, name: str | None, version: str | None) -> Response:
        _check_method(request, "GET")
        found = triton_extensions.statistics_of(self.core, name, version)
        return Response(orjson.dumps(triton_extensions.to_json(found)))

    async def _repository(self, request: HttpRequest, name: str, action: str) -> Response:
        kind = (request.content_type or LOAD_TYPES[0]).partition(b";")[0].strip().lower()
        if kind not in LOAD_TYPES:  # such as the content types of forms
            raise RequestError(415, f"Content-Type {kind.decode('latin-1')[:80]}: send application/json")
        version = rest_v2.load_version(request.body, request.query)
        if action == "load":
            await self.core.registry.load(name, version)
        else:
            await self.core.registry.unload(name)
        self.core.announce_reload()
        return Response(b"{}")


def _metrics(core: Core) -> bytes:
    core.update_gauges()
    return core.metrics.page()


def _check_method(request: HttpRequest, method: str) -> None:
    if request.method != method and (method, request.method) != ("GET", "HEAD"):
        raise MethodError(f"{request.path[:80]}: takes {method}, not {request.method[:20]}", method)


class MethodError(RequestError):
    """A path that takes another method."""

    def __init__(self, message: str, allow: str) -> None:
        super().__init__(405, message)
        self.allow = allow


def _error_answer(error: Exception) -> Response:
    """Return the answer for an error: one line, with the row and the column where a row cannot be read."""
    status = status_of(error)
    body: dict[str, Any] = {"error": one_line(error)}
    for key in ("row", "column"):
        if (place := getattr(error, key, None)) is not None:
            body[key] = place
    headers: Headers = []
    if status in (408, 413, 415, 503):  # the rest of the body is not read
        headers.append((b"connection", b"close"))
    if status == 429:
        headers.append((b"retry-after", b"1"))
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if isinstance(error, MethodError):
        headers.append((b"allow", error.allow.encode()))
    return Response(orjson.dumps(body), status=status, headers=headers)
