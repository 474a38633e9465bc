"""HSTU: Zhai et al., Actions Speak Louder than Words: Trillion-Parameter Sequential Transducers for Generative
Recommendations, 2024, https://arxiv.org/abs/2402.17152.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor, nn

from recsys.base.errors import did_you_mean
from recsys.base.ranges import Depth, Deviation, Length, Share, Width
from recsys.interface.batch import Batch
from recsys.interface.features import FeatureSpec
from recsys.models.common.attention import PlacesFromEnd, mix_padded, span_starts, time_buckets
from recsys.models.common.hstu_kernel import has_hstu_kernel, hstu_attention
from recsys.models.common.items import Items, NextItems, QueryBatch, states_at
from recsys.models.common.kernels import runs_triton
from recsys.models.common.layers import Dropout
from recsys.models.common.lists import is_filled, longest_of, padded_length, to_block
from recsys.models.protocols import RetrievalModel

UNSEEN = -1e4  # a score whose SiLU and gradient are 0
TIME_BUCKETS = 128


def list_beside(features: FeatureSpec, name: str, key: str) -> str:
    """Return the name of a feature that has a value for each item of a list.

    key: the hyper-parameter that names it, for error messages

    Raises:
        ValueError: no list has this name.
    """
    if name not in (names := [f.name for f in features.sparse]):
        raise ValueError(f"{key}: no sparse feature is named {name}{did_you_mean(name, names)}")
    if not features.feature(name).multi_valued:
        raise ValueError(f"{key}: {name} has one value in each row, instead of one for each item of the list")
    return name


class HSTUBlock(nn.Module):
    """Attention with pointwise weights, SiLU(Q K^T + bias) / N, gated by U.

    The weights need not sum to one, so that a state can express how strongly its list matches. The bias is learnt for
    each head and distance, and for each head and time between two values; a caller may add one for each value. N is
    `length` rather than the batch's longest list, so that a list's states do not depend on the batch's other lists.

    Args:
        dim: width of the states.
        heads: number of heads of the attention; it must divide `dim`.
        dropout: share of the gated values that are dropped in training.
        length: N, also the number of distances that have a learnt bias; larger ones share the last.
        timed: whether the time between two values has a learnt bias.
    """

    def __init__(self, dim: int, heads: int, dropout: float, length: int, *, timed: bool = False) -> None:
        super().__init__()
        if heads < 1 or dim % heads:
            raise ValueError(f"dim={dim} is not divisible by heads={heads}")
        self.heads, self.length = heads, length
        self.before = nn.LayerNorm(dim)
        self.uvqk = nn.Sequential(nn.Linear(dim, 4 * dim), nn.SiLU())
        self.distances = nn.Parameter(torch.randn(heads, length) * 0.02)
        self.spans = nn.Parameter(torch.randn(heads, TIME_BUCKETS) * 0.02) if timed else None
        self.register_buffer("span_starts", span_starts(TIME_BUCKETS) if timed else None, persistent=False)
        self.span_starts: Tensor | None
        self.between = nn.LayerNorm(dim)
        self.out = nn.Sequential(Dropout(dropout), nn.Linear(dim, dim))

    def forward(
        self, x: Tensor, lengths: Tensor, value_bias: Tensor | None = None, times: Tensor | None = None
    ) -> Tensor:
        """Transform the states of B lists: (P, dim), lengths (B,) -> (P, dim).

        Args:
            value_bias: (P, heads), added to the scores of each value for all queries.
            times: (P,), the time of each value, for timed=True.
        """
        dim = x.shape[1]
        u, vqk = self.uvqk(self.before(x)).split([dim, 3 * dim], dim=1)
        if runs_triton(vqk) and padded_length() is None and has_hstu_kernel(vqk, self.heads, times):
            times = None if self.spans is None else times
            spans, starts = (None, None) if times is None else (self.spans, self.span_starts)
            mixed = hstu_attention(vqk, lengths, longest_of(lengths), self.distances, value_bias, times, spans, starts)
        else:
            more = [] if value_bias is None else [value_bias]
            more += [] if times is None or self.spans is None else [times[:, None]]
            mixed = mix_padded(partial(self._mixed, has_value_bias=value_bias is not None), lengths, vqk, *more)
        return x + self.out(self.between(mixed) * u)

    def after(
        self, last: Tensor, x: Tensor, lengths: Tensor, list_of: Tensor | None = None, value_bias: Tensor | None = None
    ) -> Tensor:
        """Return the new states of values that come after a list, each without the others: (N, dim).

        They attend to the list and to themselves; the time is linear in the lengths.

        Args:
            last: their states, (N, dim).
            x: the states of the lists before this block, (P, dim).
            lengths: (B,).
            list_of: (N,), the list of each value; None if each list has one, in their order.
            value_bias: (P, heads), as for `forward`; that of the values themselves is 0.
        """
        u, v, q, k = self.uvqk(self.before(last)).chunk(4, dim=1)
        dim = last.shape[1]
        of_lists = [self.uvqk(self.before(x)).split([dim, 3 * dim], dim=1)[1]]
        of_lists += [] if value_bias is None else [value_bias]
        block, count = to_block(torch.cat(of_lists, dim=1), lengths)[0], lengths[:, None]
        if list_of is not None:
            block, count = block.index_select(0, list_of), count.index_select(0, list_of)  # (N, L, ...), (N, 1)
        back = (count - torch.arange(block.shape[1], device=x.device)).clamp(0, self.length - 1)
        keys = block[:, :, 2 * dim : 3 * dim].unflatten(2, (self.heads, -1))  # (N, L, heads, dim / heads)
        scores = torch.einsum("nhd,nlhd->nlh", q.unflatten(1, (self.heads, -1)), keys) + self.distances.T[back]
        if value_bias is not None:
            scores = scores + block[:, :, 3 * dim :]
        seen = is_filled(count[:, 0], block.shape[1])
        weights = nn.functional.silu(torch.where(seen[:, :, None], scores, UNSEEN)) / self.length
        values = torch.where(seen[:, :, None], block[:, :, :dim], 0.0).unflatten(2, (self.heads, -1))
        mixed = torch.einsum("nlh,nlhd->nhd", weights, values).flatten(1)
        own = (q * k).unflatten(1, (self.heads, -1)).sum(2) + self.distances[:, 0]
        mixed = mixed + (
            (nn.functional.silu(own) / self.length)[:, :, None] * v.unflatten(1, (self.heads, -1))
        ).flatten(1)
        return last + self.out(self.between(mixed) * u)

    def _mixed(self, vqk: Tensor, *more: Tensor, has_value_bias: bool) -> Tensor:
        """Attend within padded lists: (B, L, 3 * dim), value_bias (B, L, heads), times (B, L, 1) -> (B * L, dim)."""
        v, q, k = (part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in vqk.chunk(3, dim=2))
        place = torch.arange(vqk.shape[1], device=vqk.device)
        back = place[:, None] - place[None, :]
        bias = self.distances[:, back.clamp(0, self.length - 1)].masked_fill(back < 0, UNSEEN)
        if self.spans is not None and len(more) > 1 + has_value_bias:  # the last one is lengths
            times = more[has_value_bias][:, :, 0]
            bias = bias + self.spans[:, time_buckets(times, TIME_BUCKETS)].transpose(0, 1)
        if has_value_bias:  # one more column of the keys, which the queries multiply by 1
            column = more[0].transpose(1, 2)[:, :, :, None]
            q, k = torch.cat([q, torch.ones_like(column)], dim=3), torch.cat([k, column], dim=3)
        weights = nn.functional.silu(q @ k.transpose(2, 3) + bias)
        return (weights @ (v / self.length)).transpose(1, 2).flatten(2).flatten(0, 1)


class HSTU(nn.Module, NextItems, RetrievalModel):
    """Causal HSTU blocks over the items of a list; each state is the query for the next item.

    The paper's relative bias has a part for positions and a part for timestamps. Here, the latter is the time between
    two items that the model has read; the authors' code counts it from the time of the item to predict, which is not
    known before that item is.

    Args:
        dim: width of items, states and queries.
        blocks: number of HSTU blocks.
        heads: number of heads of the attention; it must divide `dim`.
        dropout: share of values that are dropped in training, of the input and in each block.
        max_length: number of learnt position vectors, counted from the end, and of distances that have a learnt bias; N
            in the paper.
        times: name of a list with the time of each item, a whole number (encode: id); None for none.
        init_std: standard deviation of the initial vectors of items and positions.
    """

    reads_rows = False
    block: ClassVar[Callable[..., nn.Module]] = HSTUBlock

    def __init__(
        self,
        features: FeatureSpec,
        *,
        dim: Width = 64,
        blocks: Depth = 2,
        heads: Depth = 2,
        dropout: Share = 0.2,
        max_length: Length = 200,
        times: str | None = None,
        init_std: Deviation = 0.02,
        device: torch.device | None = None,
    ) -> None:
        super().__init__()
        self.items = Items(features, dim, init_std=init_std, device=device)
        self.places = PlacesFromEnd(max_length, dim, init_std=init_std)
        self.dropout = Dropout(dropout)
        self.times = None if times is None else list_beside(features, times, "times")
        self.reads_rows = type(self).reads_rows or times is not None
        make = type(self).block
        self.blocks = nn.ModuleList(
            make(dim, heads, dropout, max_length, timed=times is not None) for _ in range(blocks)
        )
        self.norm = nn.LayerNorm(dim)

    def encode(self, batch: Batch, query_batch: QueryBatch, vectors: Tensor) -> Tensor:
        """Return queries (Q, dim) from the vectors (P, dim) of query_batch.inputs."""
        x = vectors * math.sqrt(vectors.shape[1]) + self.places(query_batch.lengths, vectors.shape[0])
        x = self.dropout(x)
        times = None if self.times is None else batch.sparse[self.times].values()[query_batch.places]
        for block in self.blocks:
            x = block(x, query_batch.lengths, times=times)
        return states_at(self.norm(x), query_batch.at)
