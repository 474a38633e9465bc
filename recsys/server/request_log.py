"""A sample of requests in Parquet files: raw rows and predictions, written by a thread of its own.

Requests are dropped rather than delayed if the thread does not keep up. A file has at most FILE_ROWS rows.
"""

from __future__ import annotations

import itertools
import os
import queue
import random
import threading
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np
import orjson

from recsys.base.json_log import log
from recsys.files.atomic import whole_file
from recsys.server.payloads import Payload, QueriesPayload, TensorsPayload

if TYPE_CHECKING:
    from recsys.server.call import Call
    from recsys.server.served_models import LoadedVersion

FILE_ROWS = 10_000
FILE_SECONDS = 60.0  # a file is written at the latest after this time
FILE_BYTES = 2**26  # or with this much text
SAY_SECONDS = 60.0  # between two lines about samples that are lost
TYPES = {"request_time": "float64", "request_id": "string", "request_row": "int32"}
PREDICTION, OTHERS = "prediction:", "other_columns"
QUEUE = 1_000  # requests that wait to be written

Record = dict[str, Any]
_Entry = tuple["LoadedVersion", str, float, Payload, Any]


class RequestLog:
    """Writes a share of the requests to files NAME-VERSION-TIME-LOG-N.parquet in a folder."""

    def __init__(self, folder: Path, share: float, *, file_rows: int = FILE_ROWS) -> None:
        self._folder, self._share, self._file_rows = folder, share, file_rows
        self._queue: queue.Queue[_Entry | None] = queue.Queue(QUEUE)
        self._records: dict[tuple[str, str], list[Record]] = {}
        self._bytes = 0  # of text in the records
        self._numbers, self._own = itertools.count(), os.urandom(4).hex()  # process ids and times may come again
        self._since = time.monotonic()
        self._lock = threading.Lock()
        self._dropped = 0  # requests since the last look at it
        self._unsaid, self._said, self._why = 0, -SAY_SECONDS, ""  # requests since the last line; its time; the reason
        folder.mkdir(parents=True, exist_ok=True)
        self._thread = threading.Thread(target=self._run, name="request log", daemon=True)
        self._thread.start()

    def offer(self, call: Call, payload: Payload, outputs: Any) -> None:
        """Keep a request if it is drawn, and if the queue has room. Tensors that callers have made are left out."""
        draw = random.random()  # nosec B311
        if draw >= self._share or isinstance(payload, TensorsPayload) or call.loaded is None:
            return
        try:
            self._queue.put_nowait((call.loaded, call.request_id, time.time(), payload, outputs))
        except queue.Full:
            self._drop(1)

    def take_dropped(self) -> int:
        """Return the number of drawn requests that were not written since the last call."""
        with self._lock:
            dropped, self._dropped = self._dropped, 0
        return dropped

    def _drop(self, requests: int) -> None:
        with self._lock:
            self._dropped += requests

    def _fail(self, error: Exception, requests: int) -> None:
        """Count requests that cannot be written, and say so now and then: every request may fail."""
        self._drop(requests)
        self._unsaid += requests
        where = traceback.extract_tb(error.__traceback__)[-1]
        self._why = f"{repr(error)[:500]} ({Path(where.filename).name}:{where.lineno})"
        if time.monotonic() - self._said >= SAY_SECONDS:
            self._say()

    def _say(self) -> None:
        if self._unsaid:
            log("error", "request log", lost_requests=self._unsaid, error=self._why)
            self._unsaid, self._said = 0, time.monotonic()

    def close(self, timeout: float = 5.0) -> None:
        """Write what waits, and end the thread; after `timeout` seconds, say that requests are lost."""
        with suppress(queue.Full):
            self._queue.put(None, timeout=timeout)
            self._thread.join(timeout)
        if self._thread.is_alive():
            log("error", "request log", error=f"closed before it was written: {timeout:g} s were not enough")

    def _run(self) -> None:
        while True:
            try:
                entry = self._queue.get(timeout=1.0)
            except queue.Empty:
                if time.monotonic() - self._since >= FILE_SECONDS:
                    self._written()
                continue
            if entry is None:
                self._written()
                self._say()
                return
            name, version = entry[0].name, entry[0].version
            records = self._records.setdefault((name, version), [])
            try:
                new = _records(entry)
                self._bytes += sum(len(v) for record in new for v in record.values() if type(v) is str)
                records.extend(new)
            except Exception as e:  # the log of samples must not end because of one request
                self._fail(e, 1)
            full = len(records) >= self._file_rows or self._bytes >= FILE_BYTES
            if full or time.monotonic() - self._since >= FILE_SECONDS:
                self._written()

    def _written(self) -> None:
        for (name, version), records in self._records.items():
            for start in range(0, len(records), self._file_rows):
                stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
                model, part = quote(f"{name}-{version}", safe=" "), records[start : start + self._file_rows]
                try:
                    _write(self._folder / f"{model}-{stamp}-{self._own}-{next(self._numbers)}.parquet", part)
                except Exception as e:  # the disk is full, for example
                    self._fail(e, len({record["request_id"] for record in part}))
        self._records.clear()
        self._since, self._bytes = time.monotonic(), 0


def _records(entry: _Entry) -> list[Record]:
    """Return a record for each row of a request, or for each query."""
    loaded, request_id, now, payload, outputs = entry
    base = {"request_time": now, "request_id": request_id}
    if isinstance(payload, QueriesPayload):
        records = []
        for i, (query, lists) in enumerate(zip(payload.queries, outputs, strict=True)):
            items, scores, drawn = [*lists, None][:3]  # propensities are missing if nothing was drawn
            asked = {"request_row": i, "context": _json(query.context), "history": _json(list(query.rows))}
            answer = {"items": list(map(str, items or [])), "scores": scores, "propensities": drawn or None}
            records.append(base | asked | answer)
        return records
    predictions = {f"{PREDICTION}{n}": np.asarray(a).tolist() for n, a in outputs.items()}
    columns = [s.name for s in loaded.servable.inputs if s.name not in TYPES]
    records = []
    for i, row in enumerate(payload.raw_rows()):  # all files of a model have the same columns, as text
        others = {k: v for k, v in row.items() if k not in columns}
        values = {c: v if (v := row.get(c)) is None or isinstance(v, str) else _json(v) for c in columns}
        record = base | {"request_row": i} | values | {OTHERS: _json(others) if others else None}
        records.append(record | {n: p[i] for n, p in predictions.items()})
    return records


def _json(value: object) -> str | None:
    return None if value is None else orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS).decode()


def _write(file: Path, records: list[Record]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    types = {n: getattr(pa, kind)() for n, kind in TYPES.items()}
    if OTHERS not in records[0]:  # queries
        numbers = pa.list_(pa.float64())
        types |= {"items": pa.list_(pa.string()), "scores": numbers, "propensities": numbers}
    arrays = {}
    for name in records[0]:
        values = [record[name] for record in records]
        kind = types.get(name) or (None if name.startswith(PREDICTION) else pa.string())
        arrays[name] = pa.array(values, kind)
    table = pa.table(arrays)
    with whole_file(file) as building:
        pq.write_table(table, building)
