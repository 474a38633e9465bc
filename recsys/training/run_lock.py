"""A run folder is written by one job at a time.

RUN/.lock          locked by flock while the job runs; the lock ends with the process, however it ends
RUN/.owner.json    host, process and start of the job that has, or had, the lock
"""

import fcntl
import json
import os
import socket
import time
from contextlib import suppress
from pathlib import Path

from filelock import FileLock, Timeout

from recsys.base.console import say
from recsys.base.errors import UserError
from recsys.files.atomic import write_json

LOCK, OWNER = ".lock", ".owner.json"
LOOK_SECONDS = 0.5  # in which another job may look at the lock
_held: dict[Path, FileLock] = {}


def hold(run: Path, key: str = "run_dir") -> None:
    """Lock a run folder until `release` or the end of this process. key: the config key that names the folder.

    Raises UserError if another job has it.
    """
    if run.resolve() in _held:
        return
    lock = FileLock(run / LOCK)
    try:
        lock.acquire(timeout=LOOK_SECONDS)
    except Timeout:
        raise _busy(run, key) from None
    except (NotImplementedError, OSError) as e:
        if not os.access(run, os.W_OK):
            raise
        say(f"{run}: its file system has no locks ({e}); let no two jobs write to it")
        return
    write_json(run / OWNER, {"host": socket.gethostname(), "pid": os.getpid(), "since": time.strftime("%F %T")})
    _held[run.resolve()] = lock


def check_free(run: Path, key: str = "run_dir") -> None:
    """Raise UserError if another job has a run folder. Leaves nothing there, and any number of processes may ask."""
    if run.resolve() in _held:
        return
    with suppress(OSError), (run / LOCK).open() as file:  # there is none, or its file system has no locks
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _busy(run, key) from None


def _busy(run: Path, key: str) -> UserError:
    try:
        owner = json.loads((run / OWNER).read_text(encoding="utf-8"))
        other = f"process {owner['pid']} on {owner['host']} (since {owner['since']})"
    except (OSError, ValueError, KeyError, TypeError):
        other = "another process"
    return UserError(f"{key}={run}: {other} is writing to it; choose another run_dir, or wait")


def release() -> None:
    """Release the run folders that this process has locked."""
    while _held:
        _held.popitem()[1].release()
