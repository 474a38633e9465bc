"""The benchmarks of GPUs run here as they run there, on tiny sizes and a CPU: all of them, with their files."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
TOPICS = {
    "dlrm_gpu": ["gpu_dlrm", "gpu_dcnv2"],
    "sequences_gpu": ["gpu_sasrec_ml1m", "gpu_sasrec_200", "gpu_sasrec_1024", "gpu_hstu_200", "gpu_hstu_1024"],
    "host_memory": ["gpu_host_memory"],
    "from_files": ["gpu_from_files"],
}
FEW = {"dlrm_gpu": "pipeline,fp16 tables,loop", "from_files": "float32"}  # without what takes a minute to compile


def run(command: list[str], out: Path, **more: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"OUT": str(out), "PYTHONPATH": f"{ROOT / 'benchmarks'}:{ROOT}", **more}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=500)


def check_files(out: Path, scripts: list[str]) -> None:
    for script in scripts:
        for topic in TOPICS[script]:
            found = json.loads((out / f"{topic}.json").read_text())
            assert len(found["samples"]) > (0 if script == "from_files" else 1), topic
            assert all(s["units"] > 0 and s["wall"] > 0 for of in found["samples"].values() for s in of)


@pytest.mark.slow
@pytest.mark.parametrize("script", TOPICS)
def test_a_script(script: str, tmp_path: Path) -> None:
    command = [sys.executable, f"benchmarks/gpu/{script}.py", "--device", "cpu", "--small", "--rounds", "1"]
    done = run([*command, "--only", FEW.get(script, "")], tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    check_files(tmp_path, [script])
    if script == "dlrm_gpu":
        traces = sorted(p.name for p in tmp_path.glob("trace-*.json.gz"))
        assert "trace-dlrm-pipeline.json.gz" in traces and (tmp_path / traces[0]).stat().st_size > 10_000
    if script == "from_files":
        parts = json.loads((tmp_path / "gpu_from_files.json").read_text())["parts"]["float32"]
        assert 0 <= parts["loader"] < 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_a_script_says_what_to_type(tmp_path: Path) -> None:
    done = run([sys.executable, "benchmarks/gpu/host_memory.py"], tmp_path)
    assert done.returncode == 2 and "there is no GPU; use --device cpu --small" in done.stderr


@pytest.mark.slow
def test_one_command_runs_all(tmp_path: Path) -> None:
    """Its parts end one after another; that of tests/gpu is skipped without a GPU."""
    done = run(
        ["benchmarks/gpu/run.sh", "--small"], tmp_path, PYTHON=sys.executable, ONLY="recsys,loop,cached,HBM,float32"
    )
    assert done.stdout.splitlines()[0] == "tests"
    check_files(tmp_path, list(TOPICS))
    assert (tmp_path / "tests.txt").read_text().strip()
