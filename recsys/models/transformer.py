"""Transformer over all features of each item of a list, after de Souza Pereira Moreira et al., Transformers4Rec:
Bridging the Gap between NLP and Sequential / Session-Based Recommendation, 2021,
https://dl.acm.org/doi/10.1145/3460231.3474255, and with the blocks of eSASRec: Tikhonovich et al., eSASRec: Enhancing
Transformer-based Recommendations in a Modular Fashion, 2025, https://arxiv.org/abs/2508.06450.
"""

from typing import Literal

import torch
from torch import Tensor, nn

from recsys.base.ranges import Depth, Deviation, Fraction, Length, Part, Share, Width
from recsys.interface.batch import Batch
from recsys.interface.features import FeatureSpec
from recsys.models.common.attention import Attention, PlacesFromEnd, RelativeAttention
from recsys.models.common.embeddings import PooledEmbeddings, SequenceEmbeddings
from recsys.models.common.items import (
    Items,
    QueriesAhead,
    QueryBatch,
    hide,
    masked_items,
    masked_last,
    next_items,
    states_at,
)
from recsys.models.common.layers import Dropout, SwiGLU
from recsys.models.common.lists import repeat_rows
from recsys.models.protocols import RetrievalModel

ATTENTION = {"plain": Attention, "relative": RelativeAttention}


class TransformerBlock(nn.Module):
    """Attention, then a feed-forward network, each with a norm before it and a residual.

    Args:
        dim: width of the states.
        dropout: share of the values that are dropped in training.
        feed_forward: "gelu" or "swiglu", see Transformer.
        gated: see Transformer.
    """

    def __init__(self, attention: nn.Module, dim: int, dropout: float, *, feed_forward: str, gated: bool) -> None:
        super().__init__()
        self.before = nn.LayerNorm(dim)
        self.attention = attention
        self.between = nn.LayerNorm(dim)
        layers: list[nn.Module] = [SwiGLU(dim, 4 * dim, dropout)]
        if feed_forward == "gelu":
            layers = [nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim)]
        self.feed_forward = nn.Sequential(*layers, Dropout(dropout))
        self.gates = nn.ModuleList(nn.Linear(dim, dim) for _ in range(2)) if gated else None

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """Transform the states of B lists: (P, dim), lengths (B,) -> (P, dim)."""
        y = self.before(x)
        x = x + self._gated(0, x, self.attention(y, y, lengths))
        return x + self._gated(1, x, self.feed_forward(self.between(x)))

    def _gated(self, part: int, x: Tensor, change: Tensor) -> Tensor:
        return change if self.gates is None else torch.sigmoid(self.gates[part](x)) * change


class Context(nn.Module):
    """One vector for the features of a row that are not lists.

    Args:
        features: the features of a row; sequences are left out.
        dim: width of the vector.
        init_std: standard deviation of the initial embeddings.
    """

    def __init__(self, features: FeatureSpec, dim: int, *, init_std: float, device: torch.device | None) -> None:
        super().__init__()
        sparse = tuple(f for f in features.sparse if not f.sequence)
        if not sparse and not features.dense:
            raise ValueError("context=true: data has only features of items; set model.context=false")
        own = FeatureSpec(dense=features.dense, sparse=sparse, labels=())
        self.bags = PooledEmbeddings(own, dim, prefix="context_", init_std=init_std, device=device) if sparse else None
        self.dense = nn.Linear(own.dense_width, dim) if own.dense else None

    def forward(self, batch: Batch) -> Tensor:
        """Return the sum of pooled embeddings and a linear map of the dense features: B rows -> (B, dim)."""
        parts = [] if self.bags is None else [self.bags(batch.sparse).sum(dim=1)]
        parts += [] if self.dense is None else [self.dense(batch.dense)]
        return sum(parts[1:], parts[0])


