"""The order in which a process puts the ids that it got from others, kept on the device between steps."""

from collections.abc import Callable, Sequence
from functools import cache, wraps

import torch
from torch import Tensor
from torchrec.distributed import dist_data

Recat = Callable[..., Tensor | None]


def keep_recats() -> None:
    """Let TorchRec copy the order of ids to a GPU once; it would do so in each lookup, and wait for the copy."""
    if not hasattr(dist_data._get_recat, "__wrapped__"):
        dist_data._get_recat = _keeping(dist_data._get_recat)


def _keeping(make: Recat) -> Recat:
    kept = cache(make)

    @wraps(make)
    def recat(
        local_split: int,
        num_splits: int,
        stagger: int = 1,
        device: torch.device | None = None,
        batch_size_per_rank: Sequence[int] | None = None,
    ) -> Tensor | None:
        """Return the order, as TorchRec's _get_recat does; None if there is one process, which reorders nothing."""
        if num_splits == 1:
            return None
        if batch_size_per_rank is not None and len(set(batch_size_per_rank)) > 1:
            return make(local_split, num_splits, stagger, device, batch_size_per_rank)
        return kept(local_split, num_splits, stagger, device)

    return recat
