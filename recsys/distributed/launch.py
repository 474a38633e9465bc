"""Start N processes on this machine through torchrun's agent."""

import json
import os
import signal
import sys
import tempfile
import uuid
from typing import Any

from recsys.console import say
from recsys.distributed.ranks import silence
from recsys.interrupts import Interrupted


def spawn(devices: int, work: str, job: dict[str, Any]) -> None:
    """Call `work` (MODULE:FUNCTION) with the keyword arguments `job` in `devices` processes of this machine.

    torchrun's agent watches the processes. Raises SystemExit with the exit status of a failed process, which has
    already printed its error.
    """
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    silence()
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=devices,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="127.0.0.1:0",
        max_restarts=0,
        monitor_interval=0.2,
        local_addr="127.0.0.1",
    )
    with tempfile.NamedTemporaryFile("w", suffix=".json", prefix="recsys-", delete=False) as f:
        json.dump(job, f)
    try:
        elastic_launch(config, sys.executable)("-m", "recsys.distributed.worker", work, f.name)
    except ChildFailedError as e:
        rank, first = e.get_first_failure()
        if first.exitcode < 0:  # a killed process could not print an error itself
            cause = ", as the kernel does when memory runs out" if -first.exitcode == signal.SIGKILL else ""
            say(f"error: rank {rank} was killed by signal {-first.exitcode} ({first.signal_name()}){cause}")
        codes = {f.exitcode for f in e.failures.values()}
        raise SystemExit(2 if 2 in codes else 1) from None
    except SignalException as e:
        raise Interrupted(e.sigval) from None
    finally:
        os.unlink(f.name)
