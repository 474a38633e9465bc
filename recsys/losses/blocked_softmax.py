"""Cross-entropy over all items, whose scores are in memory only for a block of queries at a time."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

SCORES = 2**23  # of a block, about what the caches of a CPU hold
GPU_SCORES = 2**27  # of a block on a GPU, which small blocks leave idle; 0.75 GiB in float32
MIN_ROWS = 64  # of a block, or as many as the width: each block adds to the gradient of all items
NO_TARGET = -1  # instead of an item: a query that does not count


def blocked_cross_entropy(
    queries: Tensor,
    items: Tensor,
    query_of_target: Tensor,
    targets: Tensor,
    label_smoothing: float = 0.0,
    in_order: bool = False,
) -> Tensor:
    """Return the mean cross-entropy of targets, whose logits are the dot products of queries and items.

    Equals torch.nn.functional.cross_entropy(queries[query_of_target] @ items.T, targets). The gradients are computed
    together with the loss, as in Wijmans et al., Cut Your Losses in Large-Vocabulary Language Models, 2025,
    https://arxiv.org/abs/2411.09009, so that every score is computed once and stored only until the next block; they
    cannot be differentiated again. Under autocast, the products have its type, and sums over blocks are in float32:
    torch.nn.functional.linear_cross_entropy sums in bfloat16 there, is three times slower on CPUs, and allows one
    target for each query. Compiled code calls it as one operator.

    Args:
        queries: (Q, d).
        items: (M, d).
        query_of_target: (T,) index of the query of each target.
        targets: (T,) indices of items; with in_order, NO_TARGET for queries that do not count.
        label_smoothing: the share of the target distribution that is uniform over all items.
        in_order: whether each query has one target, in the order of the queries; the host then waits for no GPU.
    """
    device = queries.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else queries.dtype
    with torch.autocast(device, enabled=False):
        return _loss_and_gradients(queries, items, query_of_target, targets, label_smoothing, dtype, in_order)[0]


@torch.library.custom_op("recsys::blocked_cross_entropy", mutates_args=())
def _loss_and_gradients(
    queries: Tensor,
    items: Tensor,
    query_of_target: Tensor,
    targets: Tensor,
    smoothing: float,
    dtype: torch.dtype,
    in_order: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the loss, (), and the gradients of queries and items."""
    exact = torch.promote_types(dtype, torch.float32)  # of sums
    q, w = queries.to(dtype), items.to(dtype)
    rows = max((SCORES if q.device.type == "cpu" else GPU_SCORES) // len(items), MIN_ROWS, q.shape[1])
    starts = range(0, len(q), rows)
    if in_order:
        query, target = torch.arange(len(q), device=q.device), targets.clamp(min=0)
        edges = [*starts, len(q)]  # of the blocks' targets
        count = (targets != NO_TARGET).to(exact)
        weight = count * (len(q) / count.sum())  # of a query: its share of the targets, 1 on average
        part = torch.ones_like(count)  # of a target: its share of its query's
    else:
        query, order = query_of_target.sort()
        target = targets[order]
        edges = [0, len(query)]
        if len(starts) > 1:
            edges = torch.searchsorted(query, torch.arange(0, len(q) + rows, rows, device=query.device)).tolist()
        count = torch.searchsorted(query, torch.arange(len(q) + 1, device=query.device)).diff().to(exact)
        weight = count * (len(q) / len(target))
        part = 1 / count[query]
    loss = q.new_zeros((), dtype=exact)
    d_queries, d_items = (torch.zeros(x.shape, dtype=exact, device=x.device) for x in (q, w))
    for start, first, stop in zip(starts, edges[:-1], edges[1:], strict=True):
        block, w_block = q[start : start + rows], weight[start : start + rows, None]
        row, column, wanted = query[first:stop] - start, target[first:stop], (1 - smoothing) * part[first:stop]
        scores = block @ w.T
        shares = scores.softmax(1)
        # the softmax of the highest score is 1 / sum(exp(score - highest))
        log_sums = scores.amax(1).to(exact) - shares.amax(1).to(exact).log()
        loss += w_block[:, 0] @ log_sums
        loss -= (w_block[row, 0] * wanted) @ scores[row, column].to(exact)
        shares.index_put_((row, column), -wanted.to(dtype), accumulate=True)
        if smoothing:
            loss -= smoothing * (w_block[:, 0] @ scores.mean(1, dtype=exact))
            shares -= smoothing / len(items)
        d_queries[start : start + rows] = (shares @ w) * w_block
        d_items += shares.T @ (block * w_block).to(dtype)
    return loss / len(q), d_queries.div_(len(q)).to(queries.dtype), d_items.div_(len(q)).to(items.dtype)


@_loss_and_gradients.register_fake
def _(queries: Tensor, items: Tensor, *given: Any) -> tuple[Tensor, Tensor, Tensor]:
    loss = queries.new_empty((), dtype=torch.promote_types(given[3], torch.float32))
    return loss, queries.new_empty(queries.shape), items.new_empty(items.shape)


def _keep(ctx: FunctionCtx, output: tuple[Tensor, Tensor, Tensor], **_: object) -> None:
    ctx.save_for_backward(*output[1:])
    ctx.set_materialize_grads(False)  # of the gradients themselves: zeros of all items


@once_differentiable  # type: ignore[untyped-decorator]
def _gradients(ctx: Any, gradient: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    d_queries, d_items = ctx.saved_tensors
    return gradient * d_queries, gradient * d_items, None, None, None, None, None


_loss_and_gradients.register_autograd(_gradients, setup_context=_keep)
