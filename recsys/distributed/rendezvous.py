"""Create a separate rendezvous store for each start of a job. Apart from ranks.py, because it imports torch."""

import json
import time
import uuid
from datetime import timedelta

from torch.distributed import PrefixStore, Store

POLL_SECONDS = 0.05


def fresh_store(store: Store, rank: int, world_size: int, timeout: timedelta) -> Store:
    """Return a part of `store` that no earlier start has written to.

    torchrun keeps one store over all restarts, in which gloo would find the addresses of ranks that no longer exist and
    fail or wait for them. The number of restarts cannot be used as a prefix, because hosts may disagree on it.
    Therefore each rank publishes a random id and waits until rank 0's offer lists it. Rank 0 may at first list ids of
    ranks that no longer exist, so it repeats its offer until all ranks have accepted it.
    """
    deadline = time.monotonic() + timeout.total_seconds()
    own = uuid.uuid4().hex
    if rank == 0:
        while store.add(f"met/{own}", 0) < world_size - 1:
            _wait(deadline)
            keys = [k for r in range(1, world_size) if store.check([k := f"rank/{r}"])]
            store.set("offer", json.dumps([own, [store.get(k).decode() for k in keys]]))
        return PrefixStore(own, store)
    store.set(f"rank/{rank}", own)
    while True:
        if store.check(["offer"]):
            name, listed = json.loads(store.get("offer"))
            if own in listed:
                store.add(f"met/{name}", 1)
                return PrefixStore(str(name), store)
        _wait(deadline)


def _wait(deadline: float) -> None:
    if time.monotonic() > deadline:
        raise TimeoutError("not all ranks have started within trainer.timeout_minutes")
    time.sleep(POLL_SECONDS)
