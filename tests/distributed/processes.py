"""Run a function in several gloo processes that meet through a file, and bring back what each returns."""

import os
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def run(function: Callable[..., Any], world_size: int, *args: Any) -> list[Any]:
    """`function(rank, world_size, *args)` on every rank; the results by rank. Importing costs seconds: do much in one."""
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(_main, (world_size, folder, function, args), nprocs=world_size)
        return [torch.load(Path(folder) / f"result-{rank}", weights_only=False) for rank in range(world_size)]


def _main(rank: int, world_size: int, folder: str, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    from recsys.distributed.ranks import silence

    silence()
    os.environ["LOCAL_WORLD_SIZE"] = str(world_size)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=world_size)
    try:
        torch.save(function(rank, world_size, *args), Path(folder) / f"result-{rank}")
    except Exception:
        traceback.print_exc()
        raise
    finally:
        dist.destroy_process_group()
