"""Process of a run on this machine, started in a session of its own and ended with all of its children."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from recsys.sweep.watch import OUTPUT

MARK = "RECSYS_TRIAL"  # environment variable of all processes of a run: its folder
GONE = (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
KERNEL = (0, 2)  # parents of init and of the threads of the kernel, which have no environment to read
GRACE_SECONDS = 15.0  # time for torchrun's agent to end its workers, and for Lightning to end its batch

EMPTY_READS, EMPTY_SECONDS = 10, 0.002


def marked(folder: Path) -> list[int]:
    """Return the processes of this user that belong to the run, on this machine and in any session."""
    mark = str(folder.resolve())
    return [p.pid for p in psutil.process_iter() if _environment(p).get(MARK) == mark]


def _environment(process: psutil.Process) -> dict[str, str]:
    """Return the environment of a process; empty if it has ended or belongs to another user.

    While a process begins to execute a program, its environment and its command line read as empty; so read them again
    after a moment.
    """
    with contextlib.suppress(psutil.Error, OSError):
        for _ in range(EMPTY_READS):
            if found := process.environ():
                return found if process.status() not in GONE else {}
            if process.status() in GONE or process.ppid() in KERNEL:
                return {}
            time.sleep(EMPTY_SECONDS)
    return {}


def signal_all(folder: Path, number: int) -> None:
    """Send a signal to all processes of a run."""
    for pid in marked(folder):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def end_left(folder: Path) -> None:
    """End the processes of this run that a killed sweep left behind, and wait until they are gone."""
    deadline, number = time.monotonic() + GRACE_SECONDS, signal.SIGTERM
    while marked(folder):
        signal_all(folder, number)
        if time.monotonic() > deadline:
            number = signal.SIGKILL
        time.sleep(0.2)


class Process:
    """A run on this machine. Its output goes to output.log in its folder."""

    job: str | None = None

    def __init__(self, command: Sequence[str], env: Mapping[str, str], folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._deadline: float | None = None
        with (folder / OUTPUT).open("a") as out:
            self._process = subprocess.Popen(
                command,
                env=os.environ | dict(env) | {MARK: str(folder.resolve())},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,  # so that Ctrl-C reaches only the sweep
            )

    def poll(self) -> int | None:
        """Return the exit status (-N: killed by signal N) once all processes of the run are gone, else None."""
        status = self._process.poll()
        if status == 0:
            return 0
        late = self._deadline is not None and time.monotonic() > self._deadline
        if status is None:
            if late:
                signal_all(self._folder, signal.SIGKILL)
                self._process.kill()
            return None
        if not marked(self._folder):
            return status
        if self._deadline is None:  # the main process was killed, its children were not
            self._deadline = time.monotonic() + GRACE_SECONDS
        signal_all(self._folder, signal.SIGKILL if late else signal.SIGTERM)
        return None

    def end(self) -> None:
        """Terminate the run. `poll` reports its end, and kills it if it takes too long."""
        if self._deadline is None:
            self._deadline = time.monotonic() + GRACE_SECONDS
            self._process.terminate()
