"""The benchmarks of GPUs run here as they run there, on tiny sizes and a CPU: all of them, with their files."""

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
sys.path += [str(ROOT / "benchmarks"), str(ROOT / "benchmarks" / "gpu")]

import contestants  # noqa: E402
from steady import Sample  # noqa: E402

TOPICS = "dlrm dcnv2 sasrec_ml1m sasrec_200 sasrec_1024 hstu_200 hstu_1024 host_memory from_files".split()
MOST = "recsys,loop,memory,cached,HBM,float32"  # of each topic, whatever needs no GPU


def run(command: list[str], out: Path, **more: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"OUT": str(out), "PYTHONPATH": f"{ROOT / 'benchmarks'}:{ROOT}", **more}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=500)


@pytest.mark.slow
def test_one_command_runs_all(tmp_path: Path) -> None:
    """Its parts end one after another; that of tests/gpu is skipped without a GPU."""
    done = run(["benchmarks/gpu/run.sh", "--small"], tmp_path, PYTHON=sys.executable, ONLY=MOST)
    assert done.returncode == 0 and done.stdout.splitlines()[0] == "tests", done.stdout
    for topic in TOPICS:
        outcomes = json.loads((tmp_path / f"{topic}.json").read_text())["contestants"]
        assert len(outcomes) > (0 if topic == "from_files" else 1), topic
        assert all(o["rates"][0] > 0 and o["problem"] is None for o in outcomes.values()), outcomes
    assert (tmp_path / "tests.txt").read_text().strip()
    assert (tmp_path / "trace-dlrm-pipeline.json.gz").stat().st_size > 10_000
    parts = json.loads((tmp_path / "from_files.json").read_text())["parts"]["float32"]
    assert 0 <= parts["loader"] < 1


def measured(out: Path, runs: contestants.Contestants, given: contestants.Arguments) -> dict[str, Any]:
    contestants.measure(given, "topic", "a topic", runs, "rows")
    found: dict[str, Any] = json.loads((out / "topic.json").read_text())["contestants"]
    return found


@pytest.fixture
def given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> contestants.Arguments:
    monkeypatch.setenv("OUT", str(tmp_path))
    return contestants.Arguments("cpu", True, 1, (), time.monotonic() + 1e9)


def test_the_file_is_written_after_each_contestant(tmp_path: Path, given: contestants.Arguments) -> None:
    """So that a script that is killed leaves what it has measured."""
    seen = []

    def second() -> Sample:
        seen.append(json.loads((tmp_path / "topic.json").read_text())["contestants"])
        raise RuntimeError("no memory\nmore")

    found = measured(tmp_path, {"first": lambda: Sample(100, 2, 4), "second": second}, given)
    assert seen[0]["first"]["rates"] == [50] and seen[0]["second"]["problem"] == "not reached"
    assert found["first"]["cpu_rates"] == [25] and found["first"]["problem"] is None
    assert found["second"]["problem"] == "failed: RuntimeError: no memory" and found["second"]["rates"] == []


def test_a_contestant_that_does_not_fit_the_time_is_skipped(
    tmp_path: Path, given: contestants.Arguments, capsys: pytest.CaptureFixture[str]
) -> None:
    def slow() -> Sample:
        time.sleep(0.2)
        return Sample(1, 1, 1)

    short = replace(given, deadline=time.monotonic() + 0.3, rounds=2)
    found = measured(tmp_path, {"first": slow, "second": slow}, short)
    assert found["first"]["problem"] == "further rounds skipped: no time"
    assert found["second"]["problem"] == "skipped: no time" and found["second"]["rates"] == []
    assert "second                             skipped: no time" in capsys.readouterr().out
