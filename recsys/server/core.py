"""The code that HTTP and gRPC share: a request's context, its way through the batcher, its metrics and its log."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from recsys.base.errors import UserError, did_you_mean
from recsys.base.json_log import Flood, log, log_failure
from recsys.online.servable import Query
from recsys.schema.command_schemas import ServeConfig
from recsys.server.call import Call
from recsys.server.canary_guard import LATE
from recsys.server.feedback import FeedbackLog
from recsys.server.hosts import Hosts
from recsys.server.model_versions import CANARY
from recsys.server.payloads import Payload, QueriesPayload, TensorsPayload
from recsys.server.prometheus import Metrics
from recsys.server.request_error import RequestError, one_line, status_of
from recsys.server.request_log import RequestLog
from recsys.server.served_models import LoadedVersion, Registry

if TYPE_CHECKING:
    from recsys.server.tracing import Tracer

MAX_WARNINGS = 50  # about columns and items that are not known
MAX_REPORTS = 100_000  # answers, and pieces of feedback, that wait for the supervisor
REPORT_ENTRIES = 1000  # of one line


def _score(outputs: Any) -> float | None:
    """Return the mean of the first output over rows, or of the best scores over queries; None without any."""
    if isinstance(outputs, dict):
        values: Any = next(iter(outputs.values()))
        return float(values.mean()) if values.size and values.dtype.kind == "f" else None
    best = [float(scores[0]) for _, scores, *_ in outputs if len(scores)]
    return sum(best) / len(best) if best else None


class Core:
    """The part of a worker that knows no protocol.

    Args:
        settings: the settings of the server.
        registry: the models.
        metrics: counts requests.
        request_log: keeps a sample of requests; None keeps none.
        tracer: traces requests; None traces none.
    """

    def __init__(
        self,
        settings: ServeConfig,
        registry: Registry,
        metrics: Metrics,
        request_log: RequestLog | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        self.settings, self.registry, self.metrics, self.request_log = settings, registry, metrics, request_log
        self.tracer = tracer
        self.feedback_log = FeedbackLog(Path(settings.feedback)) if settings.feedback is not None else None
        self._feedback_lock = asyncio.Lock()
        self._answers: list[tuple[Any, ...]] = []  # for the supervisor (answer_hub.py)
        self._feedback: list[dict[str, Any]] = []
        self.ready = False
        self.announce_reload: Callable[[], None] = lambda: None  # asks the other workers to load what has changed
        self.hosts = Hosts(settings.host, settings.allowed_hosts, token=bool(settings.token))
        self._token = settings.token.encode() if settings.token else None
        self._log_requests = settings.log == "requests"
        self._default_timeout = settings.timeout_us
        self._unread: set[tuple[str, str]] = set()  # models and columns that were logged
        self._refusals = Flood()

    @property
    def is_ready(self) -> bool:
        """Return whether requests are answered."""
        return self.ready and self.registry.serves

    def check_token(self, authorization: bytes | None) -> None:
        """Raise RequestError unless the server has no token, or the header is `Bearer TOKEN`."""
        if self._token is None:
            return
        scheme, _, token = (authorization or b"").partition(b" ")
        if scheme.lower() != b"bearer" or not hmac.compare_digest(token.strip(), self._token):
            raise RequestError(401, "this server needs the header Authorization: Bearer TOKEN")

    def set_timeout(self, call: Call, microseconds: object) -> None:
        """Set the deadline of a request, which starts when the request came. None and 0 set none.

        Raises RequestError for anything but a whole number.
        """
        if microseconds is None or microseconds == 0:
            return
        if isinstance(microseconds, bool) or not isinstance(microseconds, int) or not 0 < microseconds < 2**53:
            what = "must be a whole number of microseconds, from 0 to 9007199254740991"
            raise RequestError(400, f"timeout {str(microseconds)[:40]}: {what}")
        deadline = asyncio.get_running_loop().time() + microseconds * 1e-6 - (perf_counter() - call.started)
        call.deadline = deadline if call.deadline is None else min(deadline, call.deadline)

    def route(self, call: Call, name: str | None, version: str | None, content: Callable[[], bytes]) -> LoadedVersion:
        """Return the version of a model that answers. content: returns the bytes to hash without a routing key"""
        key = call.routing_key
        loaded, call.role = self.registry.version(name, version, content if key is None else lambda: key)
        call.loaded = loaded
        return loaded

    def check_rows(self, rows: int, what: str = "rows") -> None:
        """Raise RequestError if a request has no rows or too many."""
        if rows == 0:
            raise RequestError(400, f"{what} is empty; send at least one")
        if rows > self.settings.max_rows:
            raise RequestError(413, f"{rows} {what}: this server takes at most {self.settings.max_rows} a request")

    def check_columns(self, loaded: LoadedVersion, row: Mapping[str, Any], where: str) -> None:
        """Log the columns of a row that the model does not read, each once.

        Raises RequestError if it reads none of them, or if there are none.
        """
        unread = loaded.unread(tuple(row))
        if len(unread) == len(row):
            columns = loaded.servable.columns
            if not row:
                example = f'{{"{min(columns)}": null}}' if columns else "{}"
                raise RequestError(400, f"{where}: has no column; send those that are known, or {example} if none is")
            hint = did_you_mean(unread[0][:80], columns)
            raise RequestError(400, f"{where}: model {loaded.name} reads no column {unread[0][:80]}{hint}")
        for column in unread:
            if len(self._unread) < MAX_WARNINGS and (loaded.name, column) not in self._unread:
                self._unread.add((loaded.name, column))
                hint = did_you_mean(column[:80], loaded.servable.columns - row.keys())
                message = f"the model does not read column {column[:80]}{hint}"
                log("warning", "unread column", model=loaded.name, message=message)

    async def compute(self, call: Call, loaded: LoadedVersion, payload: Payload, explicit: bool = False) -> Any:
        """Return the outputs of a payload, and pass it to the shadow version and to the log of samples.

        explicit: the caller has named the version, so that the shadow does not get the request
        """
        call.rows = payload.count
        if call.deadline is None:
            self.set_timeout(call, self._default_timeout)
        call.parsed = perf_counter()
        try:
            outputs = await self._outputs(call, loaded, payload)
        except UserError as e:
            call.fault = call.role == CANARY and status_of(e) not in LATE and await self._is_read(call, payload)
            raise
        if isinstance(payload, QueriesPayload):
            payload.known = self.count_known(loaded, payload.queries)
        metrics = loaded.metrics
        metrics.parse.observe(call.parsed - call.started)
        assert call.work is not None
        metrics.queue.observe(call.work.queue_seconds)
        metrics.rows.inc(payload.count)
        if call.role:
            call.score = _score(outputs)
        if not explicit:
            self._shadow(loaded, payload)
        if self.request_log is not None:
            self.request_log.offer(call, payload, outputs)
        return outputs

    async def _outputs(self, call: Call, loaded: LoadedVersion, payload: Payload) -> Any:
        first, *others = payload.parts(loaded.servable)
        work = loaded.batcher.submit(first, call.deadline)
        call.work = call.work or work
        outputs = await work.future
        for part in others:  # one after another, so that other requests are computed between them
            outputs = outputs + await loaded.batcher.submit(part, call.deadline).future
        for name, array in outputs.items() if isinstance(outputs, dict) else ():  # JSON would show NaN as null
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                row = int(np.argmin(np.isfinite(array).reshape(len(array), -1).all(axis=1)))
                sent = isinstance(payload, TensorsPayload)
                why = "the features are too large" if sent else f"version {loaded.version} of the model may be damaged"
                message = f"rows[{row}]: output {name} is not a finite number; {why}"
                raise RequestError(400 if sent else 500, message)
        return outputs

    async def _is_read(self, call: Call, payload: Payload) -> bool:
        """Return whether the current version answers what the canary refuses: anybody may send bad rows."""
        model = None if call.loaded is None else self.registry.find(call.loaded.name)
        current = None if model is None else model.loaded(model.choice.current)
        if current is None:
            return False
        try:
            await self._outputs(call, current, payload)
        except Exception:
            return False
        return True

    def count_known(self, loaded: LoadedVersion, queries: Sequence[Query]) -> list[int | None]:
        """Return the number of items of each history that the model knows, None for models without items.

        Shares of unknown items go into the metrics; a line says once that a history has no known item.
        """
        numbers: list[int | None] = []
        for query in queries:
            counted = loaded.servable.known_items(query)
            known, given = counted or (0, 0)
            numbers.append(known if counted else None)
            if given:
                loaded.metrics.sample({"history": 1 - known / given}, None)
            if given and not known and (loaded.name, "") not in self._unread:
                self._unread.add((loaded.name, ""))
                message = f"the model knows none of the {given} items of a history, such as {query.rows[-1]}; "
                message += f"what it knows is written as in {loaded.servable.example[0]}"
                log("warning", "unknown items", model=loaded.name, message=message)
        return numbers

    def finish(self, call: Call, error: BaseException | None = None) -> None:
        """Count and log a request that has its answer."""
        status = 200 if error is None else status_of(error)
        loaded, seconds = call.loaded, perf_counter() - call.started
        model, version = (loaded.name, loaded.version) if loaded is not None else ("", "")
        self.metrics.count(model, version, call.protocol, status)
        if loaded is not None:
            loaded.metrics.total.observe(seconds)
            if error is not None:
                loaded.metrics.failed.observe(seconds)
            refused = isinstance(error, UserError) and status not in LATE and not call.fault
            role = "" if refused else call.role
            if (role or self.feedback_log is not None) and len(self._answers) < MAX_REPORTS:
                how = (seconds, status, call.score)
                self._answers.append((model, version, role, call.request_id, call.rows, *how))
        trace = None
        if self.tracer is not None:
            trace = self.tracer.record(call, status, None if error is None else one_line(error))
        if error is None and not self._log_requests:
            return
        fields = {
            **{"request_id": call.request_id, "protocol": call.protocol, "model": model, "version": version},
            **{"status": status, "rows": call.rows, "ms": round(seconds * 1e3, 3)},
        }
        if trace is not None:
            fields["trace_id"] = trace
        if error is None:
            log("info", "request", **fields)
        elif status >= 500 and not isinstance(error, RequestError):
            log_failure("request", error, **fields)
        elif self._refusals.lets_through():
            log("warning", "request", **fields, message=one_line(error))

    async def take_feedback(self, feedback: list[dict[str, Any]]) -> None:
        """Keep feedback on the disk, then report it. Raises RequestError."""
        assert self.feedback_log is not None
        async with self._feedback_lock:
            try:
                await asyncio.to_thread(self.feedback_log.append, feedback)
            except OSError as e:
                log("error", "feedback", error=str(e))
                raise RequestError(503, f"feedback cannot be written ({e.strerror}); send it again later") from e
        self._feedback += feedback[: max(MAX_REPORTS - len(self._feedback), 0)]

    def take_reports(self) -> Iterator[dict[str, Any]]:
        """Yield what was answered, and the feedback that came, since the last call, in parts."""
        answers, feedback, self._answers, self._feedback = self._answers, self._feedback, [], []
        for key, entries in (("answers", answers), ("feedback", feedback)):
            for start in range(0, len(entries), REPORT_ENTRIES):
                yield {key: entries[start : start + REPORT_ENTRIES]}

    def update_gauges(self) -> None:
        """Update the metrics that say how things are now. Each worker calls it every second, and before /metrics."""
        for name in self.registry.names():
            for loaded in self.registry.get(name).versions.values():
                loaded.metrics.queue_rows.set(loaded.batcher.waiting_rows)
        if self.request_log is not None:
            self.metrics.sample_dropped.inc(self.request_log.take_dropped())

    def _shadow(self, loaded: LoadedVersion, payload: Payload) -> None:
        """Let the shadow version compute the same payload. Its outputs are only measured."""
        model = self.registry.find(loaded.name)
        shadow = model.loaded(model.choice.shadow) if model is not None else None
        if shadow is None or shadow is loaded:
            return
        try:
            work = shadow.batcher.submit(payload)
        except RequestError:
            shadow.metrics.shadow_dropped.inc()
            return

        def count(done: asyncio.Future[Any]) -> None:
            status = 200 if (error := done.exception()) is None else status_of(error)
            self.metrics.count(shadow.name, shadow.version, "shadow", status)
            if status >= 500:
                log("warning", "shadow", model=shadow.name, version=shadow.version, error=repr(error))

        work.future.add_done_callback(count)
