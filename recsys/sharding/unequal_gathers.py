"""Gradients of row-wise tables over gloo whose processes look up different numbers of bags, as features of items do."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torchrec.distributed.comm_ops import ReduceScatterV_Wait

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
