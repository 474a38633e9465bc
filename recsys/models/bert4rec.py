"""BERT4Rec: Sun et al., Sequential Recommendation with Bidirectional Encoder Representations from Transformer, 2019,
https://arxiv.org/abs/1904.06690.
"""

import torch
from torch import Tensor, nn

from recsys.batch import Batch
from recsys.features import FeatureSpec
from recsys.models.common.attention import Attention, PlacesFromEnd
from recsys.models.common.items import (
    Items,
    QueryBatch,
    hide,
    masked_items,
    masked_last,
    states_at,
)
from recsys.models.protocols import RetrievalModel
from recsys.ranges import Depth, Deviation, Length, Share, Width


class Block(nn.Module):
    """Bidirectional self-attention, then a feed-forward network, each with a residual and a norm after it."""

    def __init__(self, dim: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.attention = Attention(dim, heads, causal=False, dropout=dropout)
        self.between = nn.LayerNorm(dim)
        self.feed_forward = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))
        self.after = nn.LayerNorm(dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """Transform the states of B lists: (P, dim), lengths (B,) -> (P, dim)."""
        x = self.between(x + self.attention(x, x, lengths))
        return self.after(x + self.dropout(self.feed_forward(x)))


class BERT4Rec(nn.Module, RetrievalModel):
    """Bidirectional transformer that predicts masked items: random items in training, the last item in evaluation.

    Args:
        mask: share of a list's items that are masked in training.
        mask_last: share of lists in which only the last item is masked, as in evaluation.
        max_length: number of learnt position vectors, counted from the end and including the masked last item.
            Earlier items share the vector of the first position.
    """

    def __init__(
        self,
        features: FeatureSpec,
        *,
        dim: Width = 64,
        blocks: Depth = 2,
        heads: Depth = 2,
        dropout: Share = 0.1,
        mask: float = 0.2,
        mask_last: float = 0.1,
        max_length: Length = 201,
        init_std: Deviation = 0.02,
        device: torch.device | None = None,
    ) -> None:
        super().__init__()
        if not 0 < mask < 1 or not 0 <= mask_last <= 1:
            raise ValueError(f"mask={mask}, mask_last={mask_last}: must be 0 < mask < 1 and 0 <= mask_last <= 1")
        self.mask, self.mask_last = mask, mask_last
        self.items = Items(features, dim, init_std=init_std, device=device)
        self.hidden = nn.Parameter(torch.randn(dim) * init_std)
        self.places = PlacesFromEnd(max_length, dim, init_std=init_std)
        self.before = nn.Sequential(nn.LayerNorm(dim), nn.Dropout(dropout))
        self.blocks = nn.ModuleList(Block(dim, heads, dropout) for _ in range(blocks))
        self.head = nn.Sequential(nn.Linear(dim, dim), nn.GELU(), nn.LayerNorm(dim))

    def make_queries(self, batch: Batch) -> QueryBatch:
        lists = batch.sparse[self.items.name]
        items, lengths = lists.values().long(), lists.lengths().long()
        if not self.training:
            return masked_last(items, lengths)
        return masked_items(items, lengths, share=self.mask, only_last=self.mask_last)

    def encode(self, batch: Batch, query_batch: QueryBatch, vectors: Tensor) -> Tensor:
        """Return queries (Q, dim) from the vectors (P, dim) of query_batch.inputs."""
        x = hide(vectors, query_batch.at, self.hidden)
        x = self.before(x + self.places(query_batch.lengths))
        for block in self.blocks:
            x = block(x, query_batch.lengths)
        return self.head(states_at(x, query_batch.at))
