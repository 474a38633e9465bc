"""How a rank ends: by its own error at once; by another rank's, later and in one line."""

import atexit
import os
import re
import signal
import socket
import sys
import time
import traceback
from typing import NoReturn

# What gloo, NCCL and the rendezvous' store say where the process at the other end is gone.
PEER_GONE = re.compile(
    r"gloo/transport/tcp/(pair|buffer|unbound)|Connection (closed|reset) by peer|Broken pipe|ncclRemoteError"
    r"|NCCL communicator was aborted|DistNetworkError|DistStoreError|recvValue failed|sendBytes failed"
)
GRACE_SECONDS = 1.0
GRACE_SECONDS_ON_ONE_HOST = 30.0  # its launcher ends this process much earlier, however busy the machine is


def describe(error: BaseException) -> str:
    """What to show of a failure that is not the user's: a traceback, and in a job of many ranks whose it is.

    A rank that has only lost another one waits first: on the other's own host torchrun has by then told that
    error and ended this process, and elsewhere it has been told before this line.
    """
    text = "".join(traceback.format_exception(error))
    if "RANK" not in os.environ or int(os.environ.get("WORLD_SIZE", 1)) == 1:
        return text
    who = f"rank {os.environ['RANK']} on {socket.gethostname()}"
    if not lost_another_rank(error):
        _record(error)
        return f"error: {who} failed:\n{text}"
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # Lightning's would only take note of it
    alone = os.environ.get("LOCAL_WORLD_SIZE") == os.environ["WORLD_SIZE"]
    time.sleep(GRACE_SECONDS_ON_ONE_HOST if alone else GRACE_SECONDS)
    first = str(error).strip().splitlines()[:1]
    return f"error: {who} has lost another rank, whose own error, told on its host, is the cause ({''.join(first)})\n"


def lost_another_rank(error: BaseException) -> bool:
    """Whether the error is but the consequence of another rank's end."""
    return bool(PEER_GONE.search(f"{type(error).__name__}: {error}"))


def _record(error: BaseException) -> None:
    """For torchrun's summary: it shows the traceback of the rank that failed first."""
    if "TORCHELASTIC_ERROR_FILE" in os.environ:
        from torch.distributed.elastic.multiprocessing.errors import get_error_handler

        get_error_handler().record_exception(error)


def leave(status: int) -> NoReturn:
    """Exit; a rank at once, without taking the interpreter down.

    A failed one, because the others wait for it in a collective, where a tidy exit would hang; one that is done,
    because threads of gloo's and the store's may abort a process that ends under them, which would fail the job.
    """
    if "RANK" in os.environ:
        if status == 0:
            atexit._run_exitfuncs()  # W&B's, say
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)
