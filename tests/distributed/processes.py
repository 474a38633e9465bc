"""Run a function in several gloo processes that meet through a file, and bring back what each returns."""

import os
import select
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from forks import fork


def run(function: Callable[..., Any], world_size: int, *args: Any) -> list[Any]:
    """`function(rank, world_size, *args)` on every rank, each a process of its own; the results by rank."""
    with tempfile.TemporaryDirectory() as folder:
        ranks = [fork(_main, rank, world_size, folder, function, args) for rank in range(world_size)]
        try:
            running = list(ranks)
            while running:
                for done in select.select(running, [], [])[0]:
                    running.remove(done)
                    error, status = Path(folder) / f"error-{ranks.index(done)}", done.wait()
                    assert status == 0, error.read_text() if error.exists() else f"exit status {status}"
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()
        return [torch.load(Path(folder) / f"result-{rank}", weights_only=False) for rank in range(world_size)]


def _main(rank: int, world_size: int, folder: str, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    from recsys.distributed.ranks import silence

    silence()
    os.environ["LOCAL_WORLD_SIZE"] = str(world_size)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=world_size)
    try:
        torch.save(function(rank, world_size, *args), Path(folder) / f"result-{rank}")
    except BaseException:
        (Path(folder) / f"error-{rank}").write_text(f"rank {rank}\n{traceback.format_exc()}")
        raise
    finally:
        dist.destroy_process_group()
