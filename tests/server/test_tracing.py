"""Spans for OpenTelemetry: what a collector gets."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from typing import Any

import fake_models
import numpy as np
import pytest
import requests
import tritonclient.grpc as triton
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from served import serving

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"  # pragma: allowlist secret
DROPPED = f"00-{TRACE}-{PARENT}-00"  # the caller has decided against a trace


class Collector:
    """An HTTP server that keeps the spans it gets."""

    def __init__(self) -> None:
        spans: list[Any] = []
        resources: list[Any] = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                assert self.path == "/v1/traces"
                got = ExportTraceServiceRequest.FromString(self.rfile.read(int(self.headers["content-length"])))
                for of_resource in got.resource_spans:
                    resources.append(of_resource.resource)
                    spans.extend(s for scope in of_resource.scope_spans for s in scope.spans)
                self.send_response(200)
                self.end_headers()

            def log_message(self, *args: Any) -> None:
                pass

        self.spans, self.resources = spans, resources
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    yield made
    made.server.shutdown()
    made.server.server_close()


def attributes(span: Any) -> dict[str, Any]:
    return {a.key: getattr(a.value, a.value.WhichOneof("value")) for a in span.attributes}


def test_a_request_is_a_span_with_its_parts(
    tmp_path: Path, collector: Collector, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test")
    model = fake_models.write_model(tmp_path / "traced", name="traced")
    with serving(model, traces=collector.address, log="requests") as served:
        post = lambda value, **headers: requests.post(  # noqa: E731
            f"{served.url}/predict", json={"rows": [{"a": value}] * 3}, headers=headers
        )
        assert post(1, traceparent=f"00-{TRACE}-{PARENT}-01", **{"x-request-id": "mine"}).status_code == 200
        assert post(1, traceparent=DROPPED).status_code == 200
        assert post(1, traceparent="no-such-format").status_code == 200
        assert post("x").status_code == 400
        with triton.InferenceServerClient(served.grpc) as client:
            a = triton.InferInput("a", [1], "INT64")
            a.set_data_from_numpy(np.array([1]))
            client.infer("traced", [a], headers={"traceparent": f"00-{TRACE}-{PARENT}-01"})
        requests.get(f"{served.url}/metrics")
        assert served.core.tracer is not None
        served.core.tracer.close()
    requests_of = [s for s in collector.spans if s.kind == s.SPAN_KIND_SERVER]
    assert [attributes(s)["recsys.status"] for s in requests_of] == [200, 200, 400, 200]
    first, strange, wrong, rpc = requests_of
    assert (first.trace_id.hex(), first.parent_span_id.hex()) == (TRACE, PARENT)
    assert strange.trace_id.hex() != TRACE and not strange.parent_span_id
    assert (rpc.trace_id.hex(), attributes(rpc)["recsys.protocol"]) == (TRACE, "grpc")
    about = attributes(first)
    assert about["recsys.request_id"] == "mine" and about["recsys.rows"] == 3 and about["recsys.model"] == "traced"
    parts = [s for s in collector.spans if s.parent_span_id == first.span_id]
    assert [s.name for s in parts] == ["parse", "queue", "features", "model"]
    for before, after in pairwise(parts):
        assert before.start_time_unix_nano <= before.end_time_unix_nano == after.start_time_unix_nano
    assert first.start_time_unix_nano == parts[0].start_time_unix_nano
    assert parts[-1].end_time_unix_nano <= first.end_time_unix_nano
    assert "model" not in [s.name for s in collector.spans if s.parent_span_id == wrong.span_id]
    resource = attributes(collector.resources[0])
    assert resource["service.name"] == "recsys.serve" and resource["deployment.environment"] == "test"
    lines = [json.loads(x) for x in capfd.readouterr().err.splitlines() if x.startswith("{")]
    logged = {x["request_id"]: x for x in lines if x["event"] == "request"}
    assert logged["mine"]["trace_id"] == TRACE
    assert sum("trace_id" not in x for x in logged.values()) == 1  # the trace that the caller did not want


def test_a_share_of_the_requests_is_traced(tmp_path: Path, collector: Collector) -> None:
    model = fake_models.write_model(tmp_path / "few", name="few")
    with serving(model, traces=collector.address, trace_share=0.25) as served:
        for _ in range(200):
            assert requests.post(f"{served.url}/predict", json={"rows": [{"a": 1}]}).status_code == 200
        assert served.core.tracer is not None
        served.core.tracer.close()
    found = sum(s.kind == s.SPAN_KIND_SERVER for s in collector.spans)
    assert 20 < found < 80


def test_a_collector_that_is_away_fails_no_request(tmp_path: Path, collector: Collector) -> None:
    collector.server.shutdown()
    collector.server.server_close()
    with serving(fake_models.write_model(tmp_path / "alone", name="alone"), traces=collector.address) as served:
        for _ in range(3):
            assert requests.post(f"{served.url}/predict", json={"rows": [{"a": 1}]}).status_code == 200
