"""docs/slurm.sh under a real Slurm: a controller and two nodes on this machine, of Debian's slurm-wlm and munge."""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DAEMONS = ("munged", "slurmctld", "slurmd")
MISSING = [d for d in DAEMONS if shutil.which(d, path=os.environ["PATH"] + ":/usr/sbin:/sbin") is None]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}; apt install slurm-wlm munge"),
    pytest.mark.skipif(os.getuid() != 0, reason="Slurm's daemons need root"),
    pytest.mark.timeout(1500),
]
CONF = """
ClusterName=test
SlurmctldHost={host}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={home}/munge.socket,cred_expire=5
CredType=cred/munge
StateSaveLocation={home}/state
SlurmdSpoolDir={home}/spool-%n
SlurmctldPidFile={home}/slurmctld.pid
SlurmdPidFile={home}/slurmd-%n.pid
SlurmctldLogFile={home}/slurmctld.log
SlurmdLogFile={home}/slurmd-%n.log
SlurmctldPort={ports[0]}
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
GresTypes=gpu
SlurmdParameters=config_overrides
ReturnToService=2
NodeName={nodes[0]} NodeHostname={nodes[0]} Port={ports[1]} CPUs=4 Gres=gpu:1
NodeName={nodes[1]} NodeHostname={nodes[1]} Port={ports[2]} CPUs=4 Gres=gpu:1
PartitionName=all Nodes={nodes[0]},{nodes[1]} Default=YES MaxTime=60 State=UP
"""


@dataclass
class Cluster:
    """A running Slurm. home: its files; each job runs in it"""

    home: Path
    env: dict[str, str]

    def ask(self, *command: str) -> str:
        done = subprocess.run(command, cwd=self.home, env=self.env, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr + self.logs()
        return done.stdout.strip()

    def submit(self, *arguments: str, **options: str) -> int:
        """Submit slurm.sh for two nodes with a GPU each, which need not be there."""
        asked = {"gpus_per_node": "1", "cpus_per_task": "1"} | options
        given = [f"--{name.replace('_', '-')}={value}" for name, value in asked.items()]
        return int(self.ask("sbatch", "--parsable", *given, str(ROOT / "docs" / "slurm.sh"), *arguments))

    def job(self, number: int) -> dict[str, str]:
        words = self.ask("scontrol", "--oneliner", "show", "job", str(number)).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def ended(self, number: int, seconds: float = 600) -> dict[str, str]:
        return self.wait(
            lambda job: job["JobState"] in ("COMPLETED", "FAILED", "TIMEOUT", "CANCELLED"), number, seconds
        )

    def wait(self, is_so: Callable[[dict[str, str]], bool], number: int, seconds: float) -> dict[str, str]:
        until = time.monotonic() + seconds
        while not is_so(job := self.job(number)):
            assert time.monotonic() < until, f"{job}\n{self.output(number)}\n{self.logs()}"
            time.sleep(1)
        return job

    def output(self, number: int) -> str:
        file = self.home / f"recsys-{number}.out"
        return file.read_text() if file.exists() else ""

    def logs(self) -> str:
        return "\n".join(f"{p.name}: {p.read_text()[-2000:]}" for p in self.home.glob("slurm*.log"))


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    home = tmp_path_factory.mktemp("slurm")
    nodes = [socket.gethostname(), "localhost"]  # two names of this machine that are known everywhere on it
    for name in ("state", *(f"spool-{node}" for node in nodes)):
        (home / name).mkdir()
    (home / "munge.key").write_bytes(os.urandom(1024))
    (home / "munge.key").chmod(0o400)
    (home / "slurm.conf").write_text(CONF.format(home=home, host=nodes[0], nodes=nodes, ports=free_ports(3)))
    (home / "gres.conf").write_text("Name=gpu File=/dev/null\n")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}:/usr/sbin:/sbin"
    env = os.environ | {"SLURM_CONF": f"{home}/slurm.conf", "PATH": path, "PYTHONPATH": os.pathsep.join(sys.path)}
    env |= {"INTERFACE": "lo"}
    munge = [
        f"--{name}={home}/munge.{name.partition('-')[0]}" for name in ("socket", "key-file", "pid-file", "seed-file")
    ]
    starts = [["munged", "--foreground", "--force", *munge, f"--log-file={home}/munge.log"], ["slurmctld", "-D"]]
    starts += [["slurmd", "-D", "-N", node] for node in nodes]
    started = []
    try:
        for command in starts:
            with (home / f"{command[0]}.out").open("ab") as out:
                started.append(subprocess.Popen(command, env=env, stdout=out, stderr=out, cwd=home))
            time.sleep(1)
        made = Cluster(home, env)
        until = time.monotonic() + 60
        while made.ask("sinfo", "--noheader", "--format=%t %D") != "idle 2":
            assert time.monotonic() < until, made.ask("sinfo", "-N", "-l") + made.logs()
            time.sleep(1)
        yield made
    finally:
        subprocess.run(["scancel", "--full", "--signal=KILL", "--user=root"], env=env, capture_output=True)
        for process in reversed(started):
            process.terminate()
            process.wait(timeout=60)


def training(cluster: Cluster, name: str) -> list[str]:
    rows = [
        "data.sample.rows=40000",
        "trainer.batch_size=128",
        "trainer.threads=1",
        "trainer.max_epochs=16",
        "trainer.early_stopping.patience=null",
    ]
    return [
        "model=dlrm",
        "data=criteo",
        "sharding=rowwise",
        *rows,
        f"run_dir={cluster.home / name}",
        f"data.prepared={cluster.home / 'prepared'}",
    ]


def test_a_job_that_meets_its_time_limit_is_queued_again_and_resumes(cluster: Cluster) -> None:
    """The metrics are those of a job that was never interrupted, to the last digit."""
    whole = cluster.submit(*training(cluster, "whole"), time="20")
    assert cluster.ended(whole)["JobState"] == "COMPLETED", cluster.output(whole)
    number = cluster.submit(*training(cluster, "cut"), time="2", signal="B:USR1@40")
    job = cluster.ended(number, 900)
    assert job["JobState"] == "COMPLETED" and int(job["Restarts"]) >= 1, f"{job}\n{cluster.output(number)}"
    assert "resuming from" in cluster.output(number)
    metrics = [json.loads((cluster.home / run / "metrics.json").read_text()) for run in ("whole", "cut")]
    assert metrics[0]["test"] == metrics[1]["test"] and metrics[0]["test"]


def test_a_mistake_in_the_config_is_not_queued_again(cluster: Cluster) -> None:
    number = cluster.submit(*training(cluster, "wrong"), "model.dmi=8", time="20")
    job = cluster.ended(number)
    assert (job["JobState"], job["Restarts"]) == ("FAILED", "0") and "model.dmi" in cluster.output(number)


def test_a_limit_that_is_near_at_the_start_does_not_queue_the_job_for_ever(cluster: Cluster) -> None:
    number = cluster.submit(*training(cluster, "short"), time="2", signal="B:USR1@600")
    job = cluster.ended(number)
    assert (job["JobState"], job["Restarts"]) == ("FAILED", "0") and "--signal" in cluster.output(number)
