"""A run folder is written by one job at a time.

RUN/.lock          locked by flock while the job runs; the lock ends with the process, however it ends
RUN/.owner.json    host, process and start of the job that has, or had, the lock
"""

import json
import os
import socket
import time
from pathlib import Path

from filelock import FileLock, Timeout

from recsys.base.console import say
from recsys.base.errors import UserError
from recsys.files.atomic import write_json

LOCK, OWNER = ".lock", ".owner.json"
_held: dict[Path, FileLock] = {}


def hold(run: Path, key: str = "run_dir") -> None:
    """Lock a run folder until `release` or the end of this process. key: the config key that names the folder.

    Raises UserError if another job has it.
    """
    if run.resolve() in _held:
        return
    lock = FileLock(run / LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        try:
            owner = json.loads((run / OWNER).read_text(encoding="utf-8"))
            other = f"process {owner['pid']} on {owner['host']} (since {owner['since']})"
        except (OSError, ValueError, KeyError, TypeError):
            other = "another process"
        raise UserError(f"{key}={run}: {other} is writing to it; choose another run_dir, or wait") from None
    except (NotImplementedError, OSError) as e:
        if not os.access(run, os.W_OK):
            raise
        say(f"{run}: its file system has no locks ({e}); let no two jobs write to it")
        return
    write_json(run / OWNER, {"host": socket.gethostname(), "pid": os.getpid(), "since": time.strftime("%F %T")})
    _held[run.resolve()] = lock


def release() -> None:
    """Release the run folders that this process has locked."""
    while _held:
        _held.popitem()[1].release()
