"""Ctrl-C and SIGTERM end a command in one line, with the last checkpoint whole."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from forks import WARM, Command
from small_run import SMALL

from recsys.files.manifest import check
from recsys.files.run_files import checkpoints_of

LONG = [
    *SMALL,
    "run_dir=run",
    "trainer.max_epochs=100000",
    "trainer.early_stopping.patience=null",
    "checkpoint.every_n_steps=10",
]
SIGNALS_WHILE_READING = """
import os, signal, time
from recsys.base import interrupts
interrupts.install()
from recsys.schema.source_schema import SourceConfig
from recsys.data.raw.dialect import _fields
for n in range(100):
    interrupts.install()  # as the signal before was the last that is handled
    parent = os.getpid()
    end = time.monotonic() + 5
    try:
        if os.fork() == 0:
            time.sleep(0.001 + n % 50 * 3e-5)
            os.kill(parent, signal.SIGTERM)
            os._exit(0)
        while time.monotonic() < end:
            _fields(SourceConfig(format="csv"), b"1,2,3")
    except interrupts.Interrupted:
        continue
    raise SystemExit(f"signal {n} was lost")
"""
SAYS = {  # moment -> text of standard error after which the signal is sent
    "starting": "",
    "preparing": "generating",
    "training": "validating",
    "saving": "",
}


def start(home: Path, *more: str) -> Command:
    out, err = home / "out", home / "err"
    return Command("recsys.train", *LONG, *more, cwd=home, stdout=out, stderr=err, env=os.environ | WARM)


def wait_for(running: Command, home: Path, moment: str) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        assert running.poll() is None, (home / "err").read_text()
        err = (home / "err").read_text() if (home / "err").exists() else ""
        if moment == "saving" and list((home / "run" / "checkpoints").glob(".step-*.building")):
            return
        if moment != "saving" and SAYS[moment] in err:
            return
        time.sleep(0.002)
    raise AssertionError(f"{moment} did not come:\n{err}")


@pytest.mark.slow
@pytest.mark.parametrize(("moment", "number"), [(m, s) for m in SAYS for s in (signal.SIGINT, signal.SIGTERM)])
def test_one_line(tmp_path: Path, moment: str, number: signal.Signals) -> None:
    running = start(tmp_path)
    wait_for(running, tmp_path, moment)
    if moment == "starting":
        time.sleep(0.3)  # its handlers stand
    running.send_signal(number)
    assert running.wait(60) == 128 + number, (tmp_path / "err").read_text()
    err = (tmp_path / "err").read_text()
    [line] = [line for line in err.splitlines() if "interrupted" in line]
    assert line.startswith("error: interrupted; ") and "Traceback" not in err
    for checkpoint in checkpoints_of(tmp_path / "run"):
        check(checkpoint)
    if moment in ("training", "saving"):
        assert line == "error: interrupted; go on with resume=run"


@pytest.mark.parametrize("devices", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_checkpoint_is_written_first(tmp_path: Path, devices: int) -> None:
    more = ["trainer.save_on_interrupt=true", "checkpoint.every_n_steps=null", f"trainer.devices={devices}"]
    running = start(tmp_path, *more)
    wait_for(running, tmp_path, "training")
    running.send_signal(signal.SIGTERM)
    assert running.wait(60) == 143, (tmp_path / "err").read_text()
    err = (tmp_path / "err").read_text()
    assert "interrupted: writing a checkpoint at step " in err
    assert err.count("error: interrupted; go on with resume=run") == 1
    [step] = (tmp_path / "run" / "checkpoints").glob("step-*")
    check(step)


def test_no_signal_is_lost_while_text_is_read() -> None:
    """Arrow's handlers of signals lost one in six of them."""
    done = subprocess.run([sys.executable, "-c", SIGNALS_WHILE_READING], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


SIGNALS_WHERE_PYTHON_SWALLOWS = """
import os, signal, time
from recsys.base import interrupts
interrupts.install()

class Freed:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.01)

try:
    Freed()
    time.sleep(5)
except interrupts.Interrupted as error:
    raise SystemExit(error.status)
raise SystemExit("the signal was lost")
"""


def test_a_signal_that_comes_while_an_object_is_freed_is_not_lost() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SIGNALS_WHERE_PYTHON_SWALLOWS], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (128 + signal.SIGTERM, "")


@pytest.mark.slow
def test_two_processes_end_together(tmp_path: Path) -> None:
    running = start(tmp_path, "trainer.devices=2")
    wait_for(running, tmp_path, "training")
    running.send_signal(signal.SIGINT)
    assert running.wait(60) == 130, (tmp_path / "err").read_text()
    err = (tmp_path / "err").read_text()
    assert "Traceback" not in err
    assert [line for line in err.splitlines() if line.startswith("error")] == [
        "error: interrupted; go on with resume=run"
    ], err
