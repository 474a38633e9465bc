"""Exit of a process after an error: its message or traceback, and its exit status.

Exit statuses: 0 success, 2 a mistake in the config or the data, 1 any other failure. A rank that fails prints its error
immediately. A rank that fails only because another rank is gone prints one line, later.
"""

import atexit
import errno
import os
import re
import shutil
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from recsys.base import interrupts
from recsys.base.console import complain, console, log_file
from recsys.base.errors import DoesNotFit, NeedsAnswer, UserError
from recsys.base.printable import escaped, visible
from recsys.base.secrets import mask_text
from recsys.files.atomic import written_at

DISK = "the disk"  # where an error names no file
USER, OURS = 2, 1  # exit statuses: a mistake that the user can fix, and any other error
FULL_ERRNOS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}  # no space, quota, limit of a file's size
DISK_ERRNOS = FULL_ERRNOS | {errno.EACCES, errno.EPERM, errno.EROFS, errno.EIO, errno.ENAMETOOLONG}
# Messages of torch.save, which hides the number of the error, when a file cannot be written.
TORCH_WRITE = re.compile(r"PytorchStreamWriter failed writing|inline_container\.cc.*(unexpected pos|file write)", re.S)

# Messages of gloo, NCCL and the rendezvous store when the process at the other end is gone.
PEER_GONE = re.compile(
    r"gloo/transport/tcp/(pair|buffer|unbound)|Connection (closed|reset) by peer|Broken pipe|ncclRemoteError"
    r"|NCCL communicator was aborted|DistNetworkError|DistStoreError|recvValue failed|sendBytes failed"
)
# The source file before gloo's messages, and the advice after them.
GLOO_NOISE = re.compile(r"^\[\S*gloo/transport\S*\]\s*|\. This is typically caused by.*$")
TORCHRUN = re.compile(rb"(^|/)torchrun$|^torch\.distributed\.run$|/torch/distributed/run\.py$")  # in its command
GRACE_SECONDS = 1.0
GRACE_SECONDS_ON_ONE_HOST = 30.0  # the launcher ends this process much earlier


def describe(error: BaseException) -> str:
    """Return the text to print for an error that is not a UserError.

    It is a traceback and, in a job with several ranks, the rank. If the error only says that another rank is gone, wait
    first, so that the other rank's error is printed before. On the host of that rank, torchrun ends this process during
    the wait.
    """
    text = "".join(traceback.format_exception(error))
    if "RANK" not in os.environ or int(os.environ.get("WORLD_SIZE", 1)) == 1:
        return text
    who = f"rank {os.environ['RANK']} on {socket.gethostname()}"
    if not PEER_GONE.search(f"{type(error).__name__}: {error}"):
        if "TORCHELASTIC_ERROR_FILE" in os.environ:  # of torchrun's summary, which shows the first failure
            from torch.distributed.elastic.multiprocessing.errors import get_error_handler

            get_error_handler().record_exception(error)
        return f"error: {who} failed:\n{text}"
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # Lightning's handler would only note it
    alone = os.environ.get("LOCAL_WORLD_SIZE") == os.environ["WORLD_SIZE"]
    time.sleep(GRACE_SECONDS_ON_ONE_HOST if alone else GRACE_SECONDS)
    reason = "".join(str(error).strip().splitlines()[:1])
    reason = GLOO_NOISE.sub("", reason)
    where = f"see the error of that rank in the output of its host ({reason})"
    return f"error: {who} lost the connection to another rank; {where}\n"


def exit_process(status: int) -> NoReturn:
    """Exit with this status. A rank exits immediately, without finalising the interpreter.

    In a failed rank, a normal exit would hang in a collective. In a finished rank, threads of gloo and of the store may
    abort the process while the interpreter shuts down, which would fail the job.
    """
    if "RANK" in os.environ:
        if status == USER and Reported.mistake:
            _end_torchrun()
        if status == 0:
            atexit._run_exitfuncs()  # private: os._exit skips exit functions, such as W&B's
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)


def _end_torchrun() -> None:
    """End torchrun on this host if it would start a job whose first start finds a mistake again and again.

    The first of this host's ranks that have found the mistake does it, and torchrun ends the others while they wait. A
    later start may find what another try mends, such as the lock of a rank that is still ending.
    """
    env, agent = os.environ, os.getppid()
    if env.get("TORCHELASTIC_RESTART_COUNT") != "0" or env.get("TORCHELASTIC_MAX_RESTARTS", "0") == "0":
        return
    with suppress(OSError):
        if any(map(TORCHRUN.search, Path(f"/proc/{agent}/cmdline").read_bytes().split(b"\0"))):
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            time.sleep(GRACE_SECONDS * int(env.get("LOCAL_RANK", 0)))
            os.kill(agent, signal.SIGTERM)
            time.sleep(GRACE_SECONDS_ON_ONE_HOST)


