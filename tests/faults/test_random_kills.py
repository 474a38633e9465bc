"""Processes killed at random moments: what is started again ends as if nothing had happened."""

import json
import os
import shutil
import signal
import time
from contextlib import nullcontext
from pathlib import Path
from subprocess import TimeoutExpired

import numpy as np
import polars as pl
import pytest
from filelock import FileLock
from forks import WARM, Command, run_forked
from small_run import SMALL, Home

from recsys.files.manifest import check
from recsys.files.run_files import checkpoints_of
from recsys.training.run_lock import LOCK

LONG = [
    *SMALL,
    "trainer.max_epochs=20",
    "trainer.early_stopping.patience=null",
    "checkpoint.every_n_steps=7",
    "run_dir=run",
    "resume=auto",
]


def start(home: Path, *more: str) -> Command:
    out = home / "out"
    return Command("recsys.train", *LONG, *more, cwd=home, stdout=out, stderr=out, env=os.environ | WARM)


def killed(running: Command, seconds: float) -> bool:
    """Kill a process with SIGKILL after some seconds; return False if it has ended before."""
    try:
        running.wait(seconds)
    except TimeoutExpired:
        running.send_signal(signal.SIGKILL)
        running.wait(30)
        return True
    return False


@pytest.mark.slow
@pytest.mark.parametrize(("devices", "kills"), [(1, 40), (2, 12)])
def test_training_ends_as_if_it_had_not_been_killed(tmp_path: Path, devices: int, kills: int) -> None:
    """Preparing, training, saving and evaluating. One kill of each day: e2e/test_runs.py."""
    rng = np.random.default_rng(devices)
    more = [f"trainer.devices={devices}"]
    whole, home = tmp_path / "whole", tmp_path / "killed"
    for folder in (whole, home):
        folder.mkdir()
    begun = time.monotonic()
    assert start(whole, *more).wait(300) == 0, (whole / "out").read_text()
    longest = time.monotonic() - begun
    done = 0
    while done < kills:
        running = start(home, *more)
        if killed(running, rng.uniform(0.3, longest)):
            done += 1
            # a rank dies a moment after its launcher, and may be removing an old checkpoint
            with FileLock(home / "run" / LOCK, timeout=30) if (home / "run").exists() else nullcontext():
                for checkpoint in checkpoints_of(home / "run"):
                    check(checkpoint)
            continue
        assert running.returncode == 0, (home / "out").read_text()[-3000:]
        shutil.rmtree(home / "run")  # it has come to its end: from the beginning
        if done % 2:
            shutil.rmtree(home / "outputs")
    assert start(home, *more).wait(300) == 0, (home / "out").read_text()[-3000:]
    assert "Traceback" not in (home / "out").read_text()
    a, b = (json.loads((f / "run" / "metrics.json").read_text()) for f in (whole, home))
    assert a["test"] == b["test"] and a["validation"] == b["validation"]


@pytest.mark.slow  # tests/files/test_atomic.py stays
def test_a_killed_prediction_leaves_no_half_of_a_file(trained: Home, tmp_path: Path) -> None:
    rows = (trained.folder / "rows.tsv").read_text() * 2000
    (tmp_path / "rows.tsv").write_text(rows)
    output = tmp_path / "scores.parquet"
    arguments = [f"run={trained.run}", f"input={tmp_path / 'rows.tsv'}", f"output={output}"]
    begun = time.monotonic()
    done = run_forked("recsys.predict", *arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    longest, whole = time.monotonic() - begun, pl.read_parquet(output)
    rng = np.random.default_rng(0)
    for _ in range(3):
        output.unlink(missing_ok=True)
        running = Command("recsys.predict", *arguments, cwd=tmp_path, stdout=tmp_path / "out", stderr=tmp_path / "out")
        killed(running, rng.uniform(0.2, longest))
        assert not output.exists() or pl.read_parquet(output).equals(whole)
    assert run_forked("recsys.predict", *arguments, cwd=tmp_path).returncode == 0
    assert pl.read_parquet(output).equals(whole)
    assert sorted(f.name for f in tmp_path.iterdir()) == ["out", "rows.tsv", "scores.parquet"]


@pytest.mark.slow
def test_a_killed_evaluation_of_two_processes_changes_nothing(trained: Home, tmp_path: Path) -> None:
    arguments = [f"run={trained.run}", "trainer.devices=2", "sharding=rowwise"]
    result = trained.run / "evaluate-test.json"
    begun = time.monotonic()
    done = run_forked("recsys.evaluate", *arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    longest, whole = time.monotonic() - begun, result.read_text()
    kept = {f: f.read_bytes() for f in trained.run.rglob("*") if f.is_file() and not f.name.endswith((".log", ".lock"))}
    rng = np.random.default_rng(0)
    for _ in range(6):
        out = tmp_path / "out"
        running = Command("recsys.evaluate", *arguments, cwd=tmp_path, stdout=out, stderr=out, env=os.environ | WARM)
        killed(running, rng.uniform(0.2, longest))
        assert json.loads(result.read_text()) == json.loads(whole)
        assert all(f.read_bytes() == content for f, content in kept.items())
    assert run_forked("recsys.evaluate", *arguments, cwd=tmp_path).returncode == 0
    assert result.read_text() == whole
