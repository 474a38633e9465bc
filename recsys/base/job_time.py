"""The wall time of a job, by what it is spent on. Every process has one clock, which `begin` starts."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_began = time.time()  # not monotonic: processes that a job spawns go on with its clock
_spent: dict[str, float] = {}


def begin(state: dict[str, Any] | None = None) -> None:
    """Start the clock of a job, or go on with the `state` of the process that has spawned this one."""
    global _began
    given = state or {"began": time.time(), "spent": {}}
    _began = given["began"]
    _spent.clear()
    _spent.update(given["spent"])


def state() -> dict[str, Any]:
    """Return the state of the clock, with which `begin` goes on in another process."""
    return {"began": _began, "spent": dict(_spent)}


@contextmanager
def spend(what: str) -> Iterator[None]:
    """Count the time of a block, except that of blocks within it."""
    before, start = sum(_spent.values()), time.monotonic()
    try:
        yield
    finally:
        inside = sum(_spent.values()) - before
        add(what, time.monotonic() - start - inside)


def add(what: str, seconds: float) -> None:
    """Count seconds that were measured elsewhere."""
    _spent[what] = _spent.get(what, 0.0) + max(seconds, 0.0)


def spent(what: str) -> float:
    """Return the seconds that were counted so far."""
    return _spent.get(what, 0.0)


def add_rest(what: str) -> None:
    """Count all time that has not been counted since the job began."""
    add(what, time.time() - _began - sum(_spent.values()))


def shares() -> dict[str, float]:
    """Return the seconds of the job so far, and the share of each thing in them, the largest first."""
    seconds = max(time.time() - _began, 1e-9)
    parts = dict(sorted(_spent.items(), key=lambda x: -x[1]))
    known = {what: s / seconds for what, s in parts.items() if s > 0}
    return {"seconds": seconds} | known | {"other": max(1 - sum(known.values()), 0.0)}
