"""UltraGCN: Mao et al., UltraGCN: Ultra Simplification of Graph Convolutional Networks for Recommendation, 2021,
https://arxiv.org/abs/2110.15114.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from pydantic import NonNegativeFloat
from torch import Tensor, nn

from recsys.base.ranges import Count, Deviation, Width
from recsys.interface.batch import Batch, Interactions
from recsys.interface.features import FeatureSpec
from recsys.models.common.co_occurrence import item_neighbours
from recsys.models.common.embeddings import PooledEmbeddings
from recsys.models.common.items import Items, QueryBatch
from recsys.models.common.pairs import chosen_items, only, user_feature
from recsys.models.protocols import RetrievalModel

Weight = NonNegativeFloat


class UltraGCN(nn.Module, RetrievalModel):
    """Matrix factorisation whose pairs are weighted as the limit of infinitely many layers of a graph network.

    With d the number of training interactions of a user u and an item i, and b_ui = sqrt((d_u + 1) / (d_i + 1)) / d_u,
    the loss of a target (loss=bce) is weighted by w1 + w2 b_ui, and that of a negative j by (w3 + w4 b_uj) times
    `negative_weight` divided by the number of negatives. A second term pulls users towards the nearest neighbours of
    their targets in the graph of co-occurring items. The graph is needed in training only. The original adds
    the squared lengths of all vectors to the loss of each step; optim.sparse.weight_decay regularises the vectors that
    a step reads.

    Args:
        user: name of the user feature; by default, the only single-valued feature other than the item.
        dim: width of the vectors.
        pair_weights: w1, w2, w3 and w4.
        negative_weight: weight of the mean over the negatives. The larger it is, the longer vectors say no more than
            the items' popularity (experiments/gowalla); the original has 300 for Gowalla.
        neighbours: number of neighbours of each item.
        neighbour_weight: weight of the second term (lambda in the paper).
        init_std: standard deviation of the initial embeddings.
    """

    reads_interactions = True
    weighs_pairs = True

    def __init__(
        self,
        features: FeatureSpec,
        *,
        user: str | None = None,
        dim: Width = 64,
        pair_weights: Sequence[Weight] = (1e-6, 1.0, 1e-6, 1.0),
        negative_weight: Weight = 1.0,
        neighbours: Count = 10,
        neighbour_weight: Weight = 5e-4,
        init_std: Deviation = 1e-4,
        device: torch.device | None = None,
    ) -> None:
        super().__init__()
        if len(pair_weights) != 4:
            raise ValueError(f"pair_weights={list(pair_weights)}: must be four numbers")
        who = user_feature(features, user, "UltraGCN")
        alone = FeatureSpec(dense=(), sparse=(who,), labels=())
        self.users = PooledEmbeddings(alone, dim, prefix="user_", init_std=init_std, device=device)
        self.items = Items(features, dim, about=False, init_std=init_std, device=device)
        self.user, self.user_rows = who.name, who.cardinality
        self.pair_weights, self.negative_weight = tuple(pair_weights), negative_weight
        self.neighbours, self.neighbour_weight = neighbours, neighbour_weight
        self._factors: tuple[Tensor, Tensor] | None = None  # of b: that of users (U,) and that of items (N,)
        self._near: tuple[Tensor, Tensor] | None = None  # neighbours of items and their weights, both (N, k)
        self._penalty: Tensor | None = None

    def set_interactions(self, interactions: Interactions) -> None:
        """Count degrees, and find the neighbours of items."""
        of_user = torch.bincount(interactions.users, minlength=self.user_rows).float()
        of_item = torch.bincount(interactions.items, minlength=self.items.rows).float()
        self._factors = (of_user + 1).sqrt() / of_user.clamp(min=1), 1 / (of_item + 1).sqrt()
        self._near = item_neighbours(interactions, self.user_rows, self.items.rows, self.neighbours)

    def make_queries(self, batch: Batch) -> QueryBatch:
        queries = chosen_items(batch, self.items.name)
        if not self.training or not self.neighbour_weight:
            return queries
        assert self._near is not None, "set_interactions must be called before training"
        lengths = torch.zeros_like(queries.lengths)
        lengths.index_add_(0, queries.query_of_target, torch.full_like(queries.query_of_target, self.neighbours))
        return replace(queries, inputs=self._near[0][queries.targets].flatten(), lengths=lengths)

    def encode(self, batch: Batch, query_batch: QueryBatch, vectors: Tensor) -> Tensor:
        """Return queries (B, dim), the users' vectors. vectors: (P, dim) of the neighbours of all targets"""
        users = self.users(only(batch.sparse, [self.user]))[:, 0]
        if self.training and self.neighbour_weight:
            assert self._near is not None
            near = vectors.view(-1, self.neighbours, vectors.shape[1])
            scores = (near * users[query_batch.query_of_target][:, None]).sum(dim=2)  # (T, k)
            loss = self._near[1][query_batch.targets] * nn.functional.softplus(-scores)
            self._penalty = self.neighbour_weight * loss.sum() / max(len(loss), 1)
        return users

    def weights(self, batch: Batch, query_batch: QueryBatch, negatives: Tensor) -> tuple[Tensor, Tensor]:
        """Return the weights of targets, (T,), and of their negatives, (T, n). negatives: ids (n,) or (T, n)"""
        assert self._factors is not None, "set_interactions must be called before training"
        w1, w2, w3, w4 = self.pair_weights
        users = batch.sparse[self.user].values().long()[query_batch.query_of_target]
        of_user, of_item = self._factors[0][users], self._factors[1]
        positive = w1 + w2 * of_user * of_item[query_batch.targets]
        scale = self.negative_weight / negatives.shape[-1]
        return positive, scale * (w3 + w4 * of_user[:, None] * of_item[negatives])

    def penalty(self) -> Tensor | None:
        """Return the term of the neighbours of the last batch."""
        return self._penalty
