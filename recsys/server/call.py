"""A request to a server on its way, over HTTP or gRPC."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING

from recsys.server.batcher import Work
from recsys.server.feedback import MAX_ID_LENGTH

if TYPE_CHECKING:
    from recsys.server.served_models import LoadedVersion


@dataclass(slots=True)
class Call:
    """A request on its way. loaded, rows and parsed are known once it has been read.

    role: in the comparison of a canary, as in ServedModel.choose
    fault: the canary has refused what the current version answers
    traceparent: the caller's span (W3C trace context)
    """

    protocol: str
    request_id: str = ""
    routing_key: bytes | None = None
    traceparent: bytes | None = None
    deadline: float | None = None
    loaded: LoadedVersion | None = None
    role: str = ""
    fault: bool = False
    score: float | None = None
    rows: int = 0
    parsed: float = 0.0
    work: Work | None = None
    started: float = field(default_factory=perf_counter)

    def __post_init__(self) -> None:
        if self.request_id:
            self.request_id = "".join(c for c in self.request_id[:MAX_ID_LENGTH] if " " <= c <= "~")
        if not self.request_id.strip():  # else all requests whose ids have no such character would share one
            self.request_id = os.urandom(12).hex()  # half a microsecond; nobody can guess those of others

    def parts(self) -> Iterator[tuple[str, float]]:
        """Return the parts of the request one after another, with their durations in seconds."""
        if self.parsed:
            yield "parse", self.parsed - self.started
        if self.work is not None and self.work.queue_seconds:
            yield "queue", self.work.queue_seconds
            if self.work.transform_seconds:
                yield "features", self.work.transform_seconds
            if self.work.model_seconds:
                yield "model", self.work.model_seconds
