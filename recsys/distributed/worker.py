"""python -m recsys.distributed.worker MODULE:FUNCTION JOB.json: one rank of the processes that `launch.spawn` starts.

The parent process has composed the config and prepared the data; this process does neither. The folder of JOB.json
belongs to the job alone; the ranks meet in a file of it.
"""

import contextlib
import ctypes
import json
import os
import signal
import sys
from importlib import import_module
from pathlib import Path

from recsys.base import interrupts
from recsys.base.cores import STORE
from recsys.distributed.failures import call, exit_process
from recsys.distributed.launch import hold


def main() -> None:
    """Call the function on the job, which it gets as keyword arguments."""
    os.environ[interrupts.QUIET] = "1"
    interrupts.install()
    set_death_signal = 1  # the kernel kills this process when the launcher dies: no rank goes on writing to the run
    with contextlib.suppress(AttributeError, OSError):  # other systems than Linux
        ctypes.CDLL(None).prctl(set_death_signal, signal.SIGKILL)
    module, _, name = sys.argv[1].partition(":")
    folder = Path(sys.argv[2]).parent
    hold(folder)
    os.environ[STORE] = str(folder / "store")
    job = json.loads(Path(sys.argv[2]).read_text(encoding="utf-8"))
    getattr(import_module(module), name)(**job)


if __name__ == "__main__":
    exit_process(call(main))
