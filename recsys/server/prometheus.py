"""Prometheus metrics of a worker and of its batches. With several workers, prometheus_client combines the files."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from time import perf_counter
from typing import Any

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Summary, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.samples import Sample

from recsys.base.json_log import log, log_failure
from recsys.online.servable import Servable
from recsys.server.batcher import Work
from recsys.server.payloads import Result

FOLDER = "PROMETHEUS_MULTIPROC_DIR"  # environment variable of prometheus_client; the supervisor sets it
SECONDS = (5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 0.1, 0.25, 0.5, 1, 2.5, 5, math.inf)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, math.inf)
SHARES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, math.inf)
MODEL = ("model", "version")
OBSERVED_ROWS = 64  # of a sampled batch, in the histogram of predictions
SAMPLE_SHARE = 0.01  # of the time that batches take
SAID_AFTER = 100  # rows of samples in which unknown values are looked for
NEARLY_ALL = 0.95  # of them
AT_MOST_EVERY = 0.1  # seconds between two sampled batches


class ModelMetrics:
    """The metrics of one version of a model."""

    def __init__(self, metrics: Metrics, model: str, version: str) -> None:
        self._metrics, self._names = metrics, (model, version)
        self.rows = metrics.rows.labels(model, version)
        self.batch_rows = metrics.batch_rows.labels(model, version)
        self.queue_rows = metrics.queue_rows.labels(model, version)
        parts = ("parse", "queue", "features", "model", "total", "failed")
        self.parse, self.queue, self.features, self.model, self.total, self.failed = (
            metrics.seconds.labels(model, version, part) for part in parts
        )
        self.features_of_requests, self.model_of_requests = (
            metrics.batch_seconds.labels(model, version, part) for part in ("features", "model")
        )
        self.shadow_dropped = metrics.shadow_dropped.labels(model, version)

    def mark_answered(self) -> None:
        """Let now be the time of the last answers."""
        self._metrics.times.labels(*self._names, "answered").set_to_current_time()

    def sample(self, unknown: Mapping[str, float], outputs: Any) -> None:
        """Add the shares of unknown ids, and the predictions, of one batch."""
        for column, share in unknown.items():
            self._metrics.unknown.labels(*self._names, column).observe(share)
        if not isinstance(outputs, dict):
            return
        for name, array in outputs.items():
            if array.dtype.kind == "f":
                histogram = self._metrics.predictions.labels(*self._names, name)
                values = array.ravel()[:OBSERVED_ROWS]
                for value in values[np.isfinite(values)].tolist():
                    histogram.observe(value)


class Metrics:
    """All metrics of this process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        to: Any = {"registry": self.registry}
        requests = ("model", "version", "protocol", "status")
        self._requests = Counter("recsys_requests", "Requests", requests, **to)
        self.rows = Counter("recsys_rows", "Rows, or queries for items, that were answered", MODEL, **to)
        help_seconds = (
            "Seconds of a request, by part; features and model count once per batch, failed requests in total, too"
        )
        self.seconds = Histogram("recsys_seconds", help_seconds, (*MODEL, "part"), buckets=SECONDS, **to)
        help_batch = "Seconds of the batches that requests were in, by part; a batch of two requests counts twice"
        self.batch_seconds = Counter("recsys_request_batch_seconds", help_batch, (*MODEL, "part"), **to)
        self.batch_rows = Histogram("recsys_batch_rows", "Rows of a batch", MODEL, buckets=ROWS, **to)
        help_queue = "Rows that wait for a model"
        self.queue_rows = Gauge("recsys_queue_rows", help_queue, MODEL, multiprocess_mode="livesum", **to)
        help_unknown = "Share of out-of-vocabulary ids in sampled batches"
        self.unknown = Summary("recsys_unknown_share", help_unknown, (*MODEL, "column"), **to)
        help_predictions = "Predictions of sampled batches"
        self.predictions = Histogram("recsys_prediction", help_predictions, (*MODEL, "output"), buckets=SHARES, **to)
        help_shadow = "Requests that the shadow model did not get"
        self.shadow_dropped = Counter("recsys_shadow_dropped", help_shadow, MODEL, **to)
        self.sample_dropped = Counter("recsys_sample_dropped", "Sampled requests that were not written", **to)
        help_times = "Unix time of the newest training event, of the export, of the load, and of the last answers"
        self.times = Gauge("recsys_model_time_seconds", help_times, (*MODEL, "of"), multiprocess_mode="livemax", **to)
        self.reloads = Counter("recsys_reloads", "Loads of models", ("model", "result"), **to)
        self.feedback = Counter("recsys_feedback", "Pieces of feedback that have come", ("result",), **to)
        help_click = "Requests whose feedback is complete, and those of them with a click"
        self.click = Summary("recsys_click", help_click, MODEL, **to)
        help_events = "Canaries that were rolled back or have passed, and rates that fell below their threshold"
        self.events = Counter("recsys_events", help_events, (*MODEL, "event"), **to)
        self._children: dict[tuple[str, str, str, int], Any] = {}
        self._models: dict[tuple[str, str], ModelMetrics] = {}

    def of_model(self, model: str, version: str) -> ModelMetrics:
        """Return the metrics of a version of a model."""
        if (model, version) not in self._models:
            self._models[model, version] = ModelMetrics(self, model, version)
        return self._models[model, version]

    def count(self, model: str, version: str, protocol: str, status: int) -> None:
        """Count a request that was answered.

        Args:
            model: name of the model.
            version: version of the model.
            protocol: the protocol of the request.
            status: HTTP status of the answer.
        """
        key = (model, version, protocol, status)
        child = self._children.get(key)
        if child is None:
            child = self._children[key] = self._requests.labels(model, version, protocol, str(status))
        child.inc()

    def page(self) -> bytes:
        """Return the metrics of all workers in Prometheus' text format."""
        return generate_latest(self._of_all_workers())

    def samples(self) -> Iterator[Sample]:
        """Yield the same, each number with its name and its labels."""
        for family in self._of_all_workers().collect():
            yield from family.samples

    def _of_all_workers(self) -> CollectorRegistry:
        if FOLDER not in os.environ:
            return self.registry
        combined = CollectorRegistry()
        MultiProcessCollector(combined)
        return combined


