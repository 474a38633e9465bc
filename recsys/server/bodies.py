"""Compressed bodies of requests."""

from __future__ import annotations

import zlib

from recsys.server.request_error import RequestError

ENCODINGS = {b"gzip": 16 + zlib.MAX_WBITS, b"x-gzip": 16 + zlib.MAX_WBITS, b"deflate": zlib.MAX_WBITS}


def check_encoding(encoding: bytes | None) -> None:
    """Raise RequestError (415) for a Content-Encoding that `decompressed` does not read."""
    if encoding is not None and encoding.lower() not in (b"identity", *ENCODINGS):
        shown = encoding.decode("latin-1")[:40]
        raise RequestError(415, f"Content-Encoding {shown}: send the body as gzip or deflate, or uncompressed")


def decompressed(body: bytes, encoding: bytes | None, most: int) -> bytes | None:
    """Return the body of a request. It has at most `most` bytes, or the result is None. Raises RequestError."""
    bits = ENCODINGS.get((encoding or b"").lower())
    if bits is None:
        return body
    decoder = zlib.decompressobj(bits)
    try:
        found = decoder.decompress(body, most + 1)
    except zlib.error as e:
        raise RequestError(400, f"the body cannot be decompressed ({e})") from e
    if len(found) > most:
        return None
    if not decoder.eof or decoder.unused_data:
        raise RequestError(400, "the body cannot be decompressed: it ends early, or bytes follow its end")
    return found
