"""FuXi-alpha: Ye et al., FuXi-alpha: Scaling Recommendation Model with Feature Interaction Enhanced Transformer, 2025,
https://arxiv.org/abs/2502.03036.
"""

import math

import torch
from torch import Tensor, nn

from recsys.batch import Batch
from recsys.features import FeatureSpec
from recsys.models.common.attention import PlacesFromEnd, mix_padded, time_buckets
from recsys.models.common.items import Items, QueryBatch, next_items, states_at
from recsys.models.common.layers import Dropout, SwiGLU
from recsys.models.hstu import TIME_BUCKETS, list_beside
from recsys.models.protocols import RetrievalModel
from recsys.ranges import Depth, Deviation, Length, Share, Width

EPSILON = 1e-6


class RMSNorm(nn.Module):
    """Divide each row by its root mean square; PyTorch's has a kernel of its own only on GPUs."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalized rows: (P, dim) -> (P, dim)."""
        return x * (x.square().mean(dim=1, keepdim=True) + EPSILON).rsqrt()


class FuXiBlock(nn.Module):
    """Attention with separate channels for contents, positions and times, then a feed-forward network in two stages.

    The weights of the contents are SiLU(Q K^T) / N for each head; those of positions and times are learnt numbers for
    each distance and for each bucket of the time between two values, which all heads share. The channels' values are
    concatenated and gated.

    Args:
        dim: width of the states.
        heads: number of heads of the attention; it must divide `dim`.
        dropout: share of the values that are dropped in training, before each stage.
        length: N, also the number of distances; larger ones share the last.
        timed: whether there is a channel for times.
    """

    def __init__(self, dim: int, heads: int, dropout: float, length: int, *, timed: bool) -> None:
        super().__init__()
        if heads < 1 or dim % heads:
            raise ValueError(f"dim={dim} is not divisible by heads={heads}")
        self.heads, self.length = heads, length
        wide = (3 if timed else 2) * dim
        self.norm = RMSNorm()
        self.uvqk = nn.Linear(dim, wide + 3 * dim, bias=False)
        self.distances = nn.Parameter(torch.randn(length) * 0.02)
        self.spans = nn.Parameter(torch.randn(TIME_BUCKETS) * 0.02) if timed else None
        self.merge = nn.Sequential(Dropout(dropout), nn.Linear(wide, dim))
        self.feed_forward = nn.Sequential(RMSNorm(), Dropout(dropout), SwiGLU(dim, dim, 0.0))
        nn.init.normal_(self.uvqk.weight, std=0.02)
        nn.init.xavier_uniform_(self.merge[1].weight)  # type: ignore[arg-type]

    def forward(self, x: Tensor, lengths: Tensor, times: Tensor | None = None) -> Tensor:
        """Transform the states of B lists: (P, dim), lengths (B,), times (P,) of the values -> (P, dim)."""
        dim = x.shape[1]
        u, vqk = nn.functional.silu(self.uvqk(self.norm(x))).tensor_split([self.uvqk.out_features - 3 * dim], dim=1)
        more = [] if times is None or self.spans is None else [times[:, None]]
        x = x + self.merge(u * self.norm(mix_padded(self._mixed, lengths, vqk, *more)))
        return x + self.feed_forward(x)

    def _mixed(self, vqk: Tensor, *more: Tensor) -> Tensor:
        """Attend within padded lists: (B, L, 3 * dim), times (B, L, 1) -> (B * L, channels * dim)."""
        v, q, k = (part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in vqk.chunk(3, dim=2))
        place = torch.arange(vqk.shape[1], device=vqk.device)
        back = place[:, None] - place[None, :]
        seen = back >= 0
        weights = nn.functional.silu(q @ k.transpose(2, 3)) / self.length * seen
        channels = [(self.distances[back.clamp(0, self.length - 1)] * seen) @ v]
        if self.spans is not None:
            channels.append((self.spans[time_buckets(more[0][:, :, 0], TIME_BUCKETS)] * seen)[:, None] @ v)
        mixed = torch.cat([*channels, weights @ v], dim=3)  # (B, heads, L, channels * dim / heads)
        return mixed.transpose(1, 2).flatten(2).flatten(0, 1)


class FuXiAlpha(nn.Module, RetrievalModel):
    """Causal blocks of FuXi-alpha over the items of a list; each state is the query for the next item.

    Args:
        dim: width of items, states and queries.
        blocks: number of blocks.
        heads: number of heads of the attention; it must divide `dim`.
        dropout: share of values that are dropped in training, of the input and in each block.
        max_length: number of learnt position vectors, counted from the end, and of distances that have a weight.
        times: name of a list with the time of each item, a whole number (encode: id); None for no channel of times.
        init_std: standard deviation of the initial vectors of items and positions.
    """

    def __init__(
        self,
        features: FeatureSpec,
        *,
        dim: Width = 64,
        blocks: Depth = 2,
        heads: Depth = 1,
        dropout: Share = 0.2,
        max_length: Length = 200,
        times: str | None = None,
        init_std: Deviation = 0.02,
        device: torch.device | None = None,
    ) -> None:
        super().__init__()
        if max_length < 1:
            raise ValueError(f"max_length={max_length}: must be at least 1")
        self.items = Items(features, dim, init_std=init_std, device=device)
        self.places = PlacesFromEnd(max_length, dim, init_std=init_std)
        self.dropout = Dropout(dropout)
        self.times = None if times is None else list_beside(features, times, "times")
        self.blocks = nn.ModuleList(
            FuXiBlock(dim, heads, dropout, max_length, timed=times is not None) for _ in range(blocks)
        )
        self.norm = nn.LayerNorm(dim)

    def make_queries(self, batch: Batch) -> QueryBatch:
        lists = batch.sparse[self.items.name]
        return next_items(lists.values().long(), lists.lengths().long(), every=self.training)

    def encode(self, batch: Batch, query_batch: QueryBatch, vectors: Tensor) -> Tensor:
        """Return queries (Q, dim) from the vectors (P, dim) of query_batch.inputs."""
        x = vectors * math.sqrt(vectors.shape[1]) + self.places(query_batch.lengths, vectors.shape[0])
        x = self.dropout(x)
        times = None if self.times is None else batch.sparse[self.times].values()[query_batch.places]
        for block in self.blocks:
            x = block(x, query_batch.lengths, times)
        return states_at(self.norm(x), query_batch.at)
