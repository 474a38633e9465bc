"""LightGCN: He et al., LightGCN: Simplifying and Powering Graph Convolution Network for Recommendation, 2020,
https://arxiv.org/abs/2002.02126.
"""

from typing import Annotated

import torch
from pydantic import Field, NonNegativeFloat
from torch import Tensor, nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recsys.base.ranges import Deviation, Width
from recsys.interface.batch import Batch, CandidateIds, Interactions, item_rows
from recsys.interface.features import FeatureSpec
from recsys.models.common.co_occurrence import SymmetricProduct, normalised_adjacency
from recsys.models.common.embeddings import PooledEmbeddings
from recsys.models.common.items import Items, QueryBatch
from recsys.models.common.pairs import chosen_items, user_feature
from recsys.models.protocols import RetrievalModel


class PropagatedItems(nn.Module):
    """Item vectors of LightGCN: in training they are propagated in each call, otherwise those of the last `refresh`.

    Args:
        features: features with the user and the item.
        user: name of the user feature.
        dim: width of the vectors.
        layers: number of sparse products.
        normalise: whether to scale the propagated vectors to length 1.
        init_std: standard deviation of the initial embeddings.
    """

    item_vectors: Tensor  # (N, dim)

    def __init__(
        self,
        features: FeatureSpec,
        user: str,
        dim: int,
        layers: int,
        normalise: bool,
        init_std: float,
        device: torch.device | None = None,
    ) -> None:
        super().__init__()
        alone = FeatureSpec(dense=(), sparse=(features.feature(user),), labels=())
        self.users = PooledEmbeddings(alone, dim, prefix="user_", init_std=init_std, device=device)
        self.table = Items(features, dim, about=False, init_std=init_std, device=device)
        self.register_buffer("item_vectors", torch.zeros(self.table.rows, dim))
        self.user, self.user_rows = user, features.feature(user).cardinality
        self.name, self.rows, self.layers, self.normalise = self.table.name, self.table.rows, layers, normalise
        self.candidates = None
        self.adjacency: Tensor | None = None  # (U + N, U + N)
        # of the last call in training: user vectors (U, dim) after and before the products, and the squared lengths of
        # the items' embeddings, ()
        self.current: tuple[Tensor, Tensor, Tensor] | None = None

    def forward(self, ids: CandidateIds) -> Tensor:
        """Return item vectors: ids (M,) -> (M, dim)."""
        known = item_rows(ids, self.rows)
        if not self.training:
            return self.item_vectors[known]
        start, vectors = self.propagate()
        users = vectors[: self.user_rows]
        squares = start[self.user_rows + known].square().sum()
        self.current = users, start[: self.user_rows], squares
        return vectors[self.user_rows + known]

    def propagate(self) -> tuple[Tensor, Tensor]:
        """Return the embeddings of all users and items, and the mean of all layers (of length 1 with `normalise`), both
        (U + N, dim).
        """
        assert self.adjacency is not None, "set_interactions must be called before training"
        device = self.adjacency.device
        every_user = KeyedJaggedTensor(
            [self.user],
            torch.arange(self.user_rows, dtype=torch.int32, device=device),
            lengths=torch.ones(self.user_rows, dtype=torch.int32, device=device),
        )
        users = self.users(every_user)[:, 0]
        x = start = torch.cat([users, self.table(torch.arange(self.rows, device=device))])
        total = start
        for _ in range(self.layers):
            x = SymmetricProduct.apply(self.adjacency, x)
            total = total + x
        return start, nn.functional.normalize(total, dim=1) if self.normalise else total / (self.layers + 1)


class LightGCN(nn.Module, RetrievalModel):
    """Dot product of a user vector and an item vector, both means over `layers` products with the normalised graph.

    Each step propagates the embeddings of all users and items. The propagated vectors are buffers, so that a checkpoint
    can be evaluated, exported and served without the graph. The paper trains with loss=bpr. With `normalise`, scores
    are cosines, for loss=sampled_softmax with a temperature, or loss=cosine_contrastive.

    Args:
        user: name of the user feature; by default, the only single-valued feature other than the item.
        dim: width of the vectors.
        layers: number of sparse products; 0 is matrix factorisation.
        l2: weight of half the squared lengths of the embeddings of a step's users, targets and negatives, divided by
            the number of targets.
        normalise: whether to scale the propagated vectors to length 1.
        init_std: standard deviation of the initial embeddings.
    """

    reads_interactions = True
    user_vectors: Tensor  # (U, dim)

    def __init__(
        self,
        features: FeatureSpec,
        *,
        user: str | None = None,
        dim: Width = 64,
        layers: Annotated[int, Field(ge=0, le=16)] = 3,
        l2: NonNegativeFloat = 1e-4,
        normalise: bool = False,
        init_std: Deviation = 0.1,
        device: torch.device | None = None,
    ) -> None:
        super().__init__()
        who = user_feature(features, user, "LightGCN")
        self.items = PropagatedItems(features, who.name, dim, layers, normalise, init_std, device)
        self.register_buffer("user_vectors", torch.zeros(who.cardinality, dim))
        self.user, self.l2 = who.name, l2
        self._penalty: Tensor | None = None

    def set_interactions(self, interactions: Interactions) -> None:
        """Build the graph."""
        items = self.items
        items.adjacency = normalised_adjacency(interactions, items.user_rows, items.rows)

    def refresh(self) -> None:
        """Store the propagated vectors of all users and items; without items, an unknown user has the users' mean."""
        if self.items.adjacency is None:
            return
        has_items = self.items.adjacency.crow_indices().diff()[: self.items.user_rows] > 0
        with torch.no_grad():
            vectors = self.items.propagate()[1]
            self.user_vectors.copy_(vectors[: self.items.user_rows])
            if not has_items[0]:
                self.user_vectors[0] = self.user_vectors[has_items].mean(dim=0)
            self.items.item_vectors.copy_(vectors[self.items.user_rows :])

    def make_queries(self, batch: Batch) -> QueryBatch:
        return chosen_items(batch, self.items.name)

    def encode(self, batch: Batch, query_batch: QueryBatch, vectors: Tensor) -> Tensor:
        """Return queries (B, dim), the users' vectors."""
        users = batch.sparse[self.user].values().long()
        if not self.training:
            return self.user_vectors[users]
        assert self.items.current is not None
        current, start, squares = self.items.current
        chosen = query_batch.query_of_target
        squares = squares + start[users[chosen]].square().sum()
        self._penalty = self.l2 / 2 * squares / max(len(chosen), 1)
        self.items.current = None
        return current[users]

    def penalty(self) -> Tensor | None:
        """Return the L2 term of the last batch."""
        return self._penalty
