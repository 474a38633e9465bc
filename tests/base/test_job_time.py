"""The clock of a job: blocks within blocks count once, and processes go on with it."""

import contextlib
import time

import pytest

from recsys.base import job_time


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(time, "time", lambda: 1e9 + now[0])
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    job_time.begin()
    return now


def test_blocks_within_blocks_count_once(clock: list[float]) -> None:
    clock[0] += 2
    job_time.add_rest("start")
    with job_time.spend("testing"):
        clock[0] += 3
        with job_time.spend("saving"):
            clock[0] += 4
        with contextlib.suppress(ValueError), job_time.spend("saving"):
            clock[0] += 1
            raise ValueError
    clock[0] += 10
    assert job_time.shares() == {"seconds": 20, "saving": 0.25, "testing": 0.15, "start": 0.1, "other": 0.5}


def test_a_process_goes_on_with_the_clock_of_its_parent(clock: list[float]) -> None:
    clock[0] += 5
    job_time.add_rest("preparing")
    given = job_time.state()
    clock[0] += 3
    job_time.begin(given)
    job_time.add_rest("start")
    assert (job_time.spent("preparing"), job_time.spent("start")) == (5, 3)
    job_time.begin()
    assert job_time.spent("start") == 0
