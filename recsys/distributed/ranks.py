"""This process's rank in the job, and the process group."""

import contextlib
import logging
import os
import socket
import sys
import time
import uuid
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from recsys.base import console
from recsys.base.console import quiet
from recsys.base.cores import STORE, threads_taken
from recsys.base.errors import UserError
from recsys.base.memory import keep_freed_memory

Value = TypeVar("Value")
FOREVER = timedelta(days=30)  # timeout of ranks that wait for rank 0 to prepare the data
# Messages for TorchRec's developers: about replicated tables, and, on GPUs, about the environment that torchrun sets.
NOTES = ("Sharding spec not found for", "Could not determine LOCAL_WORLD_SIZE")
SEEN_SECONDS = 10.0  # time that a new file may take to appear on other hosts


@dataclass(frozen=True)
class Ranks:
    """This process's rank, on its host and in the job, and the number of processes."""

    rank: int
    local_rank: int
    world_size: int
    local_world_size: int


ALONE = Ranks(0, 0, 1, 1)  # this process


def started_by_torchrun() -> Ranks | None:
    """Return the ranks that torchrun or `launch.spawn` has set in the environment.

    Return None if neither started this process.
    """
    env = os.environ
    if "RANK" not in env or "WORLD_SIZE" not in env:
        return None
    world = int(env["WORLD_SIZE"])
    return Ranks(int(env["RANK"]), int(env.get("LOCAL_RANK", 0)), world, int(env.get("LOCAL_WORLD_SIZE", world)))


@contextmanager
def process_group(
    accelerator: str, threads: int | None, ranks: Ranks | None = None, timeout_minutes: float = 30.0
) -> Iterator[Ranks]:
    """Open the default process group, either over torchrun's ranks or for this process alone, without a port.

    Args:
        accelerator: cpu or gpu.
        threads: threads of PyTorch; None divides the cores that may be used among the processes of this machine.
        ranks: torchrun's ranks; None for this process alone.
        timeout_minutes: longest time that a collective waits for other ranks.
    """
    import torch
    import torch.distributed as dist

    silence()
    keep_freed_memory()
    ranks = ranks or ALONE
    if accelerator == "gpu" and torch.cuda.device_count() < ranks.local_world_size:
        gpus, processes = torch.cuda.device_count(), ranks.local_world_size
        why = f"this host has only {gpus} GPUs; start at most {gpus} processes on it"
        raise UserError(f"trainer.devices={processes}: {why}")
    torch.set_num_threads(threads_taken(threads, ranks.local_world_size))
    if accelerator == "gpu":
        torch.cuda.set_device(ranks.local_rank)
    backend = "cpu:gloo,cuda:nccl" if accelerator == "gpu" else "gloo"
    made = not dist.is_initialized()
    if made:
        timeout = timedelta(minutes=timeout_minutes)
        store = dist.HashStore() if ranks == ALONE else _store(ranks, timeout)
        device = torch.device("cuda", ranks.local_rank) if accelerator == "gpu" else None
        try:
            with _plain_tracebacks(ranks.world_size == 1):
                dist.init_process_group(
                    backend,
                    timeout=timeout,
                    store=store,
                    rank=ranks.rank,
                    world_size=ranks.world_size,
                    device_id=device,  # NCCL connects at once, and refuses two processes on one GPU
                )
        except dist.DistBackendError as e:
            raise UserError(f"trainer.devices={ranks.local_world_size}: {_nccl_problem(str(e))}") from e
    quiet(ranks.rank != 0)
    done = False
    try:
        yield ranks
        if ranks.world_size > 1:
            # wait for all ranks, because rank 0 writes the results after the others are done
            dist.all_reduce(torch.zeros(1))
        done = True
    finally:
        # A failing rank keeps its connections until it has reported its error, so that the others' errors come later.
        if made and (done or ranks.world_size == 1):
            dist.destroy_process_group()


def _nccl_problem(message: str) -> str:
    """Return one line about an error of NCCL."""
    if "Duplicate GPU detected" in message:
        return "two processes share a GPU, which NCCL refuses; start one process for each GPU that this host shows"
    last = (message.strip().splitlines() or [""])[-1]
    return f"NCCL cannot connect the GPUs ({last}); NCCL_DEBUG=INFO shows why"


def _store(ranks: Ranks, timeout: timedelta) -> Any:
    """Return the store in which the ranks meet: a file if `launch.spawn` started them, else torchrun's."""
    if file := os.environ.get(STORE):
        from torch.distributed import FileStore

        shared = FileStore(file, ranks.world_size)
        shared.set_timeout(timeout)
        return shared
    from torch.distributed.rendezvous import rendezvous

    from recsys.distributed.rendezvous import fresh_store

    store, rank, world_size = next(rendezvous("env://", ranks.rank, ranks.world_size, timeout=timeout))
    return fresh_store(store, rank, world_size, timeout)


def ensure_process_group() -> None:
    """Open a default group of this process alone if there is no group yet, because TorchRec needs one."""
    import torch.distributed as dist

    silence()
    if not dist.is_initialized():
        with _plain_tracebacks(True):
            dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)


