"""SASRec: Kang & McAuley, Self-Attentive Sequential Recommendation, 2018, https://arxiv.org/abs/1808.09781."""

import math
from typing import Literal

import torch
from torch import Tensor, nn

from recsys.base.ranges import Depth, Deviation, Length, Share, Width
from recsys.interface.batch import Batch
from recsys.interface.features import FeatureSpec
from recsys.models.common.attention import Attention, PlacesFromEnd
from recsys.models.common.items import Items, NextItems, QueryBatch, states_at
from recsys.models.common.layers import Dropout
from recsys.models.protocols import RetrievalModel


class SASRecBlock(nn.Module):
    """Causal self-attention, then a feed-forward network, each with its residual.

    Args:
        dim: width of the states.
        heads: number of heads of the attention; it must divide `dim`.
        dropout: share of values that are dropped in training, after the attention and in the feed-forward network.
        attention_dropout: share of the attention weights that are dropped in training.
        projection: whether a linear layer and dropout follow the attention.
        norm: "queries", "before" or "after", see SASRec.
    """

    def __init__(
        self, dim: int, heads: int, *, dropout: float, attention_dropout: float, projection: bool, norm: str
    ) -> None:
        super().__init__()
        self.where = norm
        self.before = nn.LayerNorm(dim, eps=1e-8)
        self.attention = Attention(
            dim, heads, causal=True, dropout=dropout, weight_dropout=attention_dropout, projection=projection
        )
        self.between = nn.LayerNorm(dim, eps=1e-8)
        self.feed_forward = nn.Sequential(
            nn.Linear(dim, dim), Dropout(dropout), nn.ReLU(), nn.Linear(dim, dim), Dropout(dropout)
        )

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """Transform the states of B lists: (P, dim), lengths (B,) -> (P, dim)."""
        if self.where == "after":
            x = self.before(x + self.attention(x, x, lengths))
            return self.between(x + self.feed_forward(x))
        queries = self.before(x)
        if self.where == "before":
            x = x + self.attention(queries, queries, lengths)
            return x + self.feed_forward(self.between(x))
        x = self.between(queries + self.attention(queries, x, lengths))
        return x + self.feed_forward(x)


class SASRec(nn.Module, NextItems, RetrievalModel):
    """Causal transformer over the items of a list; each state is the query for the next item.

    Args:
        dim: width of items, states and queries.
        blocks: number of transformer blocks.
        heads: number of heads of the attention; it must divide `dim`.
        dropout: share of values that are dropped in training, of the input and in each block.
        attention_dropout: share of the attention weights that dropout removes.
        projection: whether a linear layer and dropout follow the attention; the original has neither.
        norm: "queries" normalizes the queries of attention, but neither its keys nor its values, and the residuals add
            normalized states, as in the original; "before" and "after" are a transformer's usual norms.
        init: "pytorch" keeps PyTorch's initial weights of linear layers, and normal vectors of items and positions;
            "glorot" is Glorot's uniform distribution for all of them, without biases, as in the original.
        max_length: number of learnt position vectors, counted from the end; earlier items share the vector of the first
            position.
        init_std: standard deviation of the initial vectors of items and positions, with init=pytorch.
    """

    reads_rows = False

    def __init__(
        self,
        features: FeatureSpec,
        *,
        dim: Width = 64,
        blocks: Depth = 2,
        heads: Depth = 1,
        dropout: Share = 0.2,
        attention_dropout: Share = 0.0,
        projection: bool = True,
        norm: Literal["queries", "before", "after"] = "queries",
        init: Literal["pytorch", "glorot"] = "pytorch",
        max_length: Length = 200,
        init_std: Deviation = 0.02,
        device: torch.device | None = None,
    ) -> None:
        super().__init__()
        item_std = init_std
        if init == "glorot" and features.item is not None:  # the deviation of Glorot's distribution for the item table
            item_std = math.sqrt(2 / (features.feature(features.item).cardinality + dim))
        self.items = Items(features, dim, init_std=item_std, device=device)
        self.places = PlacesFromEnd(max_length, dim, init_std=init_std)
        self.dropout = Dropout(dropout)
        self.blocks = nn.ModuleList(
            SASRecBlock(
                dim, heads, dropout=dropout, attention_dropout=attention_dropout, projection=projection, norm=norm
            )
            for _ in range(blocks)
        )
        self.norm = nn.LayerNorm(dim, eps=1e-8)
        if init == "glorot":
            nn.init.xavier_uniform_(self.places.weight)
            for linear in (m for m in self.blocks.modules() if isinstance(m, nn.Linear)):
                # as TensorFlow does, in which keys and values are layers of their own
                for part in linear.weight.detach().split(linear.in_features):
                    nn.init.xavier_uniform_(part)
                nn.init.zeros_(linear.bias)

    def encode(self, batch: Batch, query_batch: QueryBatch, vectors: Tensor) -> Tensor:
        """Return queries (Q, dim) from the vectors (P, dim) of query_batch.inputs."""
        x = vectors * math.sqrt(vectors.shape[1]) + self.places(query_batch.lengths, vectors.shape[0])
        x = self.dropout(x)
        for block in self.blocks:
            x = block(x, query_batch.lengths)
        return states_at(self.norm(x), query_batch.at)
