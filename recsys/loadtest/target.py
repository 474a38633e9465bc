"""The server under test: its address, the inputs of its models, and whether it takes a request."""

from __future__ import annotations

import json
import socket
import ssl
import time
from collections.abc import Callable
from http.client import HTTPException, HTTPResponse
from typing import Any, Protocol

from recsys.base.errors import UserError, did_you_mean
from recsys.loadtest.answers import MOST_BYTES
from recsys.loadtest.encode_tensors import InputSpec
from recsys.loadtest.endpoint import Endpoint, TargetModel, tls_context

SECONDS = 10.0  # to wait for an answer to a question about a model
Check = Callable[[bytes], None]  # raises UserError for a wrong answer


class LoadTarget(Protocol):
    """A server that is asked about its models, before and after requests are timed."""

    endpoint: Endpoint

    def check(self) -> None:
        """Raise UserError if the server does not speak the open inference protocol, or refuses the token."""

    def extensions(self) -> list[str]:
        """Return the extensions of the protocol that the server announces."""

    def models(self) -> list[str]:
        """Return the names of its models, none if it does not say."""

    def inputs(self, name: str, version: str | None) -> tuple[InputSpec, ...]:
        """Return the inputs of a model. Raises UserError if there is no such model."""

    def outputs(self, name: str, version: str | None) -> dict[str, str]:
        """Return the datatypes of the outputs of a model by name, none if the server does not say."""

    def refusal(self, request: bytes, check: Check) -> str | None:
        """Send one request, check its answer, and return why the server refuses it, None if it does not."""

    def statistics(self, name: str) -> Any:
        """Return the statistics of a model as Triton writes them, or None."""


def only_model(target: LoadTarget) -> str:
    """Return the name of the only model of a server. Raises UserError."""
    names = target.models()
    if len(names) != 1:
        listed = f"several models ({', '.join(names)})" if names else "no list of its models"
        raise UserError(f"model: is missing, and the server {target.endpoint.address} has {listed}; add model=NAME")
    return names[0]


def no_such_model(name: str, version: str | None, target: LoadTarget) -> UserError:
    """Return the error for a model that a server does not have."""
    shown = f"{name}, version {version}" if version else name
    where = f"the server {target.endpoint.address} has no such model"
    return UserError(f"model={shown}: {where}{did_you_mean(name, target.models())}")


def refused_token(endpoint: Endpoint) -> UserError:
    """Return the error for a server that refuses the token, or the lack of one."""
    where = f"target={endpoint.address}"
    if endpoint.token:
        return UserError(
            f"{where}: refuses the token that was sent; correct the variable RECSYS_TOKEN, or the key token"
        )
    return UserError(f"{where}: needs a token, and none was sent; set the variable RECSYS_TOKEN, or the key token")


def untrusted(endpoint: Endpoint, why: str) -> UserError:
    """Return the error for a server whose certificate cannot be verified."""
    why = " ".join(why.split()).rstrip(".")
    if "mismatch" in why.lower():  # the certificate is trusted, but names another host
        hint = "write the host into target as the certificate names it"
    elif endpoint.tls_ca is not None:
        hint = f"tls_ca={endpoint.tls_ca} does not have the authority that signed it"
    else:
        hint = "add tls_ca=FILE.pem, the certificate of the authority that signed it, or its own if it is self-signed"
    return UserError(f"target={endpoint.address}: its certificate cannot be verified ({why}); {hint}")


