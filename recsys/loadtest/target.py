"""The server under test: its address, the inputs of its models, and whether it takes a request."""

from __future__ import annotations

import json
import socket
import ssl
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from http.client import HTTPException, HTTPResponse
from typing import Any

from recsys.base.errors import UserError, did_you_mean
from recsys.loadtest.answers import MAX_BYTES
from recsys.loadtest.encode_tensors import InputSpec
from recsys.loadtest.endpoint import Endpoint, TargetModel, tls_context

SECONDS = 10.0  # to wait for an answer to a question about a model


class TargetBase(ABC):
    """A server that is asked about its models, before and after requests are timed."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint

    @abstractmethod
    def models(self) -> list[str]:
        """Return the names of its models, none if it does not say."""

    def only_model(self) -> str:
        """Return the name of the only model. Raises UserError."""
        names = self.models()
        if len(names) != 1:
            listed = f"several models ({', '.join(names)})" if names else "no list of its models"
            raise UserError(f"model: is missing, and the server {self.endpoint.address} has {listed}; add model=NAME")
        return names[0]

    def error(self, why: str) -> UserError:
        """Return an error of this server. why: the problem, and what to do"""
        return UserError(f"target={self.endpoint.address}: {why}")

    def no_such_model(self, name: str, version: str | None) -> UserError:
        """Return the error for a model that the server does not have."""
        shown, hint = f"{name}, version {version}" if version else name, did_you_mean(name, self.models())
        return UserError(f"model={shown}: the server {self.endpoint.address} has no such model{hint}")

    def refused_token(self) -> UserError:
        """Return the error for a server that refuses the token, or the lack of one."""
        if self.endpoint.token:
            return self.error("refuses the token that was sent; correct the variable RECSYS_TOKEN, or the key token")
        return self.error("needs a token, and none was sent; set the variable RECSYS_TOKEN, or the key token")

    def untrusted(self, why: str) -> UserError:
        """Return the error for a server whose certificate cannot be verified."""
        why, tls_ca = " ".join(why.split()).rstrip("."), self.endpoint.tls_ca
        if "mismatch" in why.lower():  # the certificate is trusted, but names another host
            hint = "write the host into target as the certificate names it"
        elif tls_ca is not None:
            hint = f"tls_ca={tls_ca} does not have the authority that signed it"
        else:
            hint = "add tls_ca=FILE.pem, the certificate of its authority, or its own if it is self-signed"
        return self.error(f"its certificate cannot be verified ({why}); {hint}")


class HttpTarget(TargetBase):
    """A server that speaks HTTP."""

    def get(self, path: str) -> tuple[int, bytes]:
        """Return the status and the body of GET `path`. Raises UserError."""
        return self.exchange(self.endpoint.http_request("GET", path))

    def exchange(self, request: bytes) -> tuple[int, bytes]:
        """Send a request over a connection of its own; return the status and the body. Raises UserError."""
        try:
            connection = socket.create_connection((self.endpoint.host, self.endpoint.port), timeout=SECONDS)
            if self.endpoint.tls:
                context = tls_context(self.endpoint.tls_ca)
                connection = context.wrap_socket(connection, server_hostname=self.endpoint.host)
            with connection:
                connection.sendall(request)
                response = HTTPResponse(connection)
                response.begin()
                parts, size, end = list[bytes](), 0, time.monotonic() + SECONDS
                while part := response.read1(1 << 20):
                    parts.append(part)
                    size += len(part)
                    if time.monotonic() > end:
                        raise TimeoutError
                    if size > MAX_BYTES:
                        raise HTTPException(f"has more than {MAX_BYTES:,} bytes")
                if response.length:  # it was cut off
                    raise HTTPException("is cut off")
                return response.status, b"".join(parts)
        except ssl.SSLCertVerificationError as e:
            raise self.untrusted(e.verify_message) from e
        except ssl.SSLError as e:
            raise self.error(f"does not speak TLS ({e.reason}); write target=http://... if it has none") from e
        except ConnectionRefusedError as e:
            raise self.error("refuses the connection; start the server, or correct the port") from e
        except TimeoutError as e:
            raise self.error(f"gives no answer within {SECONDS:g} s") from e
        except (HTTPException, ConnectionResetError, BrokenPipeError) as e:
            fix = "for TLS write https://..., for a gRPC port add protocol=grpc"
            raise self.error(f"does not speak HTTP; {fix}") from e
        except OSError as e:
            raise self.error(f"cannot be reached ({e.strerror or e})") from e

    def _about(self, path: str) -> tuple[int, Any]:
        """Return the status and the JSON of GET `path`, {} if it is not an object."""
        status, body = self.get(path)
        return status, _dict(_json(body))

    def check(self) -> None:
        """Raise UserError if the server does not speak the open inference protocol, or refuses the token."""
        status, body = self.get("/v2")
        if status in (401, 403):
            raise self.refused_token()
        if status != 200 or not isinstance(_json(body), dict):
            why = f"does not speak the open inference protocol v2 (GET /v2: status {status})"
            raise self.error(f"{why}; correct the port, or add protocol=rows for POST /predict")

    def extensions(self) -> list[str]:
        """Return the extensions of the protocol that the server announces."""
        status, about = self._about("/v2")
        return _texts(about.get("extensions")) if status == 200 else []

    def models(self) -> list[str]:
        status, body = self.exchange(self.endpoint.http_request("POST", "/v2/repository/index"))
        listed = _json(body) if status == 200 else None
        if isinstance(listed, list):
            return sorted({str(m["name"]) for m in listed if "name" in _dict(m)})
        return sorted(_texts(self._about("/v2/models")[1].get("models")))  # KServe's

    def model(self, name: str, version: str | None) -> TargetModel:
        """Return a model with its inputs and, if the server says, its outputs. Raises UserError if there is none."""
        status, about = self._about(TargetModel(name, version, ()).path)
        if status != 200 or not isinstance(about.get("inputs"), list):
            raise self.no_such_model(name, version)
        try:
            inputs = tuple(InputSpec(i["name"], i["datatype"], tuple(map(int, i["shape"]))) for i in about["inputs"])
        except (KeyError, TypeError, ValueError) as e:
            why = f"its inputs of the model {name} have no name, datatype and shape"
            raise self.error(f"{why}; correct the server") from e
        listed = about.get("outputs")
        outputs = map(_dict, listed if isinstance(listed, list) else ())
        return TargetModel(
            name, version, inputs, {str(o["name"]): str(o.get("datatype", "")) for o in outputs if "name" in o}
        )

    def ask(self, request: bytes) -> tuple[str | None, bytes]:
        """Send one request, and return why the server refuses it, None if it does not, and its answer."""
        status, body = self.exchange(request)
        if 200 <= status < 300:
            return None, body
        if status in (401, 403):
            raise self.refused_token()
        answer = _json(body)
        reason = answer.get("error") if isinstance(answer, dict) else body[:200].decode(errors="replace")
        return f"status {status}, {' '.join(str(reason).split())[:300]}", body

    def statistics(self, name: str) -> Mapping[str, Any] | None:
        """Return the statistics of a model as Triton writes them, or None."""
        status, about = self._about(f"{TargetModel(name, None, ()).path}/stats")
        return about if status == 200 and about else None


def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def _dict(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _texts(value: object) -> list[str]:
    return list(map(str, value)) if isinstance(value, list) else []
