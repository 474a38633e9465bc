"""The doctor tries the parts of this machine, and reports each problem with the command that fixes it."""

import json
import os
import signal
import subprocess
import sys
import time
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest
from forks import WARM, run_forked, warm_python

from recsys.base import packages
from recsys.config.compose import compose, object_of
from recsys.doctor import checks, probe
from recsys.doctor.checks import Finding
from recsys.schema.command_schemas import DoctorConfig


def by_what(findings: Any) -> dict[str, Finding]:
    return {f.what: f for f in findings}


def test_here_everything_works(tmp_path: Path, run_command: Any) -> None:
    done = run_command("recsys.doctor", cwd=tmp_path, env=WARM if run_command is run_forked else None)
    assert done.returncode == 0, done.stderr
    for text in ("match (", "million rows looked up and updated per second", "GB/s", "MB/s", "built-in sample"):
        assert text in done.stdout
    assert "everything that training needs works" in done.stderr
    assert not list(tmp_path.iterdir())  # nothing is left


def test_data_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [found] = checks.data(object_of(DoctorConfig, compose("doctor", ["data=avazu", "data.root=/nowhere"])))
    assert found.state == "problem" and found.result == "data.root=/nowhere: no such folder or file"
    assert found.fix == "data.root=DIR, the folder of the raw files"
    (tmp_path / "train.csv").write_text("a,b\n1,2\n")
    [found] = checks.data(object_of(DoctorConfig, compose("doctor", ["data=avazu", f"data.root={tmp_path}"])))
    assert found.state == "problem" and "there is no column hour" in found.result and not found.fix
    [found] = checks.data(object_of(DoctorConfig, compose("doctor", ["data=avazu"])))
    assert (found.state, found.result) == ("problem", "data.root is not set") and found.fix


def test_packages_that_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = {"torch": "2.13.0", "torchrec": "1.7.0", "fbgemm-gpu-cpu": "1.8.0"}

    def version(name: str) -> str:
        if name not in installed:
            raise PackageNotFoundError(name)
        return installed[name]

    monkeypatch.setattr(packages, "version", version)
    found = by_what(checks.packages(compose("doctor")))
    triple = found["torch, torchrec, fbgemm"]
    assert triple.result == "torch 2.13, torchrec 1.7, fbgemm 1.8: these versions are not compatible"
    assert triple.fix.startswith("pip install --no-deps 'torchrec==1.8.*' 'fbgemm-gpu-cpu==1.8.*'")
    assert found["polars"] == Finding("problem", "polars", "missing", "pip install polars")


def test_kernels_that_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", warm_python())
    tests = {"cuda": "GPU kernels", "gloo": "collectives"}
    crashed, collectives = checks._probe(tests)  # there is no GPU, or no build for one
    if crashed.state == "problem":
        assert crashed.result and "uv sync --no-group cpu --group cuda" in crashed.fix
    assert collectives == Finding("ok", "collectives", "works")
    answers = iter([(-11, "", ""), (0, json.dumps({"cpu": {"right": False}}), "")])

    def run(*_: Any, **__: Any) -> Any:
        return subprocess.CompletedProcess([], *next(answers))

    monkeypatch.setattr(checks.subprocess, "run", run)
    assert [f.result for f in checks._probe({"cpu": "kernels"})] == ["the process ended by signal 11"]
    assert [f.result for f in checks._probe({"cpu": "kernels"})] == ["returns wrong numbers"]


@pytest.mark.parametrize(
    ("test", "result"),
    [
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "the process ended by signal 9"),
        (lambda: time.sleep(60), "did not answer within 0.2 s"),
        (lambda: [][1], "IndexError: list index out of range"),
    ],
)
def test_a_test_that_crashes_ends_its_own_process_alone(
    test: Any, result: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "SECONDS", 0.2 if "0.2" in result else 60)
    monkeypatch.setattr(probe, "_kernel", lambda _: test())
    assert probe.in_a_fork("cpu") == {"failed": result}


@pytest.mark.slow
def test_pytorch_is_imported_once_for_all_tests() -> None:
    """An import of PyTorch takes most of the doctor's CPU seconds; forks that import it again print a line each."""
    command = [sys.executable, "-X", "importtime", "-m", "recsys.doctor.probe", "cpu", "gloo"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    imported = [line.rpartition("|")[2].strip() for line in done.stderr.splitlines()]
    assert imported.count("torch") == 1 and imported.count("fbgemm_gpu") == 1
    assert not {"sympy", "torch._dynamo.eval_frame", "torchrec", "polars"} & {*imported}
    assert set(json.loads(done.stdout)) == {"cpu", "gloo"}
