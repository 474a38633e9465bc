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
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from recsys.atomic import whole_file
from recsys.serving.server.logs import log, log_failure
from recsys.serving.server.payloads import Payload, Queries, Tensors

if TYPE_CHECKING:
    from recsys.serving.server.core import Call
    from recsys.serving.server.models import Loaded

FILE_ROWS = 10_000
FILE_SECONDS = 60.0  # a file is written at the latest after this time
TYPES = {"request_time": "float64", "request_id": "string", "request_row": "int32"}
PREDICTION, OTHERS = "prediction:", "other_columns"
QUEUE = 1_000  # requests that wait to be written

Record = dict[str, Any]
_Entry = tuple["Loaded", str, float, Payload, Any]


class RequestLog:
    """Writes a share of the requests to files NAME-VERSION-TIME-PID-N.parquet in a folder."""

    def __init__(self, folder: Path, share: float, *, file_rows: int = FILE_ROWS) -> None:
        self._folder, self._share, self._file_rows = folder, share, file_rows
        self._queue: queue.Queue[_Entry | None] = queue.Queue(QUEUE)
        self._records: dict[tuple[str, str], list[Record]] = {}
        self._numbers = itertools.count()
        self._since = time.monotonic()
        self.dropped = 0  # requests since the last look at it
        folder.mkdir(parents=True, exist_ok=True)
        self._thread = threading.Thread(target=self._run, name="request log", daemon=True)
        self._thread.start()

    def offer(self, call: Call, payload: Payload, outputs: Any) -> None:
        """Keep a request if it is drawn, and if the queue has room. Tensors that callers have made are left out."""
        draw = random.random()  # nosec B311
        if draw >= self._share or isinstance(payload, Tensors) or call.loaded is None:
            return
        try:
            self._queue.put_nowait((call.loaded, call.request_id, time.time(), payload, outputs))
        except queue.Full:
            self.dropped += 1

    def close(self, timeout: float = 5.0) -> None:
        """Write what waits, and end the thread."""
        try:
            self._queue.put(None, timeout=timeout)
        except queue.Full:
            return
        self._thread.join(timeout)

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
                return
            name, version = entry[0].name, entry[0].version
            records = self._records.setdefault((name, version), [])
            try:
                records.extend(_records(entry))
            except Exception as e:  # the log of samples must not end because of one request
                log_failure("request log", e, model=name, version=version)
            if len(records) >= self._file_rows or time.monotonic() - self._since >= FILE_SECONDS:
                self._written()

    def _written(self) -> None:
        for (name, version), records in self._records.items():
            for start in range(0, len(records), self._file_rows):
                stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
                file = self._folder / f"{name}-{version}-{stamp}-{os.getpid()}-{next(self._numbers)}.parquet"
                try:
                    _write(file, records[start : start + self._file_rows])
                except Exception as e:  # the disk is full, for example
                    log("error", "request log", file=str(file), error=repr(e))
        self._records.clear()
        self._since = time.monotonic()


def _records(entry: _Entry) -> list[Record]:
    """Return a record for each row of a request, or for each query."""
    loaded, request_id, now, payload, outputs = entry
    base = {"request_time": now, "request_id": request_id}
    if isinstance(payload, Queries):
        return [
            base | {"history": orjson.dumps(list(q.rows)).decode(), "items": list(map(str, items)), "scores": scores}
            for q, (items, scores) in zip(payload.queries, outputs, strict=True)
        ]
    predictions = {f"{PREDICTION}{n}": np.asarray(a).tolist() for n, a in outputs.items()}
    columns = [s.name for s in loaded.servable.inputs if s.name not in TYPES]
    return [
        base | {"request_row": i} | _columns(row, columns) | {n: p[i] for n, p in predictions.items()}
        for i, row in enumerate(payload.raw_rows())
    ]


def _columns(row: Mapping[str, Any], columns: list[str]) -> Record:
    """Return all raw columns of the model, and the other keys of a row as JSON: all files have the same columns."""
    others = {k: v for k, v in row.items() if k not in columns}
    more = orjson.dumps(others, default=str).decode() if others else None
    return {c: _text(row.get(c)) for c in columns} | {OTHERS: more}


def _text(value: Any) -> str | None:
    """Return a raw value as text: a column has one type then, whatever the callers send."""
    return value if value is None or isinstance(value, str) else orjson.dumps(value, default=str).decode()


def _write(file: Path, records: list[Record]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    own = {n: getattr(pa, kind)() for n, kind in TYPES.items()}
    if OTHERS not in records[0]:  # queries
        own |= {"items": pa.list_(pa.string()), "scores": pa.list_(pa.float64())}
    arrays = {}
    for name in records[0]:
        values = [record[name] for record in records]
        kind = own.get(name) or (None if name.startswith(PREDICTION) else pa.string())
        arrays[name] = pa.array(values, kind)
    table = pa.table(arrays)
    with whole_file(file) as building:
        pq.write_table(table, building)
