"""Attention over lists of different lengths. Linear layers run on concatenated lists; only attention itself is
padded.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from recsys.models.common import lists
from recsys.models.common.layers import Dropout


class PlacesFromEnd(nn.Embedding):
    """Learnt vectors of the places in a list, counted from its end; places beyond the last vector share it."""

    def __init__(self, number: int, dim: int, *, init_std: float) -> None:
        super().__init__(number, dim)
        nn.init.normal_(self.weight, std=init_std)

    def forward(self, lengths: Tensor, total: int, first: int = 0) -> Tensor:  # type: ignore[override]
        """Return the vectors of lists of these lengths: (B,) -> (P, dim).

        total: P
        first: the place of each last value
        """
        return super().forward((first + lists.from_end(lengths, total)).clamp(max=self.num_embeddings - 1))


class PlacesFromStart(nn.Embedding):
    """Learnt vectors of the places in a list, counted from its start; places beyond the last vector share it."""

    def __init__(self, number: int, dim: int, *, init_std: float) -> None:
        super().__init__(number, dim)
        nn.init.normal_(self.weight, std=init_std)

    def forward(self, lengths: Tensor, total: int) -> Tensor:  # type: ignore[override]
        """Return the vectors of lists of these lengths: (B,) -> (P, dim). total: P"""
        return super().forward(lists.from_start(lengths, total).clamp(max=self.num_embeddings - 1))


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, **options: Any) -> Tensor:
    """Return torch.nn.functional.scaled_dot_product_attention, on CPUs computed in float32 also under autocast.

    The backward pass of PyTorch's bfloat16 kernel for CPUs takes up to six times as long as the float32 one.
    """
    attention = nn.functional.scaled_dot_product_attention
    if q.device.type != "cpu" or not q.requires_grad:
        return attention(q, k, v, attn_mask=mask, **options)
    dtype = torch.promote_types(q.dtype, torch.float32)
    if mask is not None and mask.is_floating_point():
        mask = mask.to(dtype)
    with torch.autocast("cpu", enabled=False):
        return attention(q.to(dtype), k.to(dtype), v.to(dtype), attn_mask=mask, **options).to(q.dtype)


def mix_padded(mix: Callable[..., Tensor], lengths: Tensor, *values: Tensor) -> Tensor:
    """Apply a function that mixes the values of each list to lists that are padded.

    On CPUs, lists of similar lengths are padded together, which takes less time than padding all to the longest.

    Args:
        mix: takes the padded values, (B, L, d) each, and lengths (B,), and returns (B * L, d').
        lengths: (B,).
        values: (P, d) each.

    Returns:
        The values that `mix` returned for the places of the lists, (P, d').
    """
    first = values[0]
    is_captured = lists.padded_length() is not None or torch.compiler.is_compiling()
    if is_captured or first.device.type != "cpu" or len(lengths) < 2 * lists.GROUPS or not len(first):
        blocks, at = zip(*(lists.to_block(x, lengths) for x in values), strict=True)
        return lists.from_block(mix(*blocks, lengths), at[0])
    groups, places, at_value = lists.groups_by_length(lengths)
    shapes = [(len(of), max(int(of[-1]), 1)) for of in groups]
    sizes = [rows * longest for rows, longest in shapes]
    parts = zip(*(x.index_select(0, places).split(sizes) for x in values), strict=True)
    mixed = [
        mix(*(x.view(*shape, -1) for x in part), of) for part, of, shape in zip(parts, groups, shapes, strict=True)
    ]
    return lists.from_block(torch.cat(mixed), at_value)


class Attention(nn.Module):
    """Multi-head attention within each list: Vaswani et al., Attention Is All You Need, 2017,
    https://arxiv.org/abs/1706.03762.

    Args:
        dropout: dropout of the output.
        weight_dropout: dropout of the attention weights, as in the paper. Kernels that do not store the weights, such
            as PyTorch's for CPUs, cannot drop them, and without those kernels a step takes twice as long.
        projection: whether a linear layer and the dropout of the output follow.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        causal: bool,
        dropout: float = 0.0,
        weight_dropout: float = 0.0,
        projection: bool = True,
    ) -> None:
        super().__init__()
        if heads < 1 or dim % heads:
            raise ValueError(f"dim={dim} is not divisible by heads={heads}")
        self.heads, self.causal, self.weight_dropout = heads, causal, weight_dropout
        self.query = nn.Linear(dim, dim)
        self.key_value = nn.Linear(dim, 2 * dim)
        self.out = nn.Sequential(nn.Linear(dim, dim), Dropout(dropout)) if projection else nn.Sequential()

    def forward(self, queries: Tensor, values: Tensor, lengths: Tensor) -> Tensor:
        """Attend from queries (P, dim) to values (P, dim) of lists of these lengths (B,) -> (P, dim)."""
        return self.out(mix_padded(self._mixed, lengths, self.query(queries), self.key_value(values)))

    def _mixed(self, queries: Tensor, keys_values: Tensor, lengths: Tensor) -> Tensor:
        """Attend within padded lists: (B, L, dim), keys and values (B, L, 2 * dim), lengths (B,) -> (B * L, dim)."""
        q, k, v = (x.unflatten(2, (self.heads, -1)).transpose(1, 2) for x in (queries, *keys_values.chunk(2, dim=2)))
        mask = None
        if not self.causal:  # causal attention never reaches the padding, which comes last
            mask = lists.filled_or_empty(lengths, q.shape[2])[:, None, None, :]
        drop = self.weight_dropout if self.training else 0.0
        return _merge_heads(attend(q, k, v, mask, dropout_p=drop, is_causal=self.causal))


class QueryAttention(nn.Module):
    """Multi-head attention from one query for each list to the list's values; zeros for an empty list."""

    def __init__(self, dim: int, heads: int, *, dropout: float = 0.0) -> None:
        super().__init__()
        if heads < 1 or dim % heads:
            raise ValueError(f"dim={dim} is not divisible by heads={heads}")
        self.heads = heads
        self.query = nn.Linear(dim, dim)
        self.key_value = nn.Linear(dim, 2 * dim)
        self.out = nn.Sequential(nn.Linear(dim, dim), Dropout(dropout))

    def forward(self, queries: Tensor, values: Tensor, lengths: Tensor) -> Tensor:
        """Attend from queries (B, dim) to values (P, dim) of lists of these lengths (B,) -> (B, dim)."""
        block, _ = lists.to_block(self.key_value(values), lengths)
        k, v = (x.unflatten(2, (self.heads, -1)).transpose(1, 2) for x in block.chunk(2, dim=2))
        q = self.query(queries).unflatten(1, (self.heads, 1, -1))
        filled = lists.filled_or_empty(lengths, block.shape[1])
        mixed = attend(q, k, v, filled[:, None, None])
        return torch.where((lengths > 0)[:, None], self.out(_merge_heads(mixed)), 0.0)


def _merge_heads(x: Tensor) -> Tensor:
    """Concatenate the heads of each value: (B, H, L, d) -> (B * L, H * d)."""
    if lists.padded_length() is not None:  # no view: other attention kernels have other strides
        return torch.cat(x.unbind(1), dim=2).flatten(0, 1)
    return x.transpose(1, 2).reshape(-1, x.shape[1] * x.shape[3])


def time_buckets(times: Tensor, number: int) -> Tensor:
    """Return the logarithmic bucket of the time between each two values of a list: (B, L) -> (B, L, L).

    Buckets are floor(ln(time) / 0.301), as in the implementations of HSTU and FuXi-alpha, from 0 to number - 1. Times
    may have any unit.
    """
    return _bucket_of((times[:, :, None] - times[:, None, :]).abs().clamp(min=1)).clamp(max=number - 1)


def _bucket_of(times: Tensor) -> Tensor:
    return (times.log() / 0.301).long()


def span_starts(number: int) -> Tensor:
    """Return the least float32 of each bucket of time_buckets, 0 for the first one, and infinity: (number + 1,)."""
    near = (0.301 * torch.arange(1, number, dtype=torch.float64)).exp().float().view(torch.int32)
    near = (near[:, None] + torch.arange(-128, 129)).int().view(torch.float32)  # as far as the logarithm is rounded
    first = (_bucket_of(near) >= torch.arange(1, number)[:, None]).int().argmax(1)
    return torch.cat([torch.zeros(1), near.gather(1, first[:, None])[:, 0], torch.tensor([math.inf])])


class RelativeAttention(nn.Module):
    """Attention with relative positions: Dai et al., Transformer-XL, 2019, https://arxiv.org/abs/1901.02860; also
    used by XLNet.

    The weight of value j for query i is softmax(((q_i + u) k_j + (q_i + v) r_(i-j)) / sqrt(d)), where r is a linear map
    of sinusoids.

    The second term, a number for each pair and head, is a bias to PyTorch's attention. CPUs have no fused kernel with a
    learnt bias, so that a step takes two to three times as long as Attention's. FlexAttention would compute the bias
    within the kernel, but only helps on GPUs, and only if the bias takes too much of their memory.

    Args:
        dim: width of the states.
        heads: number of heads of the attention; it must divide `dim`.
        causal: whether a query sees only its own value and earlier ones.
        dropout: share of the outputs that are dropped in training.
    """

    def __init__(self, dim: int, heads: int, *, causal: bool, dropout: float = 0.0) -> None:
        super().__init__()
        if heads < 1 or dim % heads:
            raise ValueError(f"dim={dim} is not divisible by heads={heads}")
        self.heads, self.causal = heads, causal
        self.query = nn.Linear(dim, dim, bias=False)  # u and v are its biases
        self.key_value = nn.Linear(dim, 2 * dim)
        self.distance = nn.Linear(dim, dim, bias=False)
        self.u = nn.Parameter(torch.randn(heads, 1, dim // heads) * 0.02)
        self.v = nn.Parameter(torch.randn(heads, 1, dim // heads) * 0.02)
        self.out = nn.Sequential(nn.Linear(dim, dim), Dropout(dropout))

    def forward(self, queries: Tensor, values: Tensor, lengths: Tensor) -> Tensor:
        """Attend from queries (P, dim) to values (P, dim) of lists of these lengths (B,) -> (P, dim)."""
        dim = queries.shape[1]
        block, at = lists.to_block(torch.cat([self.query(queries), self.key_value(values)], dim=1), lengths)
        q, k, v = (x.unflatten(2, (self.heads, -1)).transpose(1, 2) for x in block.split(dim, dim=2))
        longest = block.shape[1]
        if self.causal:
            place = torch.arange(longest, device=lengths.device)
            seen = (place[:, None] >= place)[None, None]
        else:
            seen = lists.filled_or_empty(lengths, longest)[:, None, None, :]
        r = self.distance(sinusoids(torch.arange(longest - 1, -longest - 1, -1, device=lengths.device), dim))
        bias = _by_pair((q + self.v) @ r.unflatten(1, (self.heads, -1)).permute(1, 2, 0)) / math.sqrt(q.shape[3])
        bias = bias.masked_fill(~seen, -math.inf)
        mixed = attend(q + self.u, k, v, bias)
        return self.out(lists.from_block(_merge_heads(mixed), at))


def sinusoids(distances: Tensor, dim: int) -> Tensor:
    """Return sines, then cosines, of wavelengths from 2 pi to 10000 times that: (M,) -> (M, dim)."""
    rates = 10000 ** (-torch.arange(0, dim, 2, device=distances.device) / dim)
    angles = distances[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], dim=1)[:, :dim]


def _by_pair(scores: Tensor) -> Tensor:
    """Turn scores by distance into scores by pair: (..., L, 2 L) -> (..., L, L).

    Row i of the input has the scores of query i for the distances L - 1, ..., -L; row i of the output those for each
    value j, at distance i - j. They begin at column L - 1 - i: with rows one column shorter, all begin at the same
    column.
    """
    n = scores.shape[-2]
    return scores.flatten(-2)[..., n - 1 : 2 * n * n - 1].unflatten(-1, (n, 2 * n - 1))[..., :n]
