"""Structured logs: one JSON object per line on standard error."""

from __future__ import annotations

import json
import logging
import math
import sys
import time
import traceback
from typing import Any

from recsys.base.printable import visible_json
from recsys.base.secrets import mask_text

MAX_LINES = 50  # a second


def log(level: str, event: str, **fields: Any) -> None:
    """Write one line. level: info, warning or error; the latter two are masked, since they hold messages of errors"""
    text = line(level, event, **fields)
    sys.stderr.write((text if level == "info" else mask_text(text)) + "\n")


def line(level: str, event: str, **fields: Any) -> str:
    """Return an event as one line of JSON: of a server, of training, preparing and following with logging=json."""
    finite = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in fields.items()}
    content = {"time": round(time.time(), 6), "level": level, "event": event, **finite}
    return visible_json(json.dumps(content, default=str, ensure_ascii=False, separators=(",", ":")))


def messages(log: str) -> list[str]:
    """Return the messages of a log, whose lines may be text or JSON; other events have none."""
    found: list[str] = []
    for text in filter(str.strip, log.splitlines()):
        try:
            event = json.loads(text) if text.startswith("{") else {"message": text}
        except ValueError:  # torn
            event = {"message": text}
        found += [str(event["message"])] if isinstance(event, dict) and "message" in event else []
    return found


class Flood:
    """Counts lines that callers can cause, so that they do not fill disks."""

    def __init__(self) -> None:
        self._second, self._lines = 0, 0

    def lets_through(self) -> bool:
        """Return whether this is one of the first MAX_LINES of a second."""
        second = int(time.monotonic())
        self._second, self._lines = second, self._lines + 1 if self._second == second else 1
        return self._lines <= MAX_LINES


class LibraryLog(logging.Handler):
    """Writes what libraries log in the same form."""

    def __init__(self) -> None:
        super().__init__()
        self._flood = Flood()

    def emit(self, record: logging.LogRecord) -> None:
        if self._flood.lets_through():
            error = record.exc_info[1] if record.exc_info else None
            cause = {} if error is None else _described(error)
            log(record.levelname.lower(), record.name, message=record.getMessage().strip(), **cause)


def log_failure(event: str, error: BaseException, **fields: Any) -> None:
    """Write one line about an unexpected error, with its traceback."""
    log("error", event, **_described(error), **fields)


def _described(error: BaseException) -> dict[str, str]:
    return {"error": repr(error), "traceback": "".join(traceback.format_exception(error))}
