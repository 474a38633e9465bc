"""The HTTP side of a worker: an ASGI application without a framework, so that a request costs little."""

from __future__ import annotations

import asyncio
import re
import zlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import orjson

from recsys.base.errors import did_you_mean
from recsys.server import json_api, openapi, rest_v2, v2_infer
from recsys.server.call import Call
from recsys.server.core import Core
from recsys.server.openapi import OBJECT, Route, body_of
from recsys.server.payloads import LISTS
from recsys.server.request_error import RequestError, one_line, status_of

Headers = list[tuple[bytes, bytes]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
Receive = Callable[[], Awaitable[dict[str, Any]]]

JSON, TEXT, HTML, BINARY = b"application/json", b"text/plain; version=0.0.4", b"text/html", b"application/octet-stream"
LOAD_TYPES = (b"application/json", b"application/octet-stream", b"application/x-www-form-urlencoded")  # curl's is last
ENCODINGS = {b"gzip": 16 + zlib.MAX_WBITS, b"x-gzip": 16 + zlib.MAX_WBITS, b"deflate": zlib.MAX_WBITS}
BODIES = 16  # number of bodies of the largest size that a worker receives at the same time
OPEN = ("/v2/health/live", "/v2/health/ready")  # without a token, for load balancers
_PAGE_HEADERS: Headers = [
    (b"content-security-policy", b"default-src 'none'; style-src 'unsafe-inline'"),
    (b"x-content-type-options", b"nosniff"),
]


Handler = Callable[..., "Response | Awaitable[Response]"]
_TEXT = {"type": "string"}
_TENSORS = {"type": "array", "items": OBJECT}
_INFER = body_of({"id": _TEXT, "parameters": OBJECT, "inputs": _TENSORS, "outputs": _TENSORS}, "inputs")
_FEEDBACK = body_of({"feedback": {"type": "array", "items": OBJECT}}, "feedback")
_SIMILAR = body_of({"item": {"type": ["string", "number"]}, "k": {"type": "integer", "minimum": 1}, **LISTS}, "item")
_LOAD = body_of({"parameters": body_of({"version": {"type": ["string", "integer"]}})})


class HttpRequest:
    """An HTTP request: its route, its headers and its body. hosts: the headers `Host`, which may be several"""

    __slots__ = ("body", "call", "headers", "hosts", "method", "path", "query", "scheme")

    def __init__(self, scope: dict[str, Any]) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.query: bytes = scope["query_string"]
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.hosts = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
        self.scheme: str = scope["scheme"]
        self.body = b""
        get = self.headers.get
        self.call = Call(
            "http", get(b"x-request-id", b"").decode("latin-1"), get(b"x-routing-key"), get(b"traceparent")
        )


@dataclass(slots=True)
class Response:
    """The answer to a request. kind: content type; headers: further headers"""

    body: bytes
    kind: bytes = JSON
    status: int = 200
    headers: Headers | None = None


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
        if request.path not in OPEN:  # a page of another site may have sent it, or it may lack the token
            hosts = self.core.hosts
            for host in request.hosts:
                hosts.check_host(host)
            if request.method not in ("GET", "HEAD"):
                origin = request.headers.get(b"origin")
                host = request.hosts[0] if request.hosts else None
                hosts.check_origin(None if origin is None else origin.decode("latin-1"), host)
            self.core.check_token(request.headers.get(b"authorization"))
        if request.method == "POST":
            request.body = await self._body(request, receive)
            request.call.protocol = "json"
            if (timeout := request.headers.get(b"timeout")) is not None:
                if not timeout.isdigit() or len(timeout) > 15:
                    raise RequestError(400, "header timeout: must be a whole number of microseconds")
                self.core.set_timeout(request.call, int(timeout))
        path = "/" + request.path.strip("/")
        takes = ""
        for pattern, route in PATTERNS:
            if (match := pattern.fullmatch(path)) is not None:
                if request.method == route.method or (route.method, request.method) == ("GET", "HEAD"):
                    made = route.answer(self.core, request, **match.groupdict())
                    return made if isinstance(made, Response) else await made
                takes = takes or route.method
        if takes:
            raise MethodError(f"{path[:80]}: takes {takes}, not {request.method[:20]}", takes)
        if (below := re.fullmatch("/v2/(?:models/[^/]*/(?:versions/[^/]*/)?)?(.*)", path)) is not None:
            v2_infer.check_supported(below[1])
            raise RequestError(404, f"{path[:80]}: no such path of the open inference protocol")
        places = ["/models/NAME/predict", *(route.path for route in ROUTES if "{" not in route.path)]
        raise RequestError(404, f"{path[:80]}: no such path{did_you_mean(path[:80], places)}")

    async def _body(self, request: HttpRequest, receive: Receive) -> bytes:
        """Return the body of a request, decompressed. Raises RequestError."""
        encoding = request.headers.get(b"content-encoding", b"identity").lower()
        if encoding != b"identity" and encoding not in ENCODINGS:
            shown = encoding.decode("latin-1")[:40]
            raise RequestError(415, f"Content-Encoding {shown}: send the body as gzip or deflate, or uncompressed")
        body = await self._read(request, receive)
        if encoding == b"identity":
            return body
        decoder = zlib.decompressobj(ENCODINGS[encoding])
        try:
            found = decoder.decompress(body, self._largest + 1)
        except zlib.error as e:
            raise RequestError(400, f"the body cannot be decompressed ({e})") from e
        if len(found) > self._largest:
            raise self._too_large()
        if not decoder.eof or decoder.unused_data:
            raise RequestError(400, "the body cannot be decompressed: it ends early, or bytes follow its end")
        return found

    async def _read(self, request: HttpRequest, receive: Receive) -> bytes:
        """Return the body of a request. Raises RequestError if it is too large or takes too long."""
        if int(request.headers.get(b"content-length", b"0")) > self._largest:
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


def _json(value: object, status: int = 200) -> Response:
    return Response(orjson.dumps(value), status=status)


def _verb(name: str) -> Handler:
    """Return the answer to rows or histories as JSON."""
    answer = json_api.VERBS[name]

    async def answered(
        core: Core, request: HttpRequest, model: str | None = None, version: str | None = None
    ) -> Response:
        return Response(await answer(core, request.call, model, version or None, request.body))

    return answered


async def _feedback(core: Core, request: HttpRequest) -> Response:
    return Response(await json_api.feedback(core, request.body))


async def _infer(core: Core, request: HttpRequest, model: str, version: str | None) -> Response:
    request.call.protocol = "v2"
    length = request.headers.get(rest_v2.BINARY_HEADER)
    body, size = await rest_v2.infer_json(core, request.call, model, version or None, request.body, length)
    if size is None:
        return Response(body)
    return Response(body, BINARY, headers=[(rest_v2.BINARY_HEADER, b"%d" % size)])


def _index(core: Core, request: HttpRequest) -> Response:
    return _json(rest_v2.repository_index(core, request.body))


def _models(core: Core, _: HttpRequest) -> Response:
    return _json({"models": core.registry.names()})


def _ready(core: Core, _: HttpRequest) -> Response:
    return _json({"ready": core.is_ready}, 200 if core.is_ready else 503)


def _metadata(core: Core, _: HttpRequest, model: str, version: str | None = None) -> Response:
    loaded = rest_v2.metadata_version(core, model, version)
    return _json(rest_v2.model_metadata(core.registry.get(model), loaded))


def _config(core: Core, _: HttpRequest, model: str, version: str | None) -> Response:
    loaded = rest_v2.metadata_version(core, model, version)
    config = rest_v2.model_config(core.registry.get(model), loaded, core.settings)
    return _json(rest_v2.to_json(config))


def _model_ready(core: Core, _: HttpRequest, model: str, version: str | None) -> Response:
    rest_v2.metadata_version(core, model, version)
    return _json({"name": model, "ready": True})


def _statistics(core: Core, request: HttpRequest, model: str | None = None, version: str | None = None) -> Response:
    if model is None and core.registry.find("stats") is not None:  # the metadata of a model of this name
        return _metadata(core, request, "stats")
    return _json(rest_v2.to_json(rest_v2.statistics_of(core, model, version)))


def _version_to_load(request: HttpRequest) -> str | None:
    """Return the version that a request to load or unload a model names."""
    kind = request.headers.get(b"content-type", LOAD_TYPES[0]).partition(b";")[0].strip().lower()
    if kind not in LOAD_TYPES:  # such as the content types of forms
        raise RequestError(415, f"Content-Type {kind.decode('latin-1')[:80]}: send application/json")
    return rest_v2.load_version(request.body, request.query)


async def _load(core: Core, request: HttpRequest, model: str) -> Response:
    await core.registry.load(model, _version_to_load(request))
    core.announce_reload()
    return Response(b"{}")


async def _unload(core: Core, request: HttpRequest, model: str) -> Response:
    _version_to_load(request)  # a body that cannot be read is refused
    await core.registry.unload(model)
    core.announce_reload()
    return Response(b"{}")


def _docs(core: Core, request: HttpRequest) -> Response:
    address = f"{request.scheme}://{request.hosts[0] if request.hosts else 'HOST:PORT'}"
    return Response(openapi.page(core, address, ROUTES), HTML, headers=_PAGE_HEADERS)


def _metrics(core: Core, _: HttpRequest) -> Response:
    core.update_gauges()
    return Response(core.metrics.page(), TEXT)


ROUTES: list[Route] = [
    Route("POST", "/predict", "Score rows with the only ranking model", _verb("predict"), of_each_model=True),
    Route("POST", "/recommend", "Recommend items with the only model for it", _verb("recommend"), of_each_model=True),
    Route(
        "POST",
        "/models/{model}/predict",
        "Score rows; /versions/VERSION may follow the model",
        _verb("predict"),
        of_each_model=True,
    ),
    Route(
        "POST",
        "/models/{model}/recommend",
        "Recommend items for a history, or for several in queries",
        _verb("recommend"),
        of_each_model=True,
    ),
    Route("POST", "/similar", "List the items most like one, with the only model for it", _verb("similar"), _SIMILAR),
    Route("POST", "/models/{model}/similar", "List the items most like one", _verb("similar"), _SIMILAR),
    Route("POST", "/v2/models/{model}/infer", "Inference with tensors (open inference protocol v2)", _infer, _INFER),
    Route("POST", "/feedback", "Say what users did with answers, by request id", _feedback, _FEEDBACK),
    Route("GET", "/v2/health/live", "Whether the server runs", lambda *_: _json({"live": True})),
    Route("GET", "/v2/health/ready", "Whether requests are answered; not without a loaded model", _ready),
    Route("GET", "/v2", "Metadata of the server", lambda *_: _json(rest_v2.server_metadata())),
    Route(
        "POST",
        "/v2/repository/index",
        "List all models and versions",
        _index,
        body_of({"ready": {"type": "boolean"}}),
        {"type": "array"},
    ),
    Route("POST", "/v2/repository/models/{model}/load", "Load a model, or let another version answer", _load, _LOAD),
    Route("POST", "/v2/repository/models/{model}/unload", "Stop serving a model", _unload, _LOAD),
    Route("GET", "/v2/models", "Names of the models that are served, as KServe lists them", _models),
    Route("GET", "/v2/models/stats", "Numbers and times of all requests", _statistics),
    Route("GET", "/v2/models/{model}", "Metadata of a model", _metadata),
    Route("GET", "/v2/models/{model}/config", "Configuration of a model, as Triton's clients ask for it", _config),
    Route("GET", "/v2/models/{model}/stats", "Numbers and times of a model's requests, as of Triton", _statistics),
    Route("GET", "/v2/models/{model}/ready", "Whether a model is ready", _model_ready),
    Route("GET", "/metrics", "Prometheus metrics", _metrics, answered=_TEXT, content="text/plain"),
    Route("GET", "/", "Names and links of the models", lambda core, _: Response(openapi.index(core))),
    Route("GET", "/docs", "This page", _docs, answered=_TEXT, content="text/html"),
    Route("GET", "/openapi.json", "The paths as OpenAPI", lambda core, _: _json(openapi.document(core, ROUTES))),
]
_VERSIONED = [(re.sub("^((?:/v2)?/models/{model})", r"\1(?:/versions/{version})?", r.path), r) for r in ROUTES]
PATTERNS = [(re.compile(re.sub(r"{(\w+)}", r"(?P<\1>[^/]*)", path)), route) for path, route in _VERSIONED]


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
