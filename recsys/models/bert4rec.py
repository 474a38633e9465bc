"""BERT4Rec: Sun et al., Sequential Recommendation with Bidirectional Encoder Representations from Transformer, 2019,
https://arxiv.org/abs/1904.06690.
"""

from typing import Literal

import torch
from torch import Tensor, nn

from recsys.base.ranges import Depth, Deviation, Fraction, Length, Part, Share, Width
from recsys.interface.batch import Batch
from recsys.interface.features import FeatureSpec
from recsys.models.common.attention import Attention, PlacesFromEnd, PlacesFromStart
from recsys.models.common.items import Items, QueriesAhead, QueryBatch, hide, masked_items, masked_last, states_at
from recsys.models.common.layers import Dropout
from recsys.models.protocols import RetrievalModel

PLACES = {"end": PlacesFromEnd, "start": PlacesFromStart}


class BertBlock(nn.Module):
    """Bidirectional self-attention, then a feed-forward network, each with a residual and a norm after it.

    Args:
        dim: width of the states.
        heads: number of heads of the attention; it must divide `dim`.
        dropout: share of the outputs of attention and feed-forward network that are dropped in training.
        attention_dropout: share of the attention weights that are dropped in training.
    """

    def __init__(self, dim: int, heads: int, *, dropout: float, attention_dropout: float) -> None:
        super().__init__()
        self.attention = Attention(dim, heads, causal=False, dropout=dropout, weight_dropout=attention_dropout)
        self.between = nn.LayerNorm(dim)
        self.feed_forward = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))
        self.after = nn.LayerNorm(dim)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """Transform the states of B lists: (P, dim), lengths (B,) -> (P, dim)."""
        x = self.between(x + self.attention(x, x, lengths))
        return self.after(x + self.dropout(self.feed_forward(x)))


class BERT4Rec(nn.Module, QueriesAhead, RetrievalModel):
    """Bidirectional transformer that predicts masked items: random items in training, the last item in evaluation.

    Args:
        dim: width of items, states and queries, without the bias.
        blocks: number of transformer blocks.
        heads: number of heads of the attention; it must divide `dim`.
        dropout: share of values that are dropped in training, of the input and in each block.
        attention_dropout: share of the attention weights that dropout removes.
        exact_mask: whether to mask this share of each list exactly, rounded, instead of each item with this
            probability.
        output_bias: whether each item has a bias: the last element of the item vector; the last element of every query
            is 1.
        positions: "end" or "start" of the list, from which positions are counted. The original counts from the start.
        init: "pytorch" keeps PyTorch's initial weights of linear layers; "normal" is a normal distribution, truncated
            at two standard deviations of `init_std`, without biases, as in the original.
        mask: share of a list's items that are masked in training.
        mask_last: share of lists in which only the last item is masked, as in evaluation.
        max_length: number of learnt position vectors, including the masked last item. Items beyond the last position
            share its vector.
        init_std: standard deviation of the initial vectors of items, positions and the mask.
    """

    wider_than_dim, reads_rows = True, False

    def __init__(
        self,
        features: FeatureSpec,
        *,
        dim: Width = 64,
        blocks: Depth = 2,
        heads: Depth = 2,
        dropout: Share = 0.1,
        attention_dropout: Share = 0.0,
        mask: Fraction = 0.2,
        mask_last: Part = 0.1,
        exact_mask: bool = False,
        output_bias: bool = False,
        positions: Literal["end", "start"] = "end",
        init: Literal["pytorch", "normal"] = "pytorch",
        max_length: Length = 201,
        init_std: Deviation = 0.02,
        device: torch.device | None = None,
    ) -> None:
        super().__init__()
        self.mask, self.mask_last, self.exact_mask = mask, mask_last, exact_mask
        self.dim, self.output_bias = dim, output_bias
        self.items = Items(features, dim + output_bias, init_std=init_std, device=device)
        self.hidden = nn.Parameter(torch.randn(dim) * init_std)
        self.places = PLACES[positions](max_length, dim, init_std=init_std)
        self.before = nn.Sequential(nn.LayerNorm(dim), Dropout(dropout))
        self.blocks = nn.ModuleList(
            BertBlock(dim, heads, dropout=dropout, attention_dropout=attention_dropout) for _ in range(blocks)
        )
        self.head = nn.Sequential(nn.Linear(dim, dim), nn.GELU(), nn.LayerNorm(dim))
        if init == "normal":
            for module in (m for m in self.modules() if isinstance(m, nn.Linear) and m is not self.items.dense):
                nn.init.trunc_normal_(module.weight, std=init_std, a=-2 * init_std, b=2 * init_std)
                nn.init.zeros_(module.bias)

    def make_queries(self, batch: Batch) -> QueryBatch:
        if self.training:
            return self._masked_items(batch)
        lists = batch.sparse[self.items.name]
        return masked_last(lists.values().long(), lists.lengths().long())

    def queries_ahead(self, batch: Batch, draw: int) -> QueryBatch:
        return self._masked_items(batch, torch.Generator().manual_seed(draw))

    def _masked_items(self, batch: Batch, random: torch.Generator | None = None) -> QueryBatch:
        lists = batch.sparse[self.items.name]
        return masked_items(
            lists.values().long(),
            lists.lengths().long(),
            share=self.mask,
            only_last=self.mask_last,
            exact=self.exact_mask,
            random=random,
        )

    def encode(self, batch: Batch, query_batch: QueryBatch, vectors: Tensor) -> Tensor:
        """Return queries (Q, dim) from the vectors (P, dim) of query_batch.inputs; dim + 1 with `output_bias`."""
        x = hide(vectors[:, : self.dim], query_batch, self.hidden)
        x = self.before(x + self.places(query_batch.lengths, x.shape[0]))
        for block in self.blocks:
            x = block(x, query_batch.lengths)
        queries = self.head(states_at(x, query_batch.at))
        return torch.cat([queries, queries.new_ones(queries.shape[0], 1)], dim=1) if self.output_bias else queries
