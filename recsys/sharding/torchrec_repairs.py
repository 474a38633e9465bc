"""Two functions of TorchRec that are replaced: one is slow on GPUs, the other fails on gloo."""

from collections.abc import Callable, Sequence
from functools import cache, wraps
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torchrec.distributed import dist_data
from torchrec.distributed.comm_ops import ReduceScatterV_Wait

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


_backward = ReduceScatterV_Wait.backward


def gather_unequal_parts() -> None:
    """Let TorchRec gather gradients of different sizes over gloo, which gathers equal ones only."""
    ReduceScatterV_Wait.backward = staticmethod(_gathered)  # type: ignore[method-assign]


def _gathered(ctx: Any, gradient: Tensor) -> Any:
    request, sizes = ctx.myreq, ctx.myreq.rsi
    if sizes.equal_splits or dist.get_backend(ctx.pg) != "gloo":
        return _backward(ctx, gradient)
    if sizes.codecs is not None:
        gradient = sizes.codecs.backward.encode(gradient)
    padded = gradient.new_zeros(max(sizes.input_splits), *gradient.shape[1:])
    padded[: len(gradient)] = gradient
    parts = [torch.empty_like(padded) for _ in sizes.input_splits]
    request.req = dist.all_gather(parts, padded, group=ctx.pg, async_op=True)
    request.req.wait()
    request.tensor = torch.cat([part[:n] for part, n in zip(parts, sizes.input_splits, strict=True)])
    return None, None, request.dummy_tensor
