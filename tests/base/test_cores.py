"""Threads are as many as the cores that a process may use, not as many as the machine has."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from recsys.base.cores import OMP, POLARS, allowed_cores, limit_threads, threads_of


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine of 32 cores, all of which the affinity mask has, and no variables that limit threads."""
    monkeypatch.setattr(os, "cpu_count", lambda: 32)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(32)))
    for name in (OMP, POLARS, "OMP_THREAD_LIMIT", "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(name, raising=False)


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


ACCT = "sys/fs/cgroup/cpu,cpuacct/docker/ab/cpu"
V2, V1 = {"proc/self/cgroup": "0::/pod/c1\n"}, {"proc/self/cgroup": "4:cpu,cpuacct:/docker/ab\n3:memory:/\n0::/\n"}


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, 32),
        (V2 | {"sys/fs/cgroup/pod/c1/cpu.max": "max 100000\n"}, 32),
        (V2 | {"sys/fs/cgroup/pod/c1/cpu.max": "150000 100000\n"}, 2),  # 1.5 cores, rounded up
        (V2 | {"sys/fs/cgroup/pod/c1/cpu.max": "max 100000\n", "sys/fs/cgroup/pod/cpu.max": "400000 100000\n"}, 4),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "20000 100000\n"}, 1),  # as a container sees its own
        (V2 | {"sys/fs/cgroup/pod/c1/cpu.max": "9900000 100000\n"}, 32),
        (V2 | {"sys/fs/cgroup/pod/c1/cpu.max": "nonsense\n"}, 32),
        (V1 | {f"{ACCT}.cfs_quota_us": "300000\n", f"{ACCT}.cfs_period_us": "100000\n"}, 3),
        (V1 | {"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "50000\n", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "25000\n"}, 2),
        (V1 | {"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n"}, 32),
    ],
)
def test_quotas(tmp_path: Path, files: dict[str, str], cores: int) -> None:
    write(tmp_path, files)
    found = allowed_cores(tmp_path)
    assert (found.count, found.of_machine, bool(found.why)) == (cores, 32, cores < 32)


def test_the_least_of_mask_and_quota(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, V2 | {"sys/fs/cgroup/pod/c1/cpu.max": "800000 100000\n"})
    for mask, least in ((range(4), 4), (range(16), 8)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, mask=mask: set(mask))
        assert allowed_cores(tmp_path).count == least


@pytest.mark.parametrize(
    ("env", "processes", "threads"),
    [
        ({}, 1, 32),
        ({}, 5, 6),
        ({}, 64, 1),
        ({OMP: "3"}, 1, 3),
        ({OMP: "8,2"}, 8, 4),  # no more than the share
        ({OMP: "3", "OMP_THREAD_LIMIT": "2"}, 1, 2),
        ({OMP: "x"}, 2, 16),
        ({OMP: "1", "TORCHELASTIC_RUN_ID": "r"}, 4, 8),  # torchrun sets it where nobody has
        ({OMP: "1", "TORCHELASTIC_RUN_ID": "r", "RECSYS_STORE": "s"}, 4, 1),  # recsys's own processes: the user's
        ({OMP: "2", "TORCHELASTIC_RUN_ID": "r"}, 4, 2),
    ],
)
def test_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, env: dict[str, str], processes: int, threads: int
) -> None:
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert threads_of(processes, root=tmp_path) == threads


def test_libraries_take_no_more(tmp_path: Path) -> None:
    write(tmp_path, V2 | {"sys/fs/cgroup/pod/c1/cpu.max": "200000 100000\n"})
    for env, expected in (
        ({}, {OMP: "2", POLARS: "2"}),
        ({OMP: "1"}, {OMP: "1", POLARS: "1"}),
        ({POLARS: "7"}, {OMP: "2", POLARS: "7"}),  # what the user sets stays
        ({POLARS: "0"}, {OMP: "2", POLARS: "2"}),
    ):
        limit_threads(env, root=tmp_path)
        assert env == expected
    free: dict[str, str] = {}
    limit_threads(free, root=tmp_path / "none")
    assert free == {}


CODE = """
import os
os.cpu_count = lambda: 32
from recsys.base.cores import limit_threads
limit_threads(os.environ)
import polars as pl, pyarrow as pa, torch
from recsys.distributed.ranks import process_group
with process_group("cpu", None):
    print(torch.get_num_threads(), pl.thread_pool_size(), pa.cpu_count())
"""


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="only Linux has affinity masks")
def test_a_process_that_may_use_one_core() -> None:
    env = {k: v for k, v in os.environ.items() if k not in (OMP, POLARS, "OMP_THREAD_LIMIT")}
    command = ["taskset", "-c", "0", sys.executable, "-c", CODE]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1", "1", "1"]