class Transformer(nn.Module, QueriesAhead, RetrievalModel):
    """Transformer that reads the item and all other sparse list features of each item, such as category or time gap.

    Each feature has a table of its own. The model sees no feature of the item that it is to predict.

    Args:
        dim: width of items, states and queries.
        blocks: number of transformer blocks.
        heads: number of heads of the attention; it must divide `dim`.
        dropout: share of values that are dropped in training, of the input and in each block.
        merge: how to merge the vectors of an item: "sum", or "concat" followed by a linear layer to `dim`.
        objective: "causal" predicts the next item from each state; "masked" predicts masked items.
        block: "plain" with learnt position vectors, or "relative" with attention over distances.
        feed_forward: "gelu" for two linear layers, 4 * `dim` wide, with GELU between them, or "swiglu".
        gated: whether a sigmoid of a linear map of the states multiplies what attention and the feed-forward network
            add to them. With feed_forward=swiglu, these are the blocks of LiGR (Borisyuk et al., From Features to
            Transformers: Redefining Ranking for Scalable Impact, 2025, https://arxiv.org/abs/2502.03417) and eSASRec.
        context: whether to add the features of the row itself to each position. Their values come from the last row of
            the list, which is the row of the item to predict. Do not use features that are unknown before that row or
            that change within a list: they leak the answer.
        mask: for objective=masked, share of a list's items that are masked in training.
        mask_last: for objective=masked, share of lists in which only the last item is masked.
        max_length: number of learnt position vectors, counted from the end.
        init_std: standard deviation of the initial embeddings, and of the vectors of positions and of the mask.
    """

    reads_rows = False

    def __init__(
        self,
        features: FeatureSpec,
        *,
        dim: Width = 64,
        blocks: Depth = 2,
        heads: Depth = 2,
        dropout: Share = 0.2,
        merge: Literal["sum", "concat"] = "concat",
        objective: Literal["causal", "masked"] = "causal",
        block: Literal["plain", "relative"] = "plain",
        feed_forward: Literal["gelu", "swiglu"] = "gelu",
        gated: bool = False,
        context: bool = False,
        mask: Fraction = 0.2,
        mask_last: Part = 0.1,
        max_length: Length = 201,
        init_std: Deviation = 0.02,
        device: torch.device | None = None,
    ) -> None:
        super().__init__()
        self.mask, self.mask_last = mask, mask_last
        self.items = Items(features, dim, init_std=init_std, device=device)
        others = [f.name for f in features.sparse if f.sequence and f.name != self.items.name]
        self.beside: SequenceEmbeddings | None = None
        if others:
            self.beside = SequenceEmbeddings(features, dim, others, prefix="beside_", init_std=init_std, device=device)
        self.merge = nn.Linear((1 + len(others)) * dim, dim) if others and merge == "concat" else None
        self.context = Context(features, dim, init_std=init_std, device=device) if context else None
        self.reads_rows = type(self).reads_rows or self.beside is not None or context
        self.hidden = nn.Parameter(torch.randn(dim) * init_std) if objective == "masked" else None
        self.places: PlacesFromEnd | None = None
        if block == "plain":
            self.places = PlacesFromEnd(max_length, dim, init_std=init_std)
        self.before = nn.Sequential(nn.LayerNorm(dim), Dropout(dropout))
        self.blocks = nn.ModuleList(
            TransformerBlock(
                ATTENTION[block](dim, heads, causal=objective == "causal", dropout=dropout),
                dim,
                dropout,
                feed_forward=feed_forward,
                gated=gated,
            )
            for _ in range(blocks)
        )
        self.norm = nn.LayerNorm(dim)

    def make_queries(self, batch: Batch) -> QueryBatch:
        return self._queries(batch, every=self.training)

    def queries_ahead(self, batch: Batch, draw: int) -> QueryBatch:
        return self._queries(batch, every=True, random=torch.Generator().manual_seed(draw))

    def _queries(self, batch: Batch, *, every: bool, random: torch.Generator | None = None) -> QueryBatch:
        lists = batch.sparse[self.items.name]
        items, lengths = lists.values().long(), lists.lengths().long()
        if self.hidden is None:
            return next_items(items, lengths, every=every)
        if not every:
            return masked_last(items, lengths)
        return masked_items(items, lengths, share=self.mask, only_last=self.mask_last, random=random)

    def encode(self, batch: Batch, query_batch: QueryBatch, vectors: Tensor) -> Tensor:
        """Return queries (Q, dim) from the vectors (P, dim) of query_batch.inputs."""
        x = vectors
        if self.beside is not None:  # other features of each item
            parts = [x, *(rows.values()[query_batch.places] for rows in self.beside(batch.sparse).values())]
            x = sum(parts[1:], parts[0]) if self.merge is None else self.merge(torch.cat(parts, dim=1))
        if self.hidden is not None:
            x = hide(x, query_batch, self.hidden)
        if self.context is not None:
            x = x + repeat_rows(self.context(batch), query_batch.lengths, x.shape[0])
        if self.places is not None:
            x = x + self.places(query_batch.lengths, x.shape[0])
        x = self.before(x)
        for block in self.blocks:
            x = block(x, query_batch.lengths)
        return states_at(self.norm(x), query_batch.at)
