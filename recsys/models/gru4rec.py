"""GRU4Rec: Hidasi et al., Session-based Recommendations with Recurrent Neural Networks, 2015,
https://arxiv.org/abs/1511.06939. Input and output items share one table, the "constrained embeddings" of Hidasi &
Karatzoglou, Recurrent Neural Networks with Top-k Gains for Session-based Recommendations, 2018,
https://arxiv.org/abs/1706.03847.
"""

import torch
from torch import Tensor, nn

from recsys.base.ranges import Depth, Deviation, Share, Width
from recsys.interface.batch import Batch
from recsys.interface.features import FeatureSpec
from recsys.models.common.items import Items, NextItems, QueryBatch, states_at
from recsys.models.common.layers import Dropout
from recsys.models.common.recurrent import gru_states
from recsys.models.protocols import RetrievalModel


class GRU4Rec(nn.Module, NextItems, RetrievalModel):
    """Recurrent network over the items of a list; each state is the query for the next item.

    Args:
        dim: width of items and queries.
        hidden: width of the states; if it differs from `dim`, a linear layer maps states to queries.
        layers: number of GRU layers.
        dropout_items: dropout of the input vectors.
        dropout: dropout of the states of each layer.
        init_std: standard deviation of the initial vectors of items.
    """

    reads_rows = False

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
        self.items = Items(features, dim, init_std=init_std, device=device)
        self.before = Dropout(dropout_items)
        self.gru = nn.GRU(dim, hidden, layers, dropout=dropout if layers > 1 else 0.0)
        self.after = Dropout(dropout)  # nn.GRU applies no dropout to its last layer
        self.out = nn.Identity() if hidden == dim else nn.Linear(hidden, dim)

    def encode(self, batch: Batch, query_batch: QueryBatch, vectors: Tensor) -> Tensor:
        """Return queries (Q, dim) from the vectors (P, dim) of query_batch.inputs."""
        states = gru_states(self.gru, self.before(vectors), query_batch.lengths)
        return states_at(self.out(self.after(states)), query_batch.at)
