"""SimpleX: Mao et al., SimpleX: A Simple and Strong Baseline for Collaborative Filtering, 2021,
https://arxiv.org/abs/2109.12613.
"""

import torch
from torch import Tensor, nn

from recsys.base.ranges import Deviation, Share, Width
from recsys.interface.batch import Batch
from recsys.interface.features import FeatureSpec
from recsys.models.common.embeddings import PooledEmbeddings
from recsys.models.common.items import Items, QueryBatch, next_items
from recsys.models.common.layers import Dropout
from recsys.models.common.lists import list_means
from recsys.models.common.pairs import chosen_items, only, user_feature
from recsys.models.protocols import RetrievalModel


class SimpleX(nn.Module, RetrievalModel):
    """Cosine of an item vector and a user vector, which mixes a vector of its own with those of the user's items.

    The query is `own` times the user's vector plus (1 - own) times a linear map of the mean of the vectors of all items
    of the list, scaled to length 1. In training the list contains the targets, as in the original implementation. The
    mean is that of item vectors of length 1; the original takes it before they are scaled.

    Args:
        user: name of the user feature; by default, the only single-valued feature other than the item.
        dim: width of the vectors of users and items.
        own: weight of the user's own vector (g in the paper).
        dropout: share of the elements of the mixed vector that are dropped in training.
        init_std: standard deviation of the initial embeddings.
    """

    def __init__(
        self,
        features: FeatureSpec,
        *,
        user: str | None = None,
        dim: Width = 64,
        own: Share = 0.5,
        dropout: Share = 0.1,
        init_std: Deviation = 0.01,
        device: torch.device | None = None,
    ) -> None:
        super().__init__()
        who = user_feature(features, user, "SimpleX")
        self.items = Items(features, dim, about=False, normalise=True, init_std=init_std, device=device)
        if not features.feature(self.items.name).sequence:
            raise ValueError("SimpleX reads lists of items: set data.sequences.max_length")
        alone = FeatureSpec(dense=(), sparse=(who,), labels=())
        self.users = PooledEmbeddings(alone, dim, prefix="user_", init_std=init_std, device=device)
        self.map = nn.Linear(dim, dim, bias=False)
        self.dropout = Dropout(dropout)
        self.user, self.own = who.name, own

    def make_queries(self, batch: Batch) -> QueryBatch:
        lists = batch.sparse[self.items.name]
        items, lengths = lists.values().long(), lists.lengths().long()
        if not self.training:
            return next_items(items, lengths, every=False)
        queries = chosen_items(batch, self.items.name)
        places = torch.arange(len(items), device=items.device)
        return QueryBatch(items, lengths, places, queries.at, queries.targets, queries.query_of_target)

    def encode(self, batch: Batch, query_batch: QueryBatch, vectors: Tensor) -> Tensor:
        """Return queries (B, dim) of length 1: vectors (P, dim) of the items of B lists."""
        users = self.users(only(batch.sparse, [self.user]))[:, 0]
        users = nn.functional.normalize(users, dim=1)
        behaviour = self.map(list_means(vectors, query_batch.lengths))
        mixed = self.dropout(self.own * users + (1 - self.own) * behaviour)
        return nn.functional.normalize(mixed, dim=1)
