"""A disk that is full at any moment of a cycle: one line, nothing is damaged, and the next run ends as if nothing was."""

import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from following import fake_steps, followed, settings_file

from recsys.data.samples.drifting import write_days
from recsys.distributed import failures
from recsys.files.json_text import read_lines
from recsys.follow import partitions
from recsys.follow.cycle import ContinuousTraining
from recsys.follow.follow_settings import load_settings
from recsys.follow.follow_state import FollowState

FULL = "No space left on device; free space there, then run the same command again"
SIZES = [40_000, 150_000, 450_000, 750_000]  # bytes of disks that are too small
DAY, START = 86_400, 1_735_689_600  # 2025-01-01


def outcome(root: Path, versions: bool = True) -> Any:
    """Return what a follower has decided, from its files. versions: with those of artefacts, which have times in them"""
    state = FollowState.load(root)
    cycles = [(c.train, c.window, c.outcome, c.version if versions else "", c.metrics) for c in state.cycles]
    partitions = {n: (p.status, p.rows, p.drifted, p.metrics) for n, p in state.partitions.items()}
    history = [
        (e["event"], e["version"] if versions else "")
        for e in read_lines(root / "registry" / "clicks" / "history.jsonl")
    ]
    return cycles, partitions, history


def check_json(root: Path) -> None:
    """Read all JSON files of a root; a damaged one raises."""
    for file in root.rglob("*.json"):
        if not any(part.startswith(".") for part in file.relative_to(root).parts):
            json.loads(file.read_text())


@contextmanager
def full_after(writes: int) -> Iterator[Callable[[], int]]:
    """Let a number of writes of files succeed, the next one write a part, and all others fail; yield their counter."""
    written = 0

    def limited(write: Callable[..., Any], name: str) -> Callable[..., Any]:
        def call(target: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
            nonlocal written
            written += 1
            if written > writes:
                if written == writes + 1 and isinstance(value, str | bytes | memoryview):
                    write(target, value[: len(value) // 2], *args, **kwargs)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), target if isinstance(target, Path) else None)
            return write(target, value, *args, **kwargs)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for owner, name in ((Path, "write_text"), (Path, "write_bytes"), (os, "write"), (shutil, "copytree")):
            patch.setattr(owner, name, limited(getattr(owner, name), name))
        yield lambda: written


def streamed(folder: Path) -> Path:
    """Write the settings of a follower of a stream with four days, and the first event of a fifth."""
    folder.mkdir()
    (folder / "logs").mkdir()
    events = [json.dumps({"id": i, "time": START + i * DAY // 4}) for i in range(17)]
    (folder / "events.jsonl").write_text("\n".join(events) + "\n")
    stream = {"folder": str(folder / "logs"), "stream": str(folder / "events.jsonl"), "delay": "1s"}
    return settings_file(folder, folder / "logs", partitions=stream)


def _follow(file: Path) -> None:
    followed(file)


@pytest.mark.parametrize("step", [13, pytest.param(1, marks=pytest.mark.slow)])
def test_a_disk_that_is_full_at_any_write(
    step: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The n-th write and all later ones fail, for each n (or some), with steps that write what the real ones write."""
    fake_steps(monkeypatch)
    monkeypatch.setattr(partitions, "WAIT", 0.01)
    followed(streamed(tmp_path / "clean"))
    clean = outcome(tmp_path / "clean" / "root")
    assert [c[2] for c in clean[0]] == ["promoted"] * 2
    for n in count(0, step):
        file, root = streamed(tmp_path / str(n)), tmp_path / str(n) / "root"
        capsys.readouterr()
        with full_after(n) as written:
            status = failures.call(partial(_follow, file))
        if written() <= n:
            break
        errors = [line for line in capsys.readouterr().err.splitlines() if "error" in line or "Traceback" in line]
        assert status == failures.USER and len(errors) == 1 and errors[0].endswith(FULL), errors
        assert str(tmp_path) in errors[0]
        check_json(root)
        ContinuousTraining(load_settings(file)).registry.aliases()
        followed(file)
        assert outcome(root) == clean
        lines = [line for f in (tmp_path / str(n) / "logs").rglob("*.jsonl") for line in f.read_text().splitlines()]
        assert sorted(json.loads(line)["id"] for line in lines) == list(range(17))
        shutil.rmtree(tmp_path / str(n))
    assert n > 30


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """Return a function that mounts a file system of this many bytes, or changes its size; skip where that is denied."""
    disk = tmp_path / "disk"
    disk.mkdir()

    def sized(size: int) -> Path:
        options = f"remount,size={size}" if os.path.ismount(disk) else f"size={size}"
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(disk)], capture_output=True)
        if done.returncode:
            pytest.skip(f"mount: {done.stderr.decode().strip()}")
        return disk

    yield sized
    subprocess.run(["umount", str(disk)], capture_output=True)


@pytest.mark.slow
def test_a_small_disk(small_disk: Callable[[int], Path], tmp_path: Path) -> None:
    """Real trainings on disks of several sizes, which are full in the checks, the training, the export or the registry."""
    logs = tmp_path / "logs"
    write_days(logs, days=4, rows_per_day=3000)
    gate = {"change": {"auc": -0.02}, "min_rows": 500, "latency_ms": 5000, "slices": {"device": {"auc": -0.5}}}
    (tmp_path / "clean").mkdir()
    followed(settings_file(tmp_path / "clean", logs, gate=gate))
    clean = outcome(tmp_path / "clean" / "root", versions=False)
    assert [c[2] for c in clean[0]] == ["promoted"] * 2
    for size in SIZES:
        disk = small_disk(size)
        file = settings_file(disk, logs, gate=gate)
        command = [sys.executable, "-m", "recsys.follow", str(file)]
        done = subprocess.run(command, capture_output=True, text=True)
        last = done.stderr.splitlines()[-1]
        assert done.returncode == 2 and last.startswith("error: ") and last.endswith(FULL), (size, done.stderr)
        assert "Traceback" not in done.stderr
        check_json(disk / "root")
        small_disk(1 << 30)
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0 and outcome(disk / "root", versions=False) == clean, (size, done.stderr)
        shutil.rmtree(disk / "root")
