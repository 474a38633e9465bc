"""Matrix factorisation: Koren et al. 2009; with loss=bpr, Rendle et al. 2009, https://arxiv.org/abs/1205.2618."""

import torch
from torch import Tensor, nn

from recsys.batch import Batch
from recsys.features import FeatureSpec
from recsys.models.common.embeddings import PooledEmbeddings
from recsys.models.common.items import Items, QueryBatch
from recsys.models.common.pairs import chosen_items, only, user_feature
from recsys.models.protocols import RetrievalModel


class MF(nn.Module, RetrievalModel):
    """A vector a user and one an item, with a bias: the item's last column, against 1.

    user: the feature that tells who asks; by default the only one beside the items'.
    """

    def __init__(
        self,
        features: FeatureSpec,
        *,
        user: str | None = None,
        dim: int = 64,
        init_std: float = 0.01,
        device: torch.device | None = None,
    ) -> None:
        super().__init__()
        who = user_feature(features, user, "MF")
        alone = FeatureSpec(dense=(), sparse=(who,), labels=())
        self.users = PooledEmbeddings(alone, dim, prefix="user_", init_std=init_std, device=device)
        self.items = Items(features, dim + 1, about=False, init_std=init_std, device=device)
        self.user = who.name

    def make_queries(self, batch: Batch) -> QueryBatch:
        return chosen_items(batch, self.items.name)

    def encode(self, batch: Batch, query_batch: QueryBatch, vectors: Tensor) -> Tensor:
        """-> queries (B, dim + 1)."""
        users = self.users(only(batch.sparse, [self.user]))[:, 0]
        return torch.cat([users, users.new_ones(len(users), 1)], dim=1)
