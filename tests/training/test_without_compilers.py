"""On a machine without compilers, as most images are, one line says what to install, and the run goes on."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from forks import ok, run_anew

from recsys.base import packages
from recsys.config.compose import compose
from recsys.doctor import checks
from recsys.training import compiled

HELPERS = Path(__file__).parents[1] / "helpers"
NOWHERE = {"PATH": "", "CUDA_VISIBLE_DEVICES": ""}
ON_A_GPU = """
from unittest import mock
import torch
from recsys.models.common import kernels
from recsys.models.dlrm import DotInteraction
from recsys.training import compiled
from recsys.base.console import say_once
from stand_in_gpu import OnGpu, stand_in_gpu, to_gpu

has_triton, x = kernels.has_triton, torch.arange(24.0).view(2, 3, 4)
expected = DotInteraction(3)(x)
with (
    stand_in_gpu(),
    mock.patch("recsys.models.common.kernels.has_triton", has_triton),
    mock.patch("torch.cuda.is_available", lambda: True),
    mock.patch("torch.cuda.get_device_capability", lambda: (9, 0)),
    mock.patch("torch.utils._triton.has_triton", lambda: True),
):
    say_once(compiled.cannot_compile("cuda"))
    for _ in range(2):
        dots = to_gpu(DotInteraction(3))(OnGpu(x))
assert torch.equal(dots.host, expected)
"""


def test_on_a_gpu_the_step_runs_without_kernels() -> None:
    """The line of trainer.compile and that of the kernels are one."""
    env = {k: v for k, v in os.environ.items() if k != "CC"} | NOWHERE | {"PYTHONPATH": os.pathsep.join(sys.path)}
    code = f"import sys; sys.path.append({str(HELPERS)!r})\n{ON_A_GPU}"
    done = ok(subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True))
    [line] = [line for line in done.stderr.splitlines() if "compiler" in line]
    assert line.startswith("no compiler (gcc or clang)") and "apt install g++" in line


@pytest.mark.slow
def test_a_training_that_asks_for_compiled_code_goes_on(tmp_path: Path) -> None:
    given = ("model=dlrm", "data=criteo", "data.sample.rows=2000", "trainer.compile=true", "trainer.threads=1")
    done = ok(run_anew("recsys.train", *given, "run_dir=run", cwd=tmp_path, env=NOWHERE))
    [line] = [line for line in done.stderr.splitlines() if "compiler" in line]
    assert line.startswith("no compiler (g++)") and "apt install g++" in line and "Traceback" not in done.stderr
    assert (tmp_path / "run" / "metrics.json").is_file()


def test_what_triton_builds_its_launcher_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CC alone if it is set, else gcc or clang; and Python's headers."""
    for name in ("clang", "other", "g++"):
        (tmp_path / name).touch(0o755)
    (tmp_path / "Python.h").touch()
    monkeypatch.setattr(packages.sysconfig, "get_path", lambda _: str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("torch.utils._triton.has_triton", lambda: True)
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.delenv("CXX", raising=False)
    assert packages.no_compiler(gpu=True) is None is compiled.cannot_compile("cuda")
    monkeypatch.setenv("CC", "absent")
    assert "(absent)" in str(packages.no_compiler(gpu=True)) and packages.no_compiler(gpu=False) is None
    monkeypatch.setenv("CC", "other")
    assert packages.no_compiler(gpu=True) is None
    monkeypatch.setenv("CXX", "absent")
    assert "(absent)" in str(compiled.cannot_compile("cuda")) == str(compiled.cannot_compile("cpu"))
    (tmp_path / "Python.h").unlink()
    assert "(other) or no Python.h" in str(compiled.cannot_compile("cuda"))


def test_the_doctor_looks_for_compilers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu: Any = subprocess.CompletedProcess([], 0, "H200, 1 MiB, 570\n", "")
    monkeypatch.setattr(checks.subprocess, "run", lambda *_, **__: gpu)
    works = [checks.Finding("ok", "kernels", "works")] * 2
    monkeypatch.setattr(checks, "_probe", lambda _: works)
    for name in ("CC", "CXX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", "")
    [found] = [f for f in checks.kernels(compose("doctor")) if f.state == "note"]
    assert found.what == "compiler" and "apt install g++ python3-dev" in found.result
