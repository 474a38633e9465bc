"""Copy batches to a GPU while it works on earlier ones."""

from collections import deque
from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor

import torch

from recsys.batch import Batch

AHEAD = 2  # batches on the GPU beside the one in use


def copied_ahead(batches: Generator[Batch], device: torch.device) -> Generator[Batch]:
    """Yield the batches on a CUDA device.

    A thread copies each batch to page-locked memory and from there to the device, on a stream of its own: from other
    memory, CUDA copies in steps that wait for the GPU. PyTorch does not reuse either memory before the copies are done.
    """
    stream = torch.cuda.Stream(device)

    def fetch() -> tuple[Batch, torch.cuda.Event] | None:
        torch.cuda.set_device(device)
        batch = next(batches, None)
        if batch is None:
            return None
        with torch.cuda.stream(stream):
            copied = batch.pin_memory().to(device, non_blocking=True)
            return copied, stream.record_event()

    pool = ThreadPoolExecutor(1, "loader-copy")
    ahead: deque[Future[tuple[Batch, torch.cuda.Event] | None]] = deque(pool.submit(fetch) for _ in range(AHEAD))
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
