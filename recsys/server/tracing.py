"""Spans of requests for OpenTelemetry, sent to a collector by OTLP over HTTP.

A request is a span of the kind SERVER; its parts (parse, queue, features, model) are spans below it. Spans are made
once the request has its answer, from times that the server measures anyway.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from time import perf_counter
from typing import TYPE_CHECKING, Any

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import SpanKind, Status, StatusCode, format_trace_id, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from recsys.base.json_log import log

if TYPE_CHECKING:
    from recsys.server.call import Call

SERVICE = "recsys.serve"
CLOSE_SECONDS = 2.0  # to send the last spans
QUIET_SECONDS = 60.0  # between two lines about a collector that cannot be reached


class _Log(logging.Handler):
    """Writes what OpenTelemetry logs as the server's own lines, and few of them."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)  # it warns of every attempt
        self._last = -QUIET_SECONDS

    def emit(self, record: logging.LogRecord) -> None:
        if (now := perf_counter()) - self._last >= QUIET_SECONDS:
            self._last = now
            log("warning", "traces", message=record.getMessage().splitlines()[0][:300])


class Tracer:
    """Sends spans to a collector, in the background. A collector that cannot be reached fails no request."""

    def __init__(self, collector: str, share: float) -> None:
        """share: of the requests without a `traceparent`; for others, the caller has decided."""
        resource = Resource.create({SERVICE_NAME: os.environ.get("OTEL_SERVICE_NAME", SERVICE)})
        sampler = ParentBased(TraceIdRatioBased(share))
        self._provider = TracerProvider(sampler, resource, shutdown_on_exit=False)
        self._exporter = OTLPSpanExporter(endpoint=f"{collector.rstrip('/')}/v1/traces")
        self._provider.add_span_processor(BatchSpanProcessor(self._exporter))
        logger = logging.getLogger("opentelemetry")
        logger.handlers, logger.propagate = [_Log()], False
        self._tracer = self._provider.get_tracer("recsys.serving")
        self._context = TraceContextTextMapPropagator()

    def record(self, call: Call, status: int, message: str | None) -> str | None:
        """Make the spans of a request that has its answer. message: of its error

        Returns the id of the trace, None if the request is not sampled.
        """
        start = time.time_ns() - _ns(perf_counter() - call.started)
        about: dict[str, Any] = {"recsys.request_id": call.request_id, "recsys.protocol": call.protocol}
        if call.loaded is not None:
            about |= {"recsys.model": call.loaded.name, "recsys.version": call.loaded.version}
        about |= {"recsys.rows": call.rows, "recsys.status": status}
        name = f"infer {call.loaded.name}" if call.loaded is not None else "infer"
        given = call.traceparent
        parent = self._context.extract({"traceparent": given.decode("latin-1")}) if given else None
        span = self._tracer.start_span(name, parent, SpanKind.SERVER, about, start_time=start)
        if not span.is_recording():
            return None
        context, at = set_span_in_context(span), start
        for part, seconds in call.parts():
            end = at + _ns(seconds)
            self._tracer.start_span(part, context, start_time=at).end(end)
            at = end
        if status >= 500:
            span.set_status(Status(StatusCode.ERROR, message))
        span.end()
        return format_trace_id(span.get_span_context().trace_id)

    def close(self) -> None:
        """Send the spans that wait, for at most CLOSE_SECONDS."""
        flush = threading.Thread(target=self._provider.force_flush, daemon=True)
        flush.start()
        flush.join(CLOSE_SECONDS)
        self._exporter.shutdown()  # it would go on for half a minute if the collector cannot be reached
        self._provider.shutdown()


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)
