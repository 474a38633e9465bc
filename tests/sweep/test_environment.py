"""The processes of a run are found by their environment, on any system that psutil knows."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from recsys.sweep import processes

SLEEP = [sys.executable, "-c", "import time; print(1, flush=True); time.sleep(60)"]


@pytest.fixture
def child(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    env = os.environ | {processes.MARK: str(tmp_path)}
    with subprocess.Popen(SLEEP, env=env, stdout=subprocess.PIPE) as started:
        yield started
        started.kill()


def test_a_process_is_found_until_it_ends(child: subprocess.Popen[bytes], tmp_path: Path) -> None:
    assert processes.marked(tmp_path) == [child.pid]  # also while it begins to execute its program
    assert processes.marked(tmp_path / "other") == []
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and nobody has asked for its status
    assert processes.marked(tmp_path) == []


def test_an_empty_environment_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([{}, {}, {"A": "1"}])
    monkeypatch.setattr(psutil.Process, "environ", lambda _: next(answers))
    assert processes._environment(psutil.Process()) == {"A": "1"}


def test_a_process_that_nobody_may_read_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: psutil.Process) -> dict[str, str]:
        raise psutil.AccessDenied

    monkeypatch.setattr(psutil.Process, "environ", refused)
    assert processes._environment(psutil.Process()) == {}
