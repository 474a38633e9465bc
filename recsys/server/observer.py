"""Measure each batch, and a sample of batches in more detail.

The sample costs at most one hundredth of the model's time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter
from typing import Any

from recsys.online.servable import Servable
from recsys.server.batcher import Work
from recsys.server.logs import log_failure
from recsys.server.payloads import Result
from recsys.server.prometheus import ModelMetrics

SAMPLE_SHARE = 0.01  # of the time that batches take
AT_MOST_EVERY = 0.1  # seconds between two sampled batches


class Observer:
    """Updates the metrics of a version after each batch. A call may return a sample to take in its thread."""

    def __init__(self, servable: Servable, metrics: ModelMetrics) -> None:
        self._servable, self._metrics = servable, metrics
        self._busy = self._sampling = self._last = 0.0
        self._failed = False

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
            self._metrics.sample(unknown, result.outputs)
        except Exception as e:
            if not self._failed:
                log_failure("sampling", e)
            self._failed = True
        self._sampling += perf_counter() - started
