"""Start N processes on this machine through torchrun's agent.

The processes meet in a file of a private folder, and gloo and NCCL bind to the loopback interface, so that nothing
listens where another machine could reach it. torch's own TCP store would listen on all interfaces, and it unpickles
what it is sent.
"""

import fcntl
import json
import os
import shutil
import signal
import socket
import sys
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from recsys.base import console, secrets
from recsys.base.console import say
from recsys.base.cores import POLARS, threads_of
from recsys.base.interrupts import Interrupted
from recsys.distributed.ranks import silence

PREFIX = "recsys-job-"  # of the private folders of jobs
LOOPBACKS = ("lo", "lo0")  # names of the loopback interface on Linux and on macOS


def spawn(devices: int, work: str, job: dict[str, Any], *, patience_seconds: int = 30) -> None:
    """Call `work` (MODULE:FUNCTION) with the keyword arguments `job` in `devices` processes of this machine.

    patience_seconds: time that the processes have to end after a signal, before they are killed

    torchrun's agent watches the processes. Raises SystemExit with the exit status of a failed process, which has
    already printed its error.
    """
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    silence()
    # the agent and the ranks open no port that other machines reach; an interface that the user has set stays
    env = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}  # the agent's TCP store for the ranks, which listens on all
    present = [name for _, name in socket.if_nameindex()]
    given = os.environ.get(POLARS, "")
    env[POLARS] = str(min(threads_of(devices), int(given)) if given.isdecimal() else threads_of(devices))
    if loopback := next((name for name in LOOPBACKS if name in present), None):
        env |= {k: loopback for k in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME") if k not in os.environ}
    with private_folder() as folder, _environment(env | secrets.environment() | console.environment()):
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=devices,
            run_id=uuid.uuid4().hex,
            rdzv_backend="c10d",
            rdzv_endpoint=str(folder / "agent"),
            rdzv_configs={"store_type": "file"},
            max_restarts=0,
            monitor_interval=0.2,
            shutdown_timeout=patience_seconds,
            local_addr="127.0.0.1",
            logs_specs=DefaultLogsSpecs(log_dir=str(folder / "logs")),
        )
        arguments = folder / "job.json"
        arguments.write_text(json.dumps(job))
        try:
            elastic_launch(config, sys.executable)("-m", "recsys.distributed.worker", work, str(arguments))
        except ChildFailedError as e:
            rank, first = e.get_first_failure()
            if first.exitcode < 0:  # a killed process could not print an error itself
                cause = ", as the kernel does when memory runs out" if -first.exitcode == signal.SIGKILL else ""
                say(f"error: rank {rank} was killed by signal {-first.exitcode} ({first.signal_name()}){cause}")
            codes = {f.exitcode for f in e.failures.values()}
            raise SystemExit(2 if 2 in codes else 1) from None
        except SignalException as e:
            raise Interrupted(e.sigval) from None


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    before = {k: os.environ.get(k) for k in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


@contextmanager
def private_folder() -> Iterator[Path]:
    """Yield a new temporary folder that only this user can read, and remove it at the end.

    Also remove the folders that killed launchers have left behind. All processes of a job hold a shared lock on its
    folder, which ends with them.
    """
    home = Path(tempfile.gettempdir())
    for old in home.glob(f"{PREFIX}*"):
        remove_if_left(old)
    # renamed once it is locked, so that another launcher does not take it for one that was left behind
    new = Path(tempfile.mkdtemp(prefix="recsys-new-"))
    held = hold(new)
    folder = new.rename(home / f"{PREFIX}{uuid.uuid4().hex}")
    try:
        yield folder
    finally:
        os.close(held)
        shutil.rmtree(folder, ignore_errors=True)


def hold(folder: Path) -> int:
    """Lock the folder for as long as this process lives, or until the returned file descriptor is closed."""
    held = os.open(folder, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_SH)
    return held


def remove_if_left(folder: Path) -> None:
    """Remove the folder of a job of this user, unless a process of the job holds it."""
    with suppress(OSError):
        if folder.is_symlink() or folder.stat().st_uid != os.getuid():
            return
        held = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(held)
