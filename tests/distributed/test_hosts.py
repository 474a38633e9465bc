"""Two hosts, each with an address of its own, train one row-wise model over torchrun's rendezvous."""

import json
from pathlib import Path
from typing import Any

import pytest
from jobs import COMMAND, TORCHRUN, TRAIN, Host, Job, metrics, seconds_since


def start(job: Job, hosts: list[Host], *args: str, restarts: int = 0, apart: bool = False) -> None:
    """One rank a host; apart: each host in a folder of its own."""
    for host in hosts:
        torchrun = [*TORCHRUN, *host.torchrun, "--nproc_per_node=1", f"--max_restarts={restarts}"]
        job.start([*host.prefix, *torchrun, *TRAIN, *args], host.folder if apart else None)


@pytest.mark.slow
def test_one_rank_on_each_of_two_hosts_trains_what_one_host_does(
    job: Job, home: Path, reference: dict[str, Any]
) -> None:
    """Hosts by their ranks alone: torchrun and the network between them are in the slow tests."""
    job.fork_ranks(2, *COMMAND, "run_dir=two_ranks", hosts=2)
    assert job.wait() == [0, 0], job.output.read_text()[-3000:]
    check(home / "two_ranks", reference)


@pytest.mark.slow
def test_two_hosts_train_what_one_does(job: Job, hosts: list[Host], home: Path, reference: dict[str, Any]) -> None:
    start(job, hosts, "run_dir=two_hosts")
    assert job.wait() == [0, 0], job.output.read_text()[-3000:]
    check(home / "two_hosts", reference)


def check(run: Path, reference: dict[str, Any]) -> None:
    assert [p.name for p in run.parent.glob(f"{run.name}*")] == [run.name]
    plan = json.loads((run / "plan.json").read_text())
    assert (plan["world_size"], plan["hosts"]) == (2, 2)
    assert {t["type"] for t in plan["tables"]} == {"row_wise"}
    assert {s["rank"] for t in plan["tables"] for s in t["shards"]} == {0, 1}
    found = metrics(run)
    assert found["test"]["auc"] == pytest.approx(reference["test"]["auc"], abs=1e-6)
    assert found["train"]["samples"] == reference["train"]["samples"]


@pytest.mark.slow
@pytest.mark.parametrize(("rank", "how"), [(0, "kill"), (1, "kill"), (1, "raise")])
def test_a_rank_that_ends_on_one_host_ends_the_job_on_both(
    job: Job, hosts: list[Host], home: Path, rank: int, how: str
) -> None:
    mark = home / f"hosts_{rank}_{how}.mark"
    start(job, hosts, f"run_dir={mark.stem}", f"model.rank={rank}", f"model.how={how}", f"model.mark={mark}")
    assert all(job.wait())
    assert seconds_since(mark) < 60
    errors = job.errors()
    first = errors.splitlines()[0]
    assert "exitcode: -9" in first if how == "kill" else f"rank {rank} on {hosts[rank].name} failed" in first
    assert "gloo/transport" not in errors


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_torchrun_restarts_both_hosts_and_the_run_goes_on(
    job: Job, hosts: list[Host], home: Path, reference: dict[str, Any], rank: int
) -> None:
    mark = home / f"hosts_again_{rank}.mark"
    run = home / mark.stem
    start(job, hosts, f"run_dir={run}", f"model.rank={rank}", "model.how=kill", f"model.mark={mark}", restarts=2)
    assert job.wait() == [0, 0], job.output.read_text()[-3000:]
    assert f"resuming from {run}/checkpoints/step-00000010 (restart 1 of 2)" in job.output.read_text()
    assert metrics(run)["test"]["auc"] == pytest.approx(reference["test"]["auc"], abs=1e-6)
    assert metrics(run)["train"]["samples"] == reference["train"]["samples"]


@pytest.mark.slow
@pytest.mark.parametrize(("override", "times"), [("model=nope", 2), ("trainer.batch_size=33", 1)])
def test_a_mistake_ends_torchrun_on_both_hosts(job: Job, hosts: list[Host], override: str, times: int) -> None:
    start(job, hosts, "run_dir=mistaken", override, restarts=3)
    assert all(job.wait())
    lines = job.output.read_text().splitlines()
    assert [line.startswith("error: ") for line in lines].count(True) == times  # before they meet, once a host


@pytest.mark.slow
def test_a_host_that_does_not_see_the_run_folder_says_so(job: Job, hosts: list[Host], home: Path) -> None:
    for host in hosts:
        (host.folder / "conf").symlink_to(home / "conf")
    start(job, hosts, "run_dir=unshared", f"data.prepared={home}/outputs/prepared", apart=True)
    assert all(job.wait())
    errors = [line for line in job.output.read_text().splitlines() if line.startswith("error:")]
    assert errors
    for line in errors:
        assert "does not see rank 0's" in line
        assert "run_dir must be on a file system that all hosts share" in line
