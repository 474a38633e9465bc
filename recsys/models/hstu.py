"""HSTU: Zhai et al., Actions Speak Louder than Words: Trillion-Parameter Sequential Transducers for Generative
Recommendations, 2024, https://arxiv.org/abs/2402.17152.
"""

import math

import torch
from torch import Tensor, nn

from recsys.batch import Batch
from recsys.features import FeatureSpec
from recsys.models.common.attention import PlacesFromEnd
from recsys.models.common.items import Items, QueryBatch, next_items, states_at
from recsys.models.common.layers import Dropout
from recsys.models.common.lists import from_block, from_end, last_values, list_sums, repeat_rows, to_block
from recsys.models.protocols import RetrievalModel
from recsys.ranges import Depth, Deviation, Length, Share, Width

UNSEEN = -1e4  # a score whose SiLU and gradient are 0


class HSTUBlock(nn.Module):
    """Attention with pointwise weights, SiLU(Q K^T + bias) / N, gated by U.

    The weights need not sum to one, so that a state can express how strongly its list matches. The bias is learnt for
    each head and distance; a caller may add one for each value. N is `length` rather than the batch's longest list, so
    that a list's states do not depend on the other lists of its batch.

    Args:
        dim: width of the states.
        heads: number of heads of the attention; it must divide `dim`.
        dropout: share of the gated values that are dropped in training.
        length: N, also the number of distances that have a learnt bias; larger ones share the last.
    """

    def __init__(self, dim: int, heads: int, dropout: float, length: int) -> None:
        super().__init__()
        if heads < 1 or dim % heads:
            raise ValueError(f"dim={dim} is not divisible by heads={heads}")
        self.heads, self.length = heads, length
        self.before = nn.LayerNorm(dim)
        self.uvqk = nn.Sequential(nn.Linear(dim, 4 * dim), nn.SiLU())
        self.distances = nn.Parameter(torch.randn(heads, length) * 0.02)
        self.between = nn.LayerNorm(dim)
        self.out = nn.Sequential(Dropout(dropout), nn.Linear(dim, dim))

    def forward(
        self, x: Tensor, lengths: Tensor, value_bias: Tensor | None = None, *, only_last: bool = False
    ) -> Tensor:
        """Transform the states of B lists: (P, dim), lengths (B,) -> (P, dim).

        Args:
            value_bias: (P, heads), added to the scores of each value for all queries.
            only_last: return the last state of each list alone, (B, dim); no list is empty. The time is then linear in
                the lengths.
        """
        if only_last:
            return self._last_states(x, lengths, value_bias)
        dim = x.shape[1]
        u, vqk = self.uvqk(self.before(x)).split([dim, 3 * dim], dim=1)
        block, at = to_block(vqk, lengths)
        v, q, k = (part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in block.split(dim, dim=2))
        place = torch.arange(block.shape[1], device=x.device)
        back = place[:, None] - place[None, :]
        bias = self.distances[:, back.clamp(0, self.length - 1)].masked_fill(back < 0, UNSEEN)
        if value_bias is not None:  # one more column of the keys, which the queries multiply by 1
            more = to_block(value_bias, lengths)[0].transpose(1, 2)[:, :, :, None]
            q, k = torch.cat([q, torch.ones_like(more)], dim=3), torch.cat([k, more], dim=3)
        weights = nn.functional.silu(q @ k.transpose(2, 3) + bias)
        mixed = from_block((weights @ (v / self.length)).transpose(1, 2).reshape(-1, dim), at)
        return x + self.out(self.between(mixed) * u)

    def _last_states(self, x: Tensor, lengths: Tensor, value_bias: Tensor | None) -> Tensor:
        """Return the new state of each list's last value, which has the only query of its list."""
        u, v, q, k = self.uvqk(self.before(x)).chunk(4, dim=1)
        u, q = last_values(u, lengths), last_values(q, lengths)
        scores = (repeat_rows(q, lengths, x.shape[0]) * k).unflatten(1, (self.heads, -1)).sum(2)  # (P, heads)
        scores = scores + self.distances[:, from_end(lengths, x.shape[0]).clamp(max=self.length - 1)].T
        weights = nn.functional.silu(scores if value_bias is None else scores + value_bias) / self.length
        mixed = list_sums((weights[:, :, None] * v.unflatten(1, (self.heads, -1))).flatten(1), lengths)
        return last_values(x, lengths) + self.out(self.between(mixed) * u)


class HSTU(nn.Module, RetrievalModel):
    """Causal HSTU blocks over the items of a list; each state is the query for the next item.

    The paper's relative bias has a part for positions and a part for timestamps. This implementation has only the part
    for positions.

    Args:
        dim: width of items, states and queries.
        blocks: number of HSTU blocks.
        heads: number of heads of the attention; it must divide `dim`.
        dropout: share of values that are dropped in training, of the input and in each block.
        max_length: number of learnt position vectors, counted from the end, and of distances that have a learnt bias; N
            in the paper.
        init_std: standard deviation of the initial vectors of items and positions.
    """

    def __init__(
        self,
        features: FeatureSpec,
        *,
        dim: Width = 64,
        blocks: Depth = 2,
        heads: Depth = 2,
        dropout: Share = 0.2,
        max_length: Length = 200,
        init_std: Deviation = 0.02,
        device: torch.device | None = None,
    ) -> None:
        super().__init__()
        if max_length < 1:
            raise ValueError(f"max_length={max_length}: must be at least 1")
        self.items = Items(features, dim, init_std=init_std, device=device)
        self.places = PlacesFromEnd(max_length, dim, init_std=init_std)
        self.dropout = Dropout(dropout)
        self.blocks = nn.ModuleList(HSTUBlock(dim, heads, dropout, max_length) for _ in range(blocks))
        self.norm = nn.LayerNorm(dim)

    def make_queries(self, batch: Batch) -> QueryBatch:
        lists = batch.sparse[self.items.name]
        return next_items(lists.values().long(), lists.lengths().long(), every=self.training)

    def encode(self, batch: Batch, query_batch: QueryBatch, vectors: Tensor) -> Tensor:
        """Return queries (Q, dim) from the vectors (P, dim) of query_batch.inputs."""
        x = vectors * math.sqrt(vectors.shape[1]) + self.places(query_batch.lengths, vectors.shape[0])
        x = self.dropout(x)
        for block in self.blocks:
            x = block(x, query_batch.lengths)
        return states_at(self.norm(x), query_batch.at)
