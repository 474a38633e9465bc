"""python -m recsys.distributed.worker MODULE:FUNCTION JOB.json: one rank of the processes that `launch.spawn` starts.

The parent process has composed the config and prepared the data; this process does neither.
"""

import json
import sys
from importlib import import_module
from pathlib import Path

from recsys.distributed.failures import call, exit_process


def main() -> None:
    """Call the function on the job, which it gets as keyword arguments."""
    module, _, name = sys.argv[1].partition(":")
    job = json.loads(Path(sys.argv[2]).read_text())
    getattr(import_module(module), name)(**job)


if __name__ == "__main__":
    exit_process(call(main))
