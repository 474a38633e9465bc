"""How a process ends: the one line or the traceback that it prints, and its exit status.

0 success, 2 a mistake in the config or the data, 1 any other failure. A rank that fails says so at once; a rank that
has only lost another one says so later, in one line.
"""

import atexit
import errno
import os
import re
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from typing import NoReturn

from recsys.console import console, log
from recsys.errors import DoesNotFit, UserError

USER, OURS = 2, 1
THE_DISK = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT}

# Messages of gloo, NCCL and the rendezvous store when the process at the other end is gone.
PEER_GONE = re.compile(
    r"gloo/transport/tcp/(pair|buffer|unbound)|Connection (closed|reset) by peer|Broken pipe|ncclRemoteError"
    r"|NCCL communicator was aborted|DistNetworkError|DistStoreError|recvValue failed|sendBytes failed"
)
GRACE_SECONDS = 1.0
GRACE_SECONDS_ON_ONE_HOST = 30.0  # the launcher ends this process much earlier


def describe(error: BaseException) -> str:
    """Return the text to show for a failure that is not the user's: a traceback and, in a job of many ranks, its rank.

    A rank that has only lost another one waits first. On the other's host torchrun shows that error meanwhile and ends
    this process; on other hosts that error appears before this line.
    """
    text = "".join(traceback.format_exception(error))
    if "RANK" not in os.environ or int(os.environ.get("WORLD_SIZE", 1)) == 1:
        return text
    who = f"rank {os.environ['RANK']} on {socket.gethostname()}"
    if not lost_another_rank(error):
        _record(error)
        return f"error: {who} failed:\n{text}"
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # Lightning's handler would only note it
    alone = os.environ.get("LOCAL_WORLD_SIZE") == os.environ["WORLD_SIZE"]
    time.sleep(GRACE_SECONDS_ON_ONE_HOST if alone else GRACE_SECONDS)
    first = str(error).strip().splitlines()[:1]
    return f"error: {who} has lost another rank; the cause is that rank's error, shown on its host ({''.join(first)})\n"


def lost_another_rank(error: BaseException) -> bool:
    """Return whether the error only follows from the end of another rank."""
    return bool(PEER_GONE.search(f"{type(error).__name__}: {error}"))


def _record(error: BaseException) -> None:
    """Record the error for torchrun's summary, which shows the traceback of the rank that failed first."""
    if "TORCHELASTIC_ERROR_FILE" in os.environ:
        from torch.distributed.elastic.multiprocessing.errors import get_error_handler

        get_error_handler().record_exception(error)


def exit_process(status: int) -> NoReturn:
    """Exit with this status. A rank exits at once, without finalising the interpreter.

    In a failed rank a tidy exit would hang in a collective that the others wait in. In a rank that is done, threads of
    gloo and the store may abort a process that ends under them, which would fail the job.
    """
    if "RANK" in os.environ:
        if status == 0:
            atexit._run_exitfuncs()  # private: os._exit skips exit functions, such as W&B's
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)


def call(function: Callable[[], None], explain: Callable[[Exception], str] | None = None) -> int:
    """Run `function` and return the exit status, after one line (a mistake of the user's) or a traceback.

    explain: returns the line for an error of OmegaConf's.
    """
    from omegaconf.errors import OmegaConfBaseException

    try:
        function()
    except UserError as e:
        if isinstance(e, DoesNotFit) and e.infeasible is not None:
            console.print(e.infeasible.table())
        return say_error(str(e))
    except OmegaConfBaseException as e:
        return say_error(explain(e) if explain is not None else str(e))
    except KeyboardInterrupt:
        return say_error("interrupted", status=130)
    except SystemExit as e:
        return e.code if isinstance(e.code, int) else OURS
    except BaseException as e:  # a failed collective save raises a BaseException
        if (disk := _of_the_disk(e)) is not None:
            return say_error(disk)
        text = describe(e)
        sys.stderr.write(text)
        log(text)
        return OURS
    return 0


def _of_the_disk(error: BaseException) -> str | None:
    """Return one line for an error of the disk, None for other errors. Polars raises its own type."""
    if isinstance(error, OSError) and error.errno in THE_DISK:
        return f"{error.filename or 'the disk'}: {error.strerror}"
    polars = type(error).__module__.startswith("polars")  # without importing polars
    number = re.search(r"\(os error (\d+)\)", str(error)) if polars else None
    return f"the disk: {os.strerror(int(number[1]))}" if number and int(number[1]) in THE_DISK else None


def say_error(message: str, status: int = USER) -> int:
    print(f"error: {message}", file=sys.stderr)
    log(f"error: {message}")
    return status
