"""Which web addresses may send requests: a page in a browser must not use a server that listens on its machine.

A page of another site can send requests to 127.0.0.1, and with a name that it lets point there (DNS rebinding) it can
also read the answers. The first have a foreign `Origin`, the second a foreign `Host`. A page cannot know a token: with
one, both are free, unless `allowed_hosts` names some.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Sequence
from functools import lru_cache

from recsys.base.errors import UserError
from recsys.server.request_error import RequestError

ANY = "*"
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9_.-]+)(?::[0-9]{0,5})?", re.IGNORECASE)


class Hosts:
    """The names of a server. Addresses need no name: only a name can be made to point elsewhere.

    Args:
        bound: the address or the name that the server listens on.
        allowed: further names; "*" allows all.
        token: whether requests need a token.
    """

    def __init__(self, bound: str, allowed: Sequence[str] = (), token: bool = False) -> None:
        self._allowed = frozenset(name.lower().rstrip(".") for name in allowed)
        self._own = frozenset({"localhost", bound.lower(), socket.gethostname().lower()})
        self._free = ANY in self._allowed or (token and not allowed)

        @lru_cache(maxsize=256)
        def check_host(host: str) -> None:
            """Raise RequestError if the header `Host` is not a name of this server."""
            name = _name(host)
            if name is None:
                raise RequestError(400, f"Host {host[:80]!r}: is not a host")
            if self._free or name in self._own or name in self._allowed or name.endswith(".localhost"):
                return
            try:
                ipaddress.ip_address(name)
            except ValueError as e:
                fix = f"start it with allowed_hosts=[{name[:80]}], or with a token"
                raise RequestError(403, f"Host {name[:80]}: is not a name of this server; {fix}") from e

        self.check_host = check_host

    def check_origin(self, origin: str | None, host: str | None) -> None:
        """Raise RequestError if a browser says that a page of another site has sent a request.

        origin: the header `Origin`, which other clients do not send
        """
        if origin is None or self._free:
            return
        scheme, _, place = origin.partition("://")
        if scheme in ("http", "https") and (place == host or _name(place) in self._allowed):
            return
        fix = "if the page is yours, start the server with allowed_hosts=[its host]"
        raise RequestError(403, f"Origin {origin[:80]}: pages of other sites cannot use this server; {fix}")


def check_host_names(names: Sequence[str]) -> None:
    """Check the setting `allowed_hosts`. Raises UserError."""
    for name in names:
        if name != ANY and _name(name) != name.lower().rstrip("."):
            example = "recsys.example.com, or * for any"
            raise UserError(f"allowed_hosts: {name}: write a name without a scheme and a port, such as {example}")


def _name(host: str) -> str | None:
    """Return the name or address in HOST or HOST:PORT, or None if the text is neither."""
    match = _HOST.fullmatch(host)
    return match[1].strip("[]").lower().rstrip(".") if match else None
