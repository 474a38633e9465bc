"""SASRec: Kang & McAuley, Self-Attentive Sequential Recommendation, 2018, https://arxiv.org/abs/1808.09781."""

import math

import torch
from torch import Tensor, nn

from recsys.batch import Batch
from recsys.features import FeatureSpec
from recsys.models.common.attention import Attention, PlacesFromEnd
from recsys.models.common.items import Items, QueryBatch, next_items, states_at
from recsys.models.protocols import RetrievalModel
from recsys.ranges import Depth, Deviation, Length, Share, Width


class Block(nn.Module):
    """Causal self-attention, then a feed-forward network, each with its residual."""

    def __init__(self, dim: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.before = nn.LayerNorm(dim, eps=1e-8)
        self.attention = Attention(dim, heads, causal=True, dropout=dropout)
        self.between = nn.LayerNorm(dim, eps=1e-8)
        self.feed_forward = nn.Sequential(
            nn.Linear(dim, dim), nn.Dropout(dropout), nn.ReLU(), nn.Linear(dim, dim), nn.Dropout(dropout)
        )

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """Transform the states of B lists: (P, dim), lengths (B,) -> (P, dim)."""
        queries = self.before(x)
        x = self.between(queries + self.attention(queries, x, lengths))
        return x + self.feed_forward(x)


class SASRec(nn.Module, RetrievalModel):
    """Causal transformer over the items of a list; each state is the query for the next item.

    Args:
        max_length: number of learnt position vectors, counted from the end; earlier items share the vector of the first
            position.
    """

    def __init__(
        self,
        features: FeatureSpec,
        *,
        dim: Width = 50,
        blocks: Depth = 2,
        heads: Depth = 1,
        dropout: Share = 0.2,
        max_length: Length = 200,
        init_std: Deviation = 0.02,
        device: torch.device | None = None,
    ) -> None:
        super().__init__()
        self.items = Items(features, dim, init_std=init_std, device=device)
        self.places = PlacesFromEnd(max_length, dim, init_std=init_std)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(Block(dim, heads, dropout) for _ in range(blocks))
        self.norm = nn.LayerNorm(dim, eps=1e-8)

    def make_queries(self, batch: Batch) -> QueryBatch:
        lists = batch.sparse[self.items.name]
        return next_items(lists.values().long(), lists.lengths().long(), every=self.training)

    def encode(self, batch: Batch, query_batch: QueryBatch, vectors: Tensor) -> Tensor:
        """Return queries (Q, dim) from the vectors (P, dim) of query_batch.inputs."""
        x = vectors * math.sqrt(vectors.shape[1]) + self.places(query_batch.lengths)
        x = self.dropout(x)
        for block in self.blocks:
            x = block(x, query_batch.lengths)
        return states_at(self.norm(x), query_batch.at)