class HttpTarget:
    """A server that speaks HTTP."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint

    def get(self, path: str) -> tuple[int, bytes]:
        """Return the status and the body of GET `path`. Raises UserError."""
        return self.exchange(self.endpoint.http_request("GET", path))

    def exchange(self, request: bytes) -> tuple[int, bytes]:
        """Send a request over a connection of its own; return the status and the body. Raises UserError."""
        where = f"target={self.endpoint.address}"
        try:
            with self._connected() as connection:
                connection.sendall(request)
                response = HTTPResponse(connection)
                response.begin()
                return response.status, _read(response)
        except ssl.SSLCertVerificationError as e:
            raise untrusted(self.endpoint, e.verify_message) from e
        except ssl.SSLError as e:
            raise UserError(f"{where}: does not speak TLS ({e.reason}); write target=http://... if it has none") from e
        except ConnectionRefusedError as e:
            raise UserError(f"{where}: refuses the connection; start the server, or correct the port") from e
        except TimeoutError as e:
            raise UserError(f"{where}: gives no answer within {SECONDS:g} s") from e
        except (HTTPException, ConnectionResetError, BrokenPipeError) as e:
            raise UserError(
                f"{where}: does not speak HTTP; for TLS write https://..., for a gRPC port add protocol=grpc"
            ) from e
        except OSError as e:
            raise UserError(f"{where}: cannot be reached ({e.strerror or e})") from e

    def outputs(self, name: str, version: str | None) -> dict[str, str]:
        status, body = self.get(TargetModel(name, version, ()).path)
        about = _json(body) if status == 200 else None
        listed = about.get("outputs") if isinstance(about, dict) else None
        described = [o for o in listed if "name" in _dict(o)] if isinstance(listed, list) else []
        return {str(o["name"]): str(o.get("datatype", "")) for o in described}

    def _connected(self) -> socket.socket:
        plain = socket.create_connection((self.endpoint.host, self.endpoint.port), timeout=SECONDS)
        if not self.endpoint.tls:
            return plain
        return tls_context(self.endpoint.tls_ca).wrap_socket(plain, server_hostname=self.endpoint.host)

    def check(self) -> None:
        status, body = self.get("/v2")
        where = f"target={self.endpoint.address}"
        if status in (401, 403):
            raise refused_token(self.endpoint)
        if status != 200 or not isinstance(_json(body), dict):
            why = f"does not speak the open inference protocol v2 (GET /v2: status {status})"
            raise UserError(f"{where}: {why}; correct the port, or add protocol=rows for POST /predict")

    def extensions(self) -> list[str]:
        status, body = self.get("/v2")
        about = _json(body) if status == 200 else None
        found = about.get("extensions") if isinstance(about, dict) else None
        return list(map(str, found)) if isinstance(found, list) else []

    def models(self) -> list[str]:
        status, body = self.exchange(self.endpoint.http_request("POST", "/v2/repository/index"))
        found = _json(body) if status == 200 else None
        if isinstance(found, list):
            return sorted({str(m["name"]) for m in found if "name" in _dict(m)})
        found = _dict(_json(self.get("/v2/models")[1])).get("models")  # KServe's
        return sorted(map(str, found)) if isinstance(found, list) else []

    def inputs(self, name: str, version: str | None) -> tuple[InputSpec, ...]:
        status, body = self.get(TargetModel(name, version, ()).path)
        about = _json(body) if status == 200 else None
        if isinstance(about, dict) and isinstance(about.get("inputs"), list):
            try:
                return tuple(InputSpec(i["name"], i["datatype"], tuple(map(int, i["shape"]))) for i in about["inputs"])
            except (KeyError, TypeError, ValueError) as e:
                why = f"its inputs of the model {name} have no name, datatype and shape"
                raise UserError(f"target={self.endpoint.address}: {why}; correct the server") from e
        raise no_such_model(name, version, self)

    def refusal(self, request: bytes, check: Check) -> str | None:
        status, body = self.exchange(request)
        if 200 <= status < 300:
            check(body)
            return None
        if status in (401, 403):
            raise refused_token(self.endpoint)
        answer = _json(body)
        reason = answer.get("error") if isinstance(answer, dict) else body[:200].decode(errors="replace")
        return f"status {status}, {' '.join(str(reason).split())[:300]}"

    def statistics(self, name: str) -> Any:
        status, body = self.get(f"{TargetModel(name, None, ()).path}/stats")
        return _json(body) if status == 200 else None


def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _read(response: HTTPResponse) -> bytes:
    """Return the body of an answer. Raises TimeoutError or HTTPException if it does not end."""
    parts, size, end = list[bytes](), 0, time.monotonic() + SECONDS
    while part := response.read1(1 << 20):
        parts.append(part)
        size += len(part)
        if time.monotonic() > end:
            raise TimeoutError
        if size > MOST_BYTES:
            raise HTTPException(f"has more than {MOST_BYTES:,} bytes")
    if response.length:  # it was cut off
        raise HTTPException("is cut off")
    return b"".join(parts)
