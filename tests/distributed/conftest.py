"""What tests of whole jobs share: a folder that all hosts see, the run that no test disturbs, two hosts."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jobs import AS_HOST, COMMAND, Host, Job, loopback_hosts, make_namespaces, metrics, remove_namespaces


@pytest.fixture
def job(home: Path, tmp_path: Path) -> Iterator[Job]:
    started = Job(home, tmp_path / "output")
    yield started
    started.kill()


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all hosts see, with the failing model in its conf/; data prepared there once serves every test."""
    path = tmp_path_factory.mktemp("jobs")
    (path / "conf" / "model").mkdir(parents=True)
    (path / "conf" / "model" / "failing.yaml").write_text(
        "_target_: failing_model.Failing\nrank: 1\nstep: 15\nhow: never\nmark: mark\n"
    )
    return path


@pytest.fixture(scope="session")
def reference(home: Path) -> dict[str, Any]:
    """Metrics of the run that no test disturbs, of two processes on one host (each number has batches of its own)."""
    alone = Job(home, home / "reference.output")
    alone.fork_ranks(2, *COMMAND, "run_dir=reference")
    assert alone.wait() == [0, 0], alone.output.read_text()[-3000:]
    return metrics(home / "reference")


@pytest.fixture(scope="session")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Host]]:
    """Two hosts with names and addresses: network namespaces with a cable, where they can be made (as root)."""
    own = [tmp_path_factory.mktemp(f"host{i}") for i in (0, 1)]
    try:
        names = make_namespaces()
    except (OSError, subprocess.CalledProcessError) as e:
        print(f"no network namespaces here ({e}): two loopback addresses are the hosts")
        yield loopback_hosts(own)
        return
    rendezvous = ["--rdzv_backend=c10d", "--rdzv_endpoint=host-0:29400", "--rdzv_id=test", "--nnodes=2"]
    try:
        yield [
            Host(
                f"host-{i}",
                ["ip", "netns", "exec", name, "unshare", "--uts", sys.executable, "-c", AS_HOST, f"host-{i}"],
                rendezvous,
                own[i],
            )
            for i, name in enumerate(names)
        ]
    finally:
        remove_namespaces(names)
