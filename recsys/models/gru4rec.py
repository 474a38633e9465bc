"""GRU4Rec: Hidasi et al., Session-based Recommendations with Recurrent Neural Networks, 2015,
https://arxiv.org/abs/1511.06939. With one table for what is read and what is asked for, "constrained embeddings" in
Hidasi & Karatzoglou, Recurrent Neural Networks with Top-k Gains, 2018, https://arxiv.org/abs/1706.03847.
"""

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from recsys.batch import Batch
from recsys.features import FeatureSpec
from recsys.models.common.attention import from_start
from recsys.models.common.items import Items, QueryBatch, next_items, states_at
from recsys.models.protocols import RetrievalModel


def packed(x: Tensor, lengths: Tensor) -> tuple[PackedSequence, Tensor]:
    """Lists one after another by step, the longest list first, as nn.GRU reads them without padding:
    (P, d), (B,) -> P rows, (P,) which value of x each is.
    """
    rank = torch.empty_like(lengths)
    rank[lengths.argsort(descending=True, stable=True)] = torch.arange(len(lengths), device=lengths.device)
    step = from_start(lengths)
    order = (step * len(lengths) + torch.repeat_interleave(rank, lengths)).argsort()
    return PackedSequence(x[order], step.bincount().cpu()), order


class GRU4Rec(nn.Module, RetrievalModel):
    """A recurrent network over the items of a list; each state is the query for the item that follows.

    hidden: width of the states; where it is not `dim`, a linear layer makes queries of them
    dropout_items, dropout: of the vectors read, and of each layer's states
    """

    def __init__(
        self,
        features: FeatureSpec,
        *,
        dim: int = 64,
        hidden: int = 64,
        layers: int = 1,
        dropout_items: float = 0.2,
        dropout: float = 0.2,
        init_std: float = 0.1,
        device: torch.device | None = None,
    ) -> None:
        super().__init__()
        if hidden < 1 or layers < 1:
            raise ValueError(f"hidden {hidden} and layers {layers} must be positive")
        self.items = Items(features, dim, init_std=init_std, device=device)
        self.before = nn.Dropout(dropout_items)
        self.gru = nn.GRU(dim, hidden, layers, dropout=dropout if layers > 1 else 0.0)
        self.after = nn.Dropout(dropout)  # nn.GRU drops nothing of its last layer
        self.out = nn.Identity() if hidden == dim else nn.Linear(hidden, dim)

    def make_queries(self, batch: Batch) -> QueryBatch:
        lists = batch.sparse[self.items.name]
        return next_items(lists.values().long(), lists.lengths().long(), every=self.training)

    def encode(self, batch: Batch, query_batch: QueryBatch, vectors: Tensor) -> Tensor:
        """vectors of asked.inputs (P, dim) -> queries (Q, dim)."""
        if not len(vectors):  # there is no packed sequence of nothing
            return states_at(vectors, query_batch.at)
        steps, order = packed(self.before(vectors), query_batch.lengths)
        states = self.gru(steps)[0].data
        states = torch.empty_like(states).index_copy(0, order, states)
        return states_at(self.out(self.after(states)), query_batch.at)
