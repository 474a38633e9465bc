"""The address of a server, and the model that it is asked for."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from urllib.parse import quote, urlsplit

from recsys.base.errors import UserError
from recsys.loadtest.encode_tensors import InputSpec

SCHEMES = ("http", "https", "grpc", "grpcs")


@dataclass(frozen=True)
class Endpoint:
    """The address of a server.

    token: sent as `Authorization: Bearer TOKEN`
    tls_ca: a PEM file of the authorities whose certificates are trusted; None for the system's authorities
    """

    host: str
    port: int
    tls: bool = False
    token: str | None = field(default=None, repr=False)
    tls_ca: str | None = None

    @property
    def address(self) -> str:
        """Return HOST:PORT."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def http_request(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> bytes:
        """Return an HTTP/1.1 request as bytes, with the server's address, the length of the body and the token."""
        fields = {"host": self.address, "content-length": str(len(body)), **(headers or {})}
        if self.token:
            fields["authorization"] = f"Bearer {self.token}"
        lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        return f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode() + body


@cache  # connections share it, as it takes a while to read the certificates
def tls_context(tls_ca: str | None) -> ssl.SSLContext:
    """Return the TLS context, which holds the trusted authorities. tls_ca: as in Endpoint"""
    return ssl.create_default_context(cafile=tls_ca)


def parse_target(target: str, protocol: str, token: str | None = None, tls_ca: str | None = None) -> Endpoint:
    """Return the address that `target` names. Raises UserError, also for a tls_ca that cannot be read."""
    example = "name a server, such as target=http://127.0.0.1:8000"
    parts = urlsplit(target if "://" in target else f"http://{target}")
    try:
        host, port = parts.hostname, parts.port
    except ValueError as e:
        raise UserError(f"target={target}: is not an address; {example}") from e
    if not host or parts.scheme not in SCHEMES or parts.path.strip("/") or parts.query:
        raise UserError(f"target={target}: is not an address; {example}")
    if parts.scheme.startswith("grpc") and protocol != "grpc":
        raise UserError(f"target={target}: is a gRPC address; add protocol=grpc")
    tls = parts.scheme in ("https", "grpcs")
    default = 8001 if protocol == "grpc" else 443 if tls else 80
    endpoint = Endpoint(host, port or default, tls, token, tls_ca)
    if tls_ca is None:
        return endpoint
    if not tls:
        scheme = "grpcs" if protocol == "grpc" else "https"
        raise UserError(f"tls_ca={tls_ca}: needs an encrypted target; write target={scheme}://{endpoint.address}")
    if not Path(tls_ca).is_file():
        raise UserError(f"tls_ca={tls_ca}: no such file; name a PEM file")
    try:
        tls_context(tls_ca)
    except OSError as e:  # SSLError is one
        raise UserError(f"tls_ca={tls_ca}: cannot be read as certificates; name a PEM file") from e
    return endpoint


@dataclass(frozen=True)
class TargetModel:
    """The model that requests are for. name: None with the only model of a server that takes rows

    outputs: datatypes by name, none if the server does not say
    """

    name: str | None
    version: str | None
    inputs: tuple[InputSpec, ...]
    outputs: Mapping[str, str] = field(default_factory=dict)

    @property
    def path(self) -> str:
        """Return the model's path in the open inference protocol."""
        version = f"/versions/{quote(self.version, safe='')}" if self.version else ""
        return f"/v2/models/{quote(self.name or '', safe='')}{version}"
