"""Feedback: what users did with answers, {"id": REQUEST_ID, "row": 0, "click": 1, "time": 1767225600.0}, once or again.

POST /feedback writes it to files of JSON lines, from which `join_feedback` makes labels of rows in the log of samples.
While a server runs, `AnsweredRequests` joins it to the last requests that all workers have answered.
"""

from __future__ import annotations

import json
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recsys.base.append import append
from recsys.base.errors import UserError, did_you_mean
from recsys.files.data_files import is_data

if TYPE_CHECKING:
    import polars as pl

KEYS = ("id", "row", "click", "time")
EXAMPLE = '{"feedback": [{"id": "the x-request-id of the answer", "row": 0, "click": 1}]}'
FILE_BYTES = 2**26
MAX_ID_LENGTH = 128  # characters of a request's id that are kept
MAX_ROWS = 2**20
EARLY_SECONDS = 2.0  # how long feedback waits for the answer, which another worker may report later


def check_feedback(feedback: object, where: str) -> dict[str, Any]:
    """Return one piece of feedback with all keys. Raises UserError, whose message begins with `where`."""
    if not isinstance(feedback, dict):
        raise UserError(f"{where}: must be a JSON object, such as those in {EXAMPLE}")
    if unknown := next((k for k in feedback if k not in KEYS), None):
        raise UserError(f"{where}.{str(unknown)[:80]}: no such key{did_you_mean(str(unknown)[:80], KEYS)}")
    request, row, click, at = (feedback.get(k) for k in KEYS)
    if not isinstance(request, str) or not 0 < len(request) <= MAX_ID_LENGTH:
        raise UserError(f"{where}.id: must be the x-request-id of an answer, up to {MAX_ID_LENGTH} characters")
    row = 0 if row is None else row
    if isinstance(row, bool) or not isinstance(row, int) or not 0 <= row < MAX_ROWS:
        raise UserError(f"{where}.row: must be the number of a row of the request, from 0")
    if click not in (0, 1) or isinstance(click, str):
        raise UserError(f"{where}.click: must be 0 or 1")
    if at is not None and (isinstance(at, bool) or not isinstance(at, int | float) or not 0 <= at < 1e11):
        raise UserError(f"{where}.time: must be a number of seconds since 1970")
    return {"id": request, "row": row, "click": int(click), "time": time.time() if at is None else float(at)}


class FeedbackLog:
    """Appends feedback to files feedback-TIME-LOG-N.jsonl in a folder. One thread at a time may append."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._own, self._number = folder, os.urandom(4).hex(), 0
        self._file: Path | None = None
        folder.mkdir(parents=True, exist_ok=True)

    def append(self, feedback: Iterable[dict[str, Any]]) -> None:
        """Write lines; they are on the disk when it returns. Raises OSError."""
        data = "".join(json.dumps(f) + "\n" for f in feedback).encode()
        if self._file is None or (self._file.exists() and self._file.stat().st_size > FILE_BYTES):
            stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
            self._file = self._folder / f"feedback-{stamp}-{self._own}-{self._number}.jsonl"
            self._number += 1
        append(self._file, data)


def read_feedback(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the feedback in a file of JSON lines, or in those of a folder.

    The last line of a file is left out if it does not end: its writer was killed, and did not confirm it.

    Raises:
        UserError: a file or a line cannot be read.
    """
    files = sorted(f for f in path.glob("*.jsonl") if is_data([f.name])) if path.is_dir() else [path]
    for file in files:
        try:
            lines = file.read_text(encoding="utf-8").split("\n")[:-1]
        except (OSError, UnicodeDecodeError) as e:
            raise UserError(f"{file}: cannot be read as a file of JSON lines ({e}); name a file or a folder") from e
        for number, line in enumerate(lines, 1):
            if line.strip():
                try:
                    piece = json.loads(line)
                except (ValueError, RecursionError) as e:
                    raise UserError(f"{file}:{number}: is not JSON ({e}); correct or remove the line") from e
                yield check_feedback(piece, f"{file}:{number}: feedback")


@dataclass(frozen=True)
class JoinedFeedback:
    """Rows of the log of samples with the column `click`, 0 or 1, and what became of the pieces of feedback."""

    rows: pl.DataFrame
    counted: int
    duplicates: int
    unknown: int


