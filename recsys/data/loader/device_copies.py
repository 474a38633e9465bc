"""Hand out batches with those that come next, and copy them to a GPU while it works on earlier ones."""

from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

import torch
from torchrec.streamable import Pipelineable

from recsys.interface.batch import Batch

COPIED_AHEAD = 2  # batches on the GPU beside the one in use


def copied_ahead(
    batches: Generator[Batch], device: torch.device, make_queries: Callable[[Batch], Pipelineable] | None = None
) -> Generator[Batch]:
    """Yield the batches on a CUDA device, with what `make_queries` makes of each before it is copied.

    A thread copies each batch to page-locked memory and from there to the device, on a stream of its own: from other
    memory, CUDA copies in steps that wait for the GPU. PyTorch does not reuse either memory before the copies are done.
    """
    stream = torch.cuda.Stream(device)

    def fetch() -> tuple[Batch, torch.cuda.Event] | None:
        torch.cuda.set_device(device)
        batch = next(batches, None)
        if batch is None:
            return None
        if make_queries is not None:
            batch = replace(batch, queries=make_queries(batch))
        with torch.cuda.stream(stream):
            copied = batch.pin_memory().to(device, non_blocking=True)
            return copied, stream.record_event()

    pool = ThreadPoolExecutor(1, "loader-copy")
    ahead: deque[Future[tuple[Batch, torch.cuda.Event] | None]] = deque(pool.submit(fetch) for _ in range(COPIED_AHEAD))
    try:
        while (arrived := ahead.popleft().result()) is not None:
            ahead.append(pool.submit(fetch))
            batch, copied = arrived
            current = torch.cuda.current_stream(device)
            current.wait_event(copied)
            batch.record_stream(current)
            yield batch
    finally:
        pool.shutdown(cancel_futures=True)  # waits for the copy in progress
        batches.close()


def pinned_ahead(batches: Generator[Batch]) -> Generator[Batch]:
    """Yield the batches in page-locked memory, to which a thread copies them. The caller copies them to a GPU."""

    def fetch() -> Batch | None:
        batch = next(batches, None)
        return None if batch is None else batch.pin_memory()

    with ThreadPoolExecutor(1, "loader-pin") as pool:
        ahead = deque(pool.submit(fetch) for _ in range(COPIED_AHEAD))
        try:
            while (batch := ahead.popleft().result()) is not None:
                ahead.append(pool.submit(fetch))
                yield batch
        finally:
            for future in ahead:
                future.cancel()
    batches.close()


def with_upcoming(batches: Generator[Batch], upcoming: deque[Batch], number: int) -> Generator[Batch]:
    """Yield the batches, while `upcoming` has the next ones: `number` of them, or fewer before the end."""
    upcoming.clear()
    try:
        while True:
            while len(upcoming) <= number and (batch := next(batches, None)) is not None:
                upcoming.append(batch)
            if not upcoming:
                return
            yield upcoming.popleft()
    finally:
        upcoming.clear()
        batches.close()
