"""The time that requests spend in the server: in its queue, and in the model.

Triton counts them for each request, at GET /v2/models/NAME/stats and among its metrics (nv_inference_*). recsys.serve
counts the queue and the whole for each request, and the model for each batch (recsys_seconds).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from recsys.base.errors import UserError
from recsys.loadtest.endpoint import Endpoint
from recsys.loadtest.target import HttpTarget

if TYPE_CHECKING:
    from recsys.loadtest.grpc_target import GrpcTarget

Sums = Mapping[str, tuple[float, float]]  # part -> number of observations, seconds
COMPUTE = ("features", "model", "compute_input", "compute_infer", "compute_output")
STATISTICS = "statistics"  # the extension of the protocol; other servers would log a request for a path without one
TRITON_PARTS = {"request": "total", "queue": "queue", **{c: c for c in COMPUTE[2:]}}


@dataclass(frozen=True)
class ServerTimes:
    """Mean seconds of a request: the whole, in the queue, and in the model."""

    total: float
    queue: float
    compute: float


def mean_times(before: Sums, after: Sums) -> ServerTimes | None:
    """Return the mean times between two readings, None if there was no request."""
    means = {}
    for part, (count, seconds) in after.items():
        first = before.get(part, (0.0, 0.0))
        if count > first[0]:
            means[part] = (seconds - first[1]) / (count - first[0])
    if "total" not in means:
        return None
    return ServerTimes(means["total"], means.get("queue", 0.0), sum(means.get(part, 0.0) for part in COMPUTE))


def reader(target: HttpTarget | GrpcTarget, model: str | None, metrics: str | None) -> Callable[[], Sums] | None:
    """Return a function that reads the times of a model, None if the server does not count them.

    Args:
        model: name of the model; None for all models of the server.
        metrics: address of Prometheus' metrics; None for the statistics of the server, or its own /metrics.

    Raises:
        UserError: `metrics` is not an address, or does not answer.
    """
    if metrics is not None:
        parts = urlsplit(metrics)
        if parts.scheme != "http" or not parts.hostname:
            raise UserError(f"metrics={metrics}: is not an address; write one such as http://127.0.0.1:8002/metrics")
        page, path = HttpTarget(Endpoint(parts.hostname, parts.port or 80)), parts.path or "/metrics"
        if not _page_sums(page, path, model):
            raise UserError(f"metrics={metrics}: has no metrics recsys_seconds or nv_inference_* of the model {model}")
        return lambda: _page_sums(page, path, model)
    if model is not None and STATISTICS in target.extensions() and target.statistics(model) is not None:
        return lambda: from_statistics(target.statistics(model))
    if isinstance(target, HttpTarget) and _page_sums(target, "/metrics", model):
        return lambda: _page_sums(target, "/metrics", model)
    return None


def _page_sums(target: HttpTarget, path: str, model: str | None) -> Sums:
    status, body = target.get(path)
    return from_metrics(body.decode(errors="replace"), model) if status == 200 else {}


def from_statistics(answer: Mapping[str, Any] | None) -> Sums:
    """Return the times of all versions in Triton's statistics of a model."""
    sums: dict[str, tuple[float, float]] = {}
    for version in (answer or {}).get("model_stats", []):
        for name, value in version.get("inference_stats", {}).items():
            part = "total" if name == "success" else name
            if part == "total" or part in TRITON_PARTS:
                _add(sums, part, float(value.get("count", 0)), float(value.get("ns", 0)) / 1e9)
    return sums


def from_metrics(text: str, model: str | None) -> Sums:
    """Return the times of a model in a page of Prometheus' text format."""
    from prometheus_client.parser import text_string_to_metric_families

    sums: dict[str, tuple[float, float]] = {}
    answered = 0.0
    try:
        samples = [s for family in text_string_to_metric_families(text) for s in family.samples]
    except ValueError:
        return {}
    for sample in samples:
        if model is not None and sample.labels.get("model") != model:
            continue
        name = sample.name.removesuffix("_total")  # the parser adds it to the counters of a page that types them
        if name == "recsys_seconds_sum":
            _add(sums, sample.labels["part"], 0.0, sample.value)
        elif name == "recsys_seconds_count":
            _add(sums, sample.labels["part"], sample.value, 0.0)
        elif name == "nv_inference_request_success":
            answered += sample.value
        elif part := TRITON_PARTS.get(name.removeprefix("nv_inference_").removesuffix("_duration_us")):
            _add(sums, part, 0.0, sample.value / 1e6)
    return {part: (count or answered, seconds) for part, (count, seconds) in sums.items()}


def _add(sums: dict[str, tuple[float, float]], part: str, count: float, seconds: float) -> None:
    before = sums.get(part, (0.0, 0.0))
    sums[part] = (before[0] + count, before[1] + seconds)
