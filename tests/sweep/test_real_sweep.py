"""Whole sweeps as a user starts them, of real training on a small sample."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from forks import WARM, run_anew, run_forked

from recsys.sweep import processes
from recsys.sweep.watch import validations

SMALL = ["data.sample.rows=2000", "trainer.batch_size=256", "trainer.threads=1", "model.dim=8"]


def recsys(cwd: Path, command: str, *args: str) -> subprocess.CompletedProcess[str]:
    return run_forked(f"recsys.{command}", *args, cwd=cwd, env=WARM, timeout=550)


@pytest.mark.slow
def test_a_grid_its_status_and_its_best(tmp_path: Path) -> None:
    done = recsys(tmp_path, "train", "-m", *SMALL, "optim.dense.lr=0.005,1e30", "run_dir=s", "sweep.jobs=2")
    assert done.returncode == 2, done.stderr[-2000:]
    assert "1 of 2 trials succeeded" in done.stderr
    assert "failed (2): the loss is nan at step" in done.stderr
    auc = json.loads((tmp_path / "s" / "0" / "metrics.json").read_text())["validation"]["auc"]
    assert f" {auc:.5f} " in run_anew("recsys.sweep", "status", "s", cwd=tmp_path).stdout
    best = recsys(tmp_path, "sweep", "best", "s")
    assert f"python -m recsys.train {' '.join(SMALL)} optim.dense.lr=0.005" in best.stdout
    config = (tmp_path / "s" / "0" / "config.yaml").read_text()
    assert "sweep:" not in config


@pytest.mark.slow
def test_a_grid_with_seeds_its_status_and_its_best(tmp_path: Path) -> None:
    done = recsys(tmp_path, "train", "-m", *SMALL, "optim.dense.lr=0.005,1e30", "seed=0,1", "run_dir=s", "sweep.jobs=2")
    assert done.returncode == 2, done.stderr[-2000:]
    assert "1 of 2 trials succeeded" in done.stderr
    assert "failed (2): the loss is nan at step" in done.stderr
    runs = [json.loads((tmp_path / "s" / "0" / f"seed-{s}" / "metrics.json").read_text()) for s in (0, 1)]
    mean = sum(r["validation"]["auc"] for r in runs) / 2
    assert runs[0]["validation"]["auc"] != runs[1]["validation"]["auc"]
    assert f"{mean:.5f} ± " in recsys(tmp_path, "sweep", "status", "s").stdout
    best = recsys(tmp_path, "sweep", "best", "s")
    assert f"python -m recsys.train -m {' '.join(SMALL)} optim.dense.lr=0.005 seed=0,1" in best.stdout
    config = (tmp_path / "s" / "0" / "seed-0" / "config.yaml").read_text()
    assert "sweep:" not in config


@pytest.mark.slow
def test_optuna_with_real_training(tmp_path: Path) -> None:
    axes = ["optim.sparse.lr=tag(log,interval(0.001,0.3))", "model.dropout=interval(0,0.5)", "model=dlrm,dcnv2"]
    how = ["sweep=optuna", "sweep.trials=4", "sweep.metric=validation/logloss", "run_dir=s", "trainer.max_epochs=2"]
    done = recsys(tmp_path, "train", "-m", *SMALL, *axes, *how)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "4 trials, method optuna, minimize validation/logloss" in done.stderr
    sweep = json.loads((tmp_path / "s" / "sweep.json").read_text())
    assert [r["status"] for t in sweep["trials"] for r in t["runs"]] == ["ok"] * 4
    told = [json.loads(line) for line in (tmp_path / "s" / "study.journal").read_text().splitlines()]
    reports = [t for t in told if "intermediate_value" in t]
    assert [t["step"] for t in reports] == [0, 1] * 4  # each validation, without the one after training
    assert list(validations(tmp_path / "s" / "0", "validation/logloss")) == [
        t["intermediate_value"] for t in reports[:2]
    ]


@pytest.mark.slow
def test_kill_9_of_a_distributed_sweep_and_resume(tmp_path: Path) -> None:
    """Torchrun's workers have sessions of their own: they too are ended before their run goes on."""
    how = [
        "trainer.devices=2",
        "trainer.max_epochs=10000",
        "trainer.early_stopping.patience=null",
        "checkpoint.every_n_steps=6",
        "run_dir=s",
    ]
    command = [sys.executable, "-m", "recsys.train", "-m", *SMALL, *how]
    running = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL)
    run = tmp_path / "s" / "0"
    deadline = time.monotonic() + 300
    while not list((run / "checkpoints").glob("step-*/.metadata")) and time.monotonic() < deadline:
        assert running.poll() is None
        time.sleep(0.1)
    assert len(processes.marked(run)) >= 3  # torchrun's agent and two workers
    running.send_signal(signal.SIGKILL)
    running.wait()
    before = processes.marked(run)
    again = subprocess.Popen(
        [sys.executable, "-m", "recsys.sweep", "resume", "s"], cwd=tmp_path, stderr=subprocess.PIPE
    )
    log = run / "train.log"
    while "resuming from s/0/checkpoints/step-" not in log.read_text() and time.monotonic() < deadline + 200:
        assert again.poll() is None
        time.sleep(0.1)
    assert before and not set(before) & set(processes.marked(run))
    again.send_signal(signal.SIGTERM)
    assert again.wait(timeout=100) == 128 + signal.SIGTERM
    assert not processes.marked(run)
    assert not [p for p in os.listdir("/proc") if p.isdigit() and int(p) in before]
