"""The doctor tries the parts of this machine, and reports each problem with the command that fixes it."""

import json
import shutil
import subprocess
import sys
from collections import namedtuple
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest
from forks import WARM, run_forked, warm_python

from recsys.cli import versions
from recsys.config.compose import compose
from recsys.doctor import checks
from recsys.doctor.checks import Finding


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
    [found] = checks.data(compose("doctor", ["data=avazu", "data.root=/nowhere"]))
    assert found.state == "problem" and found.result == "data.root=/nowhere: no such folder or file"
    assert found.fix == "data.root=DIR, the folder of the raw files"
    (tmp_path / "train.csv").write_text("a,b\n1,2\n")
    [found] = checks.data(compose("doctor", ["data=avazu", f"data.root={tmp_path}"]))
    assert found.state == "problem" and "there is no column hour" in found.result and not found.fix
    [found] = checks.data(compose("doctor", ["data=avazu"]))
    assert (found.state, found.result) == ("problem", "data.root is not set") and found.fix


def test_packages_that_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = {"torch": "2.13.0", "torchrec": "1.7.0", "fbgemm-gpu-cpu": "1.8.0"}

    def version(name: str) -> str:
        if name not in installed:
            raise PackageNotFoundError(name)
        return installed[name]

    monkeypatch.setattr(versions, "version", version)
    found = by_what(checks.packages(compose("doctor")))
    triple = found["torch, torchrec, fbgemm"]
    assert triple.result == "torch 2.13, torchrec 1.7, fbgemm 1.8: these versions are not compatible"
    assert triple.fix.startswith("pip install --no-deps 'torchrec==1.8.*' 'fbgemm-gpu-cpu==1.8.*'")
    assert found["polars"] == Finding("problem", "polars", "missing", "pip install polars")


def test_kernels_that_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", warm_python())
    crashed = checks._probe("cuda", "GPU kernels")  # there is no GPU, or no build for one
    if crashed.state == "problem":
        assert crashed.result and "uv sync --no-group cpu --group cuda" in crashed.fix
    answers = iter([(-11, "", ""), (0, json.dumps({"right": False}), "")])

    def run(*_: Any, **__: Any) -> Any:
        return subprocess.CompletedProcess([], *next(answers))

    monkeypatch.setattr(checks.subprocess, "run", run)
    assert checks._probe("cpu", "kernels").result == "the process ended by signal 11"
    assert checks._probe("cpu", "kernels").result == "returns wrong numbers"


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(100, 100, 1 << 20))
    monkeypatch.setattr(checks, "BYTES", 1 << 20)
    found = [*checks._disk(tmp_path / "a" / "prepared")]
    assert found[0].state == "problem" and found[0].result == "0.0 GiB free"
    assert found[0].fix == "data.prepared=DIR on another disk"
    assert "MB/s" in found[1].result
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(100, 100, 2 << 30))
    assert next(checks._disk(tmp_path)) == Finding(
        "note", f"disk of data.prepared={tmp_path}", "2.0 GiB free", found[0].fix
    )
