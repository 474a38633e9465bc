"""Structured logs: one JSON object per line on standard error."""

from __future__ import annotations

import json
import logging
import sys
import time
import traceback
from typing import Any

import orjson

from recsys.base.printable import visible_json
from recsys.base.secrets import mask_text


def log(level: str, event: str, **fields: Any) -> None:
    """Write one line. level: info, warning or error; the latter two are masked, since they hold messages of errors"""
    content = {"time": round(time.time(), 6), "level": level, "event": event, **fields}
    try:
        line = orjson.dumps(content, default=str).decode()
    except TypeError:  # the name of a file is not UTF-8
        line = json.dumps(content, default=str)
    sys.stderr.write(visible_json(line if level == "info" else mask_text(line)) + "\n")


class LibraryLog(logging.Handler):
    """Writes what libraries log in the same form."""

    def emit(self, record: logging.LogRecord) -> None:
        log(record.levelname.lower(), record.name, message=record.getMessage())


def log_failure(event: str, error: BaseException, **fields: Any) -> None:
    """Write one line about an unexpected error, with its traceback."""
    log("error", event, error=repr(error), traceback="".join(traceback.format_exception(error)), **fields)
