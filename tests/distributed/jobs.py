"""Jobs of several ranks: how they are started and watched, and two hosts for them."""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from forks import WARM, Command

HERE = Path(__file__).parent
SMALL = [
    *("data.sample.rows=4000", "trainer.batch_size=128", "trainer.threads=1", "trainer.max_epochs=2"),
    *("model=failing", "sharding=rowwise", "checkpoint.every_n_steps=10"),
]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
COMMAND = ["recsys.train", *SMALL]
TRAIN = ["-m", *COMMAND]
AS_HOST = "import os, socket, sys; socket.sethostname(sys.argv[1]); os.execvp(sys.argv[2], sys.argv[2:])"


@dataclass
class Job:
    """Processes of one job, one a host, that write into one file as under Slurm."""

    home: Path
    output: Path
    processes: list[subprocess.Popen[bytes] | Command] = field(default_factory=list)

    def start(self, command: list[str], cwd: Path | None = None) -> None:
        with self.output.open("ab") as out:
            started = subprocess.Popen(
                command, cwd=cwd or self.home, stdout=out, stderr=out, env=_environment(), start_new_session=True
            )
        self.processes.append(started)

    def fork(self, *arguments: str, **env: str) -> None:
        """Start `python -m ARGUMENTS` without the seconds that its imports take, and so for what it starts."""
        how = {"stdout": self.output, "stderr": self.output, "env": _environment() | WARM | env}
        self.processes.append(Command(*arguments, cwd=self.home, **how))

    def fork_ranks(self, world_size: int, *arguments: str, hosts: int = 1) -> None:
        """Start ranks as torchrun does, each `python -m ARGUMENTS`; each host has as many of them."""
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            meet = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(s.getsockname()[1])}
        local = world_size // hosts
        size = {"WORLD_SIZE": str(world_size), "LOCAL_WORLD_SIZE": str(local)}
        for rank in range(world_size):
            self.fork(*arguments, **meet, **size, RANK=str(rank), LOCAL_RANK=str(rank % local))

    def wait(self) -> list[int]:
        return [p.wait(timeout=300) for p in self.processes]

    def errors(self) -> str:
        """The output from the first line that tells of an error."""
        lines = self.output.read_text().splitlines()
        first = next((i for i, line in enumerate(lines) if line.startswith(("error:", "E1", "E0", "Traceback"))), None)
        return "" if first is None else "\n".join(lines[first:])

    def kill(self) -> None:
        """By SIGTERM, upon which torchrun ends its ranks: they are in sessions of their own."""
        running = [p for p in self.processes if p.poll() is None]
        for p in running:
            p.terminate()
        for p in running:
            try:
                p.wait(timeout=40)
            except subprocess.TimeoutExpired:
                p.kill()
                p.wait()


def _environment() -> dict[str, str]:
    paths = [str(HERE.parents[1]), str(HERE), os.environ.get("PYTHONPATH", "")]
    return os.environ | {"PYTHONPATH": ":".join(paths), "OMP_NUM_THREADS": "1"}


def metrics(run: Path) -> dict[str, Any]:
    found = json.loads((run / "metrics.json").read_text())
    assert isinstance(found, dict)
    return found


def seconds_since(mark: Path) -> float:
    """Since the failing model died."""
    return time.time() - mark.stat().st_mtime


@dataclass(frozen=True)
class Host:
    name: str
    prefix: list[str]  # before a command that is to run there
    torchrun: list[str]  # what torchrun needs to be told there
    folder: Path  # of its own, which others do not see


def loopback_hosts(own: list[Path]) -> list[Host]:
    with socket.socket() as s:
        s.bind(("127.0.0.2", 0))
        endpoint = f"127.0.0.2:{s.getsockname()[1]}"
    rendezvous = ["--rdzv_backend=c10d", f"--rdzv_endpoint={endpoint}", "--rdzv_id=test", "--nnodes=2"]
    env = ["env", "GLOO_SOCKET_IFNAME=lo"]
    name = socket.gethostname()
    return [Host(name, env, [*rendezvous, f"--local_addr=127.0.0.{i + 2}"], own[i]) for i in (0, 1)]


def make_namespaces() -> list[str]:
    """Two, each with its /etc/hosts; raises CalledProcessError or OSError where that is not allowed."""
    names = [f"rs{os.getpid()}{end}" for end in "ab"]
    try:
        for name in names:
            _ip("netns", "add", name)
        _ip("link", "add", names[0], "netns", names[0], "type", "veth", "peer", "name", names[1], "netns", names[1])
        for i, name in enumerate(names):
            _ip("-n", name, "addr", "add", f"10.77.0.{i + 1}/24", "dev", name)
            _ip("-n", name, "link", "set", name, "up")
            _ip("-n", name, "link", "set", "lo", "up")
            etc = Path("/etc/netns") / name
            etc.mkdir(parents=True)
            (etc / "hosts").write_text("127.0.0.1 localhost\n10.77.0.1 host-0\n10.77.0.2 host-1\n")
            subprocess.run(["ip", "netns", "exec", name, "unshare", "--uts", "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        remove_namespaces(names)
        raise
    return names


def remove_namespaces(names: list[str]) -> None:
    for name in names:
        with contextlib.suppress(OSError):
            subprocess.run(["ip", "netns", "del", name], capture_output=True)
        shutil.rmtree(Path("/etc/netns") / name, ignore_errors=True)


def _ip(*args: str) -> None:
    subprocess.run(["ip", *args], check=True, capture_output=True)
