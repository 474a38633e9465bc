"""ComiRec with self-attention: Cen et al., Controllable Multi-Interest Framework for Recommendation, 2020,
https://arxiv.org/abs/2005.09347. Its list that trades accuracy for diversity is a step of pipelines (recsys.stages).
"""

import torch
from torch import Tensor, nn

from recsys.base.ranges import Depth, Deviation, Length, Share, Width
from recsys.interface.batch import Batch
from recsys.interface.features import FeatureSpec
from recsys.models.common.attention import mix_padded
from recsys.models.common.items import InterestScorer, Items, NextItems, QueryBatch, states_at
from recsys.models.common.layers import Dropout
from recsys.models.protocols import RetrievalModel


class ComiRec(nn.Module, NextItems, RetrievalModel):
    """Several queries for a list, its interests, each a weighted sum of the vectors of its items.

    The weights of interest k are a softmax over the items of the list of w_k tanh(W h) + b_k, where h is an item's
    vector, and b_k is learnt for each distance from the end of the list; the paper adds position vectors to h instead.
    An item's score is its largest product with an interest, in lists as in the loss, where the paper compares the
    negatives with the interest that is nearest to the target; interests that no target has chosen then score items at
    random. In training, every item of a list is a target of the items before it.

    Args:
        dim: width of items and interests.
        interests: number of interests K; index searches and scores take K times as long as with one query.
        hidden: width of the layer that weighs items; the paper has 4 dim.
        dropout: share of the input's values that are dropped in training.
        max_length: number of distances from the end that have a learnt bias; larger ones share the last.
        init_std: standard deviation of the initial vectors of items.
    """

    reads_rows = False

    def __init__(
        self,
        features: FeatureSpec,
        *,
        dim: Width = 64,
        interests: Depth = 2,
        hidden: Width = 256,
        dropout: Share = 0.2,
        max_length: Length = 200,
        init_std: Deviation = 0.02,
        device: torch.device | None = None,
    ) -> None:
        super().__init__()
        self.items = Items(features, dim, init_std=init_std, device=device)
        self.dropout = Dropout(dropout)
        self.weigh = nn.Sequential(nn.Linear(dim, hidden), nn.Tanh(), nn.Linear(hidden, interests, bias=False))
        self.distances = nn.Parameter(torch.randn(interests, max_length) * 0.02)
        self.largest = InterestScorer(interests)

    @property
    def scorer(self) -> InterestScorer:
        return self.largest

    def encode(self, batch: Batch, query_batch: QueryBatch, vectors: Tensor) -> Tensor:
        """Return the interests (Q, K dim) of each query from the vectors (P, dim) of query_batch.inputs."""
        x = self.dropout(vectors)
        x = torch.cat([x, self.weigh(x)], dim=1)
        return states_at(mix_padded(self._of_each, query_batch.lengths, x), query_batch.at)

    def _of_each(self, block: Tensor, lengths: Tensor) -> Tensor:
        """Return the interests after each item of padded lists: (B, L, dim + K) -> (B * L, K dim)."""
        count, most = self.distances.shape
        values, scores = block.split([block.shape[2] - count, count], dim=2)
        place = torch.arange(block.shape[1], device=block.device)
        back = place[:, None] - place  # (L, L)
        scores = scores.transpose(1, 2)[:, :, None] + self.distances[:, back.clamp(0, most - 1)]
        weights = torch.where(back >= 0, scores, -torch.inf).softmax(-1)  # (B, K, L, L)
        return (weights @ values[:, None]).transpose(1, 2).flatten(2).flatten(0, 1)