def join_feedback(requests: Path, feedback: Path, *, until: float | None = None) -> JoinedFeedback:
    """Join feedback to the rows of logged requests, by the request's id and the row's number.

    A row with any click has the label 1; a row without feedback has 0. If an id was used twice, feedback belongs to the
    last request with it, as in the server, and the rows of the others are left out.

    Args:
        requests: a folder of Parquet files, or one file, of `recsys.serve sample_dir=`.
        feedback: as for `read_feedback`.
        until: leave out rows of later requests, in seconds since 1970: their feedback may still come.

    Raises:
        UserError: a file cannot be read.
    """
    import polars as pl

    files = sorted(f for f in requests.glob("*.parquet") if is_data([f.name])) if requests.is_dir() else [requests]
    if not files or not all(f.is_file() for f in files):
        raise UserError(f"{requests}: holds no Parquet files; name the sample_dir of recsys.serve")
    keys = ["request_id", "request_row"]
    rows = pl.concat([pl.read_parquet(f) for f in files], how="diagonal_relaxed")
    last = pl.col("request_time") == pl.col("request_time").max().over("request_id")
    rows = rows.filter(last).unique(keys, keep="first", maintain_order=True)
    pieces = [(f["id"], f["row"], f["click"]) for f in read_feedback(feedback)]
    schema = {"request_id": pl.String, "request_row": pl.Int32, "click": pl.Int8}
    given = pl.DataFrame(pieces, schema, orient="row")
    known = given.join(rows.select(keys), on=keys, how="semi")
    labels = known.group_by(keys).agg(pl.col("click").max())
    rows = rows.join(labels, on=keys, how="left", maintain_order="left").with_columns(pl.col("click").fill_null(0))
    if until is not None:
        rows = rows.filter(pl.col("request_time") <= until)
    counted = known.unique().height
    return JoinedFeedback(rows, counted, known.height - counted, given.height - known.height)


@dataclass(slots=True)
class AnsweredRequest:
    """A request that was answered, whose feedback may come. seen: a bit for each row, and for each click on a row"""

    request: str
    model: str
    version: str
    role: str
    rows: int
    since: float
    seen: int = 0
    clicked: bool = False


@dataclass
class AnsweredRequests:
    """The last requests that were answered, in the order of their answers.

    wait: seconds after which a request is settled: feedback that comes later is unknown
    most: number of requests that wait; with more, the oldest are settled earlier
    settled: called with each request that is settled
    count: called with what became of each piece of feedback: counted, duplicate or unknown
    """

    wait: float
    most: int
    settled: Callable[[AnsweredRequest], None]
    count: Callable[[str], None]
    _order: deque[AnsweredRequest] = field(default_factory=deque)
    _by_id: dict[str, AnsweredRequest] = field(default_factory=dict)
    _early: deque[tuple[float, dict[str, Any]]] = field(default_factory=deque)

    def add(self, answer: AnsweredRequest) -> None:
        """Add a request. Feedback belongs to the last request with its id."""
        self._order.append(answer)
        self._by_id[answer.request] = answer
        if len(self._order) > self.most:
            self._settle()

    def feed(self, feedback: dict[str, Any], now: float) -> None:
        """Count feedback once. Feedback without an answer waits for it a moment."""
        if feedback["id"] in self._by_id:
            self.count(self._join(feedback))
        elif len(self._early) < self.most:
            self._early.append((now, feedback))
        else:
            self.count("unknown")

    def poll(self, now: float) -> None:
        """Settle the requests that have waited long enough."""
        while self._early and self._early[0][0] <= now - EARLY_SECONDS:
            self.count(self._join(self._early.popleft()[1]))
        while self._order and self._order[0].since <= now - self.wait:
            self._settle()

    def _join(self, feedback: dict[str, Any]) -> str:
        answer = self._by_id.get(feedback["id"])
        if answer is None or feedback["row"] >= answer.rows:
            return "unknown"
        bit = 1 << (2 * feedback["row"] + feedback["click"])
        if answer.seen & bit:
            return "duplicate"
        answer.seen |= bit
        answer.clicked = answer.clicked or feedback["click"] == 1
        return "counted"

    def _settle(self) -> None:
        answer = self._order.popleft()
        if self._by_id.get(answer.request) is answer:
            del self._by_id[answer.request]
        self.settled(answer)
