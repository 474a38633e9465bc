"""Processes: one in this process, N on this machine, or those that torchrun has started."""

import contextlib
import ctypes
import json
import logging
import os
import sys
import tempfile
import uuid
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from recsys.errors import UserError
from recsys.progress import quiet


@dataclass(frozen=True)
class Ranks:
    """Where this process stands in the job."""

    rank: int
    local_rank: int
    world_size: int
    local_world_size: int


def started_by_torchrun() -> Ranks | None:
    """The ranks that torchrun (or our own launcher through it) has given, if it has."""
    env = os.environ
    if "RANK" not in env or "WORLD_SIZE" not in env:
        return None
    world = int(env["WORLD_SIZE"])
    return Ranks(int(env["RANK"]), int(env.get("LOCAL_RANK", 0)), world, int(env.get("LOCAL_WORLD_SIZE", world)))


@contextmanager
def process_group(accelerator: str, threads: int | None, ranks: Ranks | None = None) -> Iterator[Ranks]:
    """The default process group: of torchrun's ranks, or of this process alone (no port, no store)."""
    import torch
    import torch.distributed as dist

    silence()
    _keep_freed_memory()
    alone = Ranks(0, 0, 1, 1)
    ranks = ranks or alone
    torch.set_num_threads(threads or max(1, (os.cpu_count() or 1) // ranks.local_world_size))
    if accelerator == "gpu":
        torch.cuda.set_device(ranks.local_rank)
    backend = "cpu:gloo,cuda:nccl" if accelerator == "gpu" else "gloo"
    made = not dist.is_initialized()
    if made:
        where: dict[str, Any] = {"init_method": "env://"}
        if ranks == alone:
            where = {"store": dist.HashStore(), "rank": 0, "world_size": 1}
        dist.init_process_group(backend, timeout=timedelta(minutes=30), **where)
    quiet(ranks.rank != 0)
    try:
        yield ranks
    finally:
        if made:
            dist.destroy_process_group()


def _keep_freed_memory() -> None:
    """Let malloc reuse a step's large buffers: given back to the system, each page of theirs faults at every step.

    Up to 32 MiB a buffer (glibc's limit) and 256 MiB in all; elsewhere than with glibc, nothing.
    """
    with contextlib.suppress(AttributeError, OSError):
        libc = ctypes.CDLL("libc.so.6")
        mmap_threshold, trim_threshold = -3, -1
        libc.mallopt(mmap_threshold, 32 << 20)
        libc.mallopt(trim_threshold, 256 << 20)


def ensure_process_group() -> None:
    """A default group of this process alone, for the process's life, unless there is one: TorchRec needs one."""
    import torch.distributed as dist

    silence()
    if not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)


def first_decides(ranks: Ranks, decide: Callable[[], Any]) -> Any:
    """Rank 0's result for all ranks; its UserError stops them all, told by rank 0 alone."""
    import torch.distributed as dist

    box: list[Any] = [None, None]
    if ranks.rank == 0:
        try:
            box[0] = decide()
        except UserError as e:
            box[1] = str(e)
    if ranks.world_size > 1:
        dist.broadcast_object_list(box)
    if box[1] is not None:
        if ranks.rank != 0:
            raise SystemExit(2)
        raise UserError(box[1])
    return box[0]


def spawn(devices: int, work: str, job: dict[str, Any]) -> None:
    """Run recsys.worker's `work` on `job` in `devices` processes of this machine; torchrun's agent watches them.

    Raises SystemExit where one failed, with its status: it has told why.
    """
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
        elastic_launch(config, sys.executable)("-m", "recsys.worker", work, f.name)
    except ChildFailedError as e:
        codes = {f.exitcode for f in e.failures.values()}
        raise SystemExit(2 if 2 in codes else 1) from None
    finally:
        os.unlink(f.name)


def silence() -> None:
    """Without the libraries' notes to their own developers; errors still show."""
    warnings.filterwarnings("ignore")
    names = ("torch.distributed.run", "torchrec", "pytorch_lightning.utilities.rank_zero", "torch.fx")
    for name in names:  # not the whole of Lightning: its import sets that logger's level anew
        logging.getLogger(name).setLevel(logging.ERROR)
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    logging.getLogger().addFilter(_not_of_replicas)  # TorchRec's, to the root logger


def _not_of_replicas(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith("Sharding spec not found for")
