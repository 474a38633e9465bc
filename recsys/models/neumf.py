"""NeuMF: He et al., Neural Collaborative Filtering, 2017, https://arxiv.org/abs/1708.05031."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from recsys.base.ranges import Deviation, Share, Width
from recsys.interface.batch import Batch
from recsys.interface.features import FeatureSpec
from recsys.models.common.embeddings import PooledEmbeddings
from recsys.models.common.items import Items, QueryBatch
from recsys.models.common.layers import MLP, Dropout
from recsys.models.common.pairs import chosen_items, only, user_feature
from recsys.models.protocols import RetrievalModel

MAX_HIDDEN = 1 << 22  # largest number of hidden values that a block of pairs may have


class PairScores(nn.Module):
    """Scorer of (user, item) pairs: a weighted product of `dim` columns of each and an MLP over the other `dim`.

    The MLP's first layer is linear in either side, so that it is computed once per item rather than once per pair.
    """

    def __init__(self, dim: int, mlp: Sequence[int], dropout: float) -> None:
        super().__init__()
        self.dim = dim
        self.of_user = nn.Linear(dim, mlp[0])
        self.of_item = nn.Linear(dim, mlp[0], bias=False)
        self.deep = nn.Sequential(nn.ReLU(), Dropout(dropout), MLP(mlp[0], mlp[1:], dropout=dropout))
        self.product = nn.Linear(dim, 1, bias=False)
        self.out = nn.Linear(mlp[-1], 1)

    def score_pairs(self, queries: Tensor, items: Tensor) -> Tensor:
        """Score pairs: (..., 2 dim), (..., 2 dim) -> (...)."""
        (user, deep_user), (item, deep_item) = queries.split(self.dim, -1), items.split(self.dim, -1)
        hidden = self.of_user(deep_user) + self.of_item(deep_item)
        return (self.product(user * item) + self.out(self.deep(hidden)))[..., 0]

    def score_all(self, queries: Tensor, items: Tensor) -> Tensor:
        """Score every item for every query, a block of queries at a time: (Q, 2 dim), (M, 2 dim) -> (Q, M)."""
        step = max(1, MAX_HIDDEN // (len(items) * self.of_user.out_features))
        (item, deep_item) = items.split(self.dim, 1)
        of_item = self.of_item(deep_item)
        rows = []
        for part in queries.split(step):
            user, deep_user = part.split(self.dim, 1)
            hidden = self.of_user(deep_user)[:, None, :] + of_item
            rows.append((user * self.product.weight) @ item.T + self.out(self.deep(hidden))[..., 0])
        return torch.cat(rows) if rows else queries.new_zeros(0, len(items))


class NeuMF(nn.Module, RetrievalModel):
    """Generalised matrix factorisation and an MLP in parallel, each with its own vectors.

    Args:
        user: name of the user feature; by default, the only single-valued feature other than the item.
        dim: width of a user's and of an item's vector, in each of the two parts.
        mlp: hidden widths of the MLP.
        dropout: share of the hidden units of the MLP that are dropped in training.
        init_std: standard deviation of the initial embeddings.
    """

    wider_than_dim = True

    def __init__(
        self,
        features: FeatureSpec,
        *,
        user: str | None = None,
        dim: Width = 32,
        mlp: Sequence[Width] = (64, 32, 16),
        dropout: Share = 0.0,
        init_std: Deviation = 0.01,
        device: torch.device | None = None,
    ) -> None:
        super().__init__()
        if not mlp:
            raise ValueError("mlp=[]: must have at least one width")
        who = user_feature(features, user, "NeuMF")
        alone = FeatureSpec(dense=(), sparse=(who,), labels=())
        self.users = PooledEmbeddings(alone, 2 * dim, prefix="user_", init_std=init_std, device=device)
        self.items = Items(features, 2 * dim, about=False, init_std=init_std, device=device)
        self.match = PairScores(dim, mlp, dropout)
        self.user = who.name

    @property
    def scorer(self) -> PairScores:
        return self.match  # the attribute is called `match` because checkpoints use that name

    def make_queries(self, batch: Batch) -> QueryBatch:
        return chosen_items(batch, self.items.name)

    def encode(self, batch: Batch, query_batch: QueryBatch, vectors: Tensor) -> Tensor:
        """Return queries (B, 2 dim): the users' vectors of both parts."""
        return self.users(only(batch.sparse, [self.user]))[:, 0]