@contextmanager
def _plain_tracebacks(alone: bool) -> Iterator[None]:
    """Keep Python's hook for uncaught exceptions, if this process is alone: torch's puts [rank0]: before each line."""
    hook = sys.excepthook
    yield
    if alone:
        sys.excepthook = hook


def first_decides(ranks: Ranks, decide: Callable[[], Value]) -> Value:
    """Call `decide` on rank 0 and return its result on all ranks.

    The other ranks wait without a time limit, because preparing terabytes takes hours.

    A UserError of rank 0 stops all ranks; rank 0 alone reports it.
    """
    import torch.distributed as dist

    error: UserError | None = None
    waiting = dist.new_group(backend="gloo", timeout=FOREVER) if ranks.world_size > 1 else None
    box: list[Any] = [None, None]
    if ranks.rank == 0:
        try:
            box[0] = decide()
        except UserError as e:
            error, box[1] = e, e.status
    if ranks.world_size > 1:
        dist.broadcast_object_list(box, group=waiting)
        dist.destroy_process_group(waiting)
    if box[1] is not None:
        raise error or SystemExit(box[1])
    return box[0]  # type: ignore[no-any-return]


def fail_together(error: UserError) -> NoReturn:
    """End all ranks with an error that they all have found. Rank 0 raises it, so that it is reported once."""
    import torch.distributed as dist

    if dist.is_initialized() and dist.get_rank() != 0:
        raise SystemExit(2) from error
    raise error


def gather_values(value: Value) -> list[Value]:
    """Return the value of every rank, on all ranks. Collective."""
    import torch.distributed as dist

    if not dist.is_initialized() or dist.get_world_size() == 1:
        return [value]
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def first_problem(problem: str | None) -> str | None:
    """Return the problem of the lowest rank that has one, on all ranks; None if no rank has one. Collective."""
    return next((p for p in gather_values(problem) if p is not None), None)


def most_restarts(ranks: Ranks) -> int:
    """Return how often torchrun has restarted this job. Collective.

    The restart count is reduced over all ranks, because a host whose ranks did not fail may report 0.
    """
    import torch
    import torch.distributed as dist

    count = torch.tensor(int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0)))
    if ranks.world_size > 1:
        dist.all_reduce(count, dist.ReduceOp.MAX)
    return int(count)


def check_shared_folders(ranks: Ranks, folders: dict[str, Path]) -> None:
    """Raise UserError if a host cannot access these folders, which rank 0 has created. Collective.

    folders: config key -> folder. Rank 0 writes a file into each folder, so that a different folder with the same path
        on another host is detected.
    """
    import torch
    import torch.distributed as dist

    if ranks.world_size == ranks.local_world_size:
        return
    box = [uuid.uuid4().hex]
    dist.broadcast_object_list(box)
    marks = {key: folder / f".seen-{box[0]}" for key, folder in folders.items()}
    if ranks.rank == 0:
        for mark in marks.values():
            mark.touch()
    dist.all_reduce(torch.zeros(1))  # the files exist before the other ranks check
    unseen = next((key for key, mark in marks.items() if not _appears(mark)), None)
    problem = unseen and (
        f"rank {ranks.rank} on {socket.gethostname()} does not see rank 0's {marks[unseen].parent.absolute()}: "
        f"{unseen} must be on a file system that all hosts share"
    )
    problems = gather_values(problem)
    if ranks.rank == 0:
        for mark in marks.values():
            mark.unlink()
    if reported := [p for p in problems if p]:
        if ranks.rank == 0 or (problem and ranks.local_rank == 0):
            raise UserError(problem or reported[0])
        raise SystemExit(2)


def _appears(path: Path) -> bool:
    """Return whether the file appears within SEEN_SECONDS: NFS may cache for a while that a file does not exist."""
    deadline = time.monotonic() + SEEN_SECONDS
    while not path.exists():
        if time.monotonic() > deadline:
            return False
        with contextlib.suppress(OSError):
            os.listdir(path.parent)
        time.sleep(0.2)
    return True


def silence() -> None:
    """Hide the libraries' warnings for their own developers; errors still show."""
    if not sys.warnoptions:  # python -W shows them
        warnings.filterwarnings("ignore")
    names = ("torch.distributed.run", "torchrec", "pytorch_lightning.utilities.rank_zero", "torch.fx")
    for name in names:  # Lightning's import resets the level of its top logger
        logging.getLogger(name).setLevel(logging.ERROR)
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    for name in [n for n in logging.root.manager.loggerDict if n.partition(".")[0] == "torch"]:
        logger = logging.getLogger(name)
        if name.startswith("torch.distributed.elastic."):  # they have levels of their own
            logger.setLevel(logging.CRITICAL)
        if console.JSON in console.environment():  # theirs write text; the root logger writes JSON
            logger.handlers, logger.propagate = [], True
    logging.getLogger().addFilter(lambda r: not r.getMessage().startswith(NOTES))  # TorchRec's, of the root logger
