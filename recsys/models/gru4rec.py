"""GRU4Rec: Hidasi et al., Session-based Recommendations with Recurrent Neural Networks, 2015,
https://arxiv.org/abs/1511.06939. Input and output items share one table, the "constrained embeddings" of Hidasi &
Karatzoglou, Recurrent Neural Networks with Top-k Gains for Session-based Recommendations, 2018,
https://arxiv.org/abs/1706.03847.
"""

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from recsys.batch import Batch
from recsys.features import FeatureSpec
from recsys.models.common.items import Items, QueryBatch, next_items, states_at
from recsys.models.common.lists import from_start, padded_length, to_block
from recsys.models.protocols import RetrievalModel
from recsys.ranges import Depth, Deviation, Share, Width


def packed(x: Tensor, lengths: Tensor) -> tuple[PackedSequence, Tensor]:
    """Pack concatenated lists for nn.GRU, step by step and the longest list first, without padding.

    Args:
        x: (P, d) values of the lists, one list after another.
        lengths: (B,).

    Returns:
        The packed sequence of P rows, and (P,) the index in x of each of them.
    """
    rank = torch.empty_like(lengths)
    rank[lengths.argsort(descending=True, stable=True)] = torch.arange(len(lengths), device=lengths.device)
    step = from_start(lengths)
    order = (step * len(lengths) + torch.repeat_interleave(rank, lengths)).argsort()
    return PackedSequence(x[order], step.bincount().cpu()), order


class GRU4Rec(nn.Module, RetrievalModel):
    """Recurrent network over the items of a list; each state is the query for the next item.

    Args:
        hidden: width of the states; if it differs from `dim`, a linear layer maps states to queries.
        layers: number of GRU layers.
        dropout_items: dropout of the input vectors.
        dropout: dropout of the states of each layer.
    """

    def __init__(
        self,
        features: FeatureSpec,
        *,
        dim: Width = 64,
        hidden: Width = 64,
        layers: Depth = 1,
        dropout_items: Share = 0.2,
        dropout: Share = 0.2,
        init_std: Deviation = 0.1,
        device: torch.device | None = None,
    ) -> None:
        super().__init__()
        if hidden < 1 or layers < 1:
            raise ValueError(f"hidden={hidden}, layers={layers}: must be at least 1")
        self.items = Items(features, dim, init_std=init_std, device=device)
        self.before = nn.Dropout(dropout_items)
        self.gru = nn.GRU(dim, hidden, layers, dropout=dropout if layers > 1 else 0.0)
        self.after = nn.Dropout(dropout)  # nn.GRU applies no dropout to its last layer
        self.out = nn.Identity() if hidden == dim else nn.Linear(hidden, dim)

    def make_queries(self, batch: Batch) -> QueryBatch:
        lists = batch.sparse[self.items.name]
        return next_items(lists.values().long(), lists.lengths().long(), every=self.training)

    def encode(self, batch: Batch, query_batch: QueryBatch, vectors: Tensor) -> Tensor:
        """Return queries (Q, dim) from the vectors (P, dim) of query_batch.inputs."""
        if not vectors.shape[0]:  # nn.GRU takes no empty sequence
            return states_at(vectors, query_batch.at)
        states = self._states(self.before(vectors), query_batch.lengths)
        return states_at(self.out(self.after(states)), query_batch.at)

    def _states(self, vectors: Tensor, lengths: Tensor) -> Tensor:
        """Run the GRU over each list: (P, dim), lengths (B,) -> (P, hidden)."""
        if padded_length() is not None:
            block, _ = to_block(vectors, lengths)
            return self.gru(block.transpose(0, 1))[0].transpose(0, 1).flatten(0, 1)
        steps, order = packed(vectors, lengths)
        states = self.gru(steps)[0].data
        return torch.empty_like(states).index_copy(0, order, states)