@cache
def metrics() -> Metrics:
    """Return the metrics of this process."""
    return Metrics()


class Observer:
    """Updates the metrics of a version after each batch. A call may return a sample to take in its thread."""

    def __init__(self, servable: Servable, metrics: ModelMetrics) -> None:
        self._servable, self._metrics = servable, metrics
        self._busy = self._sampling = self._last = 0.0
        self._failed = False
        self._seen: dict[str, list[float]] = {}  # of each column: rows of samples, and unknown ones

    def __call__(self, works: Sequence[Work], results: Sequence[Result], seconds: float) -> Callable[[], None] | None:
        metrics = self._metrics
        metrics.batch_rows.observe(sum(w.payload.count for w in works))
        for result in results:
            if result.features is not None:
                metrics.features.observe(result.transform_seconds)
            metrics.model.observe(result.model_seconds)
        metrics.features_of_requests.inc(sum(w.transform_seconds for w in works))
        metrics.model_of_requests.inc(sum(w.model_seconds for w in works))
        metrics.mark_answered()
        self._busy += seconds
        now = perf_counter()
        if not results or self._sampling > SAMPLE_SHARE * self._busy or now - self._last < AT_MOST_EVERY:
            return None
        self._last = now
        return partial(self._sample, results[0])

    def _sample(self, result: Result) -> None:
        started = perf_counter()
        try:
            unknown: dict[str, Any] = {}
            if result.features is not None:
                unknown = self._servable.unknown_shares(result.features)
                self._say_unknown(unknown, result.features.rows)
            self._metrics.sample(unknown, result.outputs)
        except Exception as e:
            if not self._failed:
                log_failure("sampling", e)
            self._failed = True
        self._sampling += perf_counter() - started

    def _say_unknown(self, shares: Mapping[str, float], rows: int) -> None:
        """Log a column, once, if nearly all of its values in the first sampled rows are unknown."""
        for column, share in shares.items():
            seen = self._seen.setdefault(column, [0.0, 0.0])
            if seen[0] >= SAID_AFTER:
                continue
            seen[0] += rows
            seen[1] += rows * share
            if seen[0] >= SAID_AFTER and seen[1] >= NEARLY_ALL * seen[0]:
                counted = f"{seen[1]:.0f} of {seen[0]:.0f} sampled rows"
                message = f"column {column}: the model does not know the values of {counted}"
                log("warning", "unknown values", model=self._servable.name, message=message)