class Reported:
    """A block whose error is printed: one line for a UserError, otherwise a traceback. `status` is the exit status.

    explain: returns the message for an error of OmegaConf
    mistake: whether a block of this process ended with a mistake of the user's
    """

    mistake = False

    def __init__(self, explain: Callable[[Exception], str] = str) -> None:
        self.status, self._explain = 0, explain

    def __enter__(self) -> "Reported":
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        try:
            self.status = 0 if error is None else self._report(error)
        except interrupts.Interrupted as e:  # may come while an error is described
            self.status = say_interrupted(e)
        except KeyboardInterrupt:
            self.status = say_error(interrupts.message(), status=130)
        return True

    def _report(self, error: BaseException) -> int:
        from omegaconf.errors import OmegaConfBaseException

        if isinstance(error, UserError):
            if isinstance(error, DoesNotFit) and error.infeasible is not None:
                console.print(error.infeasible.table())
            return say_mistake(str(error), error.status)
        if isinstance(error, OmegaConfBaseException):
            return say_mistake(self._explain(error))
        if isinstance(error, SystemExit):
            Reported.mistake = error.code == USER  # that another rank reports
            return error.code if isinstance(error.code, int) else OURS
        for cause in _with_causes(error):  # a failed collective save raises a BaseException
            if isinstance(cause, KeyboardInterrupt | interrupts.Interrupted):
                raise cause from None  # the signal may have come during the save
        for e in _with_causes(error):
            if (problem := _disk_problem(e)) is not None:  # permission, no space, ...
                where, number = problem
                file = log_file()
                resume = f" with resume={file.parent}" if file is not None and file.name == "train.log" else ""
                advice = f"; free space there, then run the same command again{resume}" if number in FULL_ERRNOS else ""
                at = next((p for cause in _with_causes(error) if (p := written_at(cause)) is not None), file)
                place = f"the disk of {at.absolute().parent}" if where == DISK and at is not None else where
                return say_error(f"{place}: {os.strerror(number)}{advice}")
        complain(visible(mask_text(describe(error))))
        return OURS


def call(function: Callable[[], None]) -> int:
    """Run `function`, print a message for an error, and return the exit status; see `Reported`."""
    with Reported() as outcome:
        function()
    return outcome.status


def is_disk_full(error: BaseException) -> bool:
    """Return whether a full disk, a quota or a limit of a file's size has led to an error."""
    problems = (_disk_problem(e) for e in _with_causes(error))
    return any(problem is not None and problem[1] in FULL_ERRNOS for problem in problems)


def _disk_problem(error: BaseException) -> tuple[str, int] | None:
    """Return the file and the number of a disk error, None for other errors. Polars and torch raise their own types."""
    if isinstance(error, OSError) and error.errno in DISK_ERRNOS:
        return str(error.filename or DISK), error.errno
    if isinstance(error, shutil.Error) and error.args and isinstance(error.args[0], list):  # of copytree, for all files
        found = ((str(to), re.match(r"\[Errno (\d+)\]", str(why))) for _, to, why in error.args[0])
        return next(((to, int(n[1])) for to, n in found if n and int(n[1]) in DISK_ERRNOS), None)
    # of Polars, without importing it: errors of its own, or an OSError without a number
    polars = type(error).__module__.startswith("polars") or (isinstance(error, OSError) and error.errno is None)
    number = re.search(r"\(os error (\d+)\)", str(error)) if polars else None
    if number and int(number[1]) in DISK_ERRNOS:
        return DISK, int(number[1])
    return (DISK, errno.ENOSPC) if TORCH_WRITE.search(str(error)) else None


def _with_causes(error: BaseException) -> Iterator[BaseException]:
    """Yield the error, the errors of ranks that a failed collective save contains, and the errors that led to them."""
    pending, seen = [error], set[int]()
    while pending:
        e = pending.pop(0)
        if id(e) in seen:
            continue
        seen.add(id(e))
        yield e
        ranks = getattr(e, "failures", None)  # of a CheckpointException: {rank: (error, its traceback)}
        pending += [failure[0] for failure in ranks.values()] if isinstance(ranks, dict) else []
        pending += [e.__cause__] if e.__cause__ is not None else []


def say_mistake(message: str, status: int = USER) -> int:
    """Call `say_error`, except on ranks that only repeat what their host's first rank finds before they meet."""
    Reported.mistake = True
    meets = sys.modules.get("torch.distributed")
    repeated = os.environ.get("LOCAL_RANK", "0") != "0" and not (meets and meets.is_initialized())
    return status if repeated else say_error(message, status)


def say_interrupted(error: interrupts.Interrupted) -> int:
    """Call `say_error`, unless the launcher says it for the ranks that it started, or rank 0 for those of torchrun."""
    silent = interrupts.QUIET in os.environ or os.environ.get("RANK", "0") != "0"
    return error.status if silent else say_error(interrupts.message(), status=error.status)


def say_error(message: str, status: int = USER) -> int:
    """Print `error: message` to standard error, write it to the log, and return the exit status.

    Secrets in the message are masked. It is one line, whatever its values are, unless it is a question.
    """
    message = (visible if status == NeedsAnswer.status else escaped)(mask_text(message))
    complain(f"error: {message}\n")
    return status
