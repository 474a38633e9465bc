"""Matrix factorisation: Koren et al., Matrix Factorization Techniques for Recommender Systems, 2009,
https://doi.org/10.1109/MC.2009.263. With loss=bpr, Rendle et al., BPR: Bayesian Personalized Ranking from Implicit
Feedback, 2009, https://arxiv.org/abs/1205.2618.
"""

import torch
from torch import Tensor, nn

from recsys.base.ranges import Deviation, Width
from recsys.interface.batch import Batch
from recsys.interface.features import FeatureSpec
from recsys.models.common.embeddings import PooledEmbeddings
from recsys.models.common.items import Items, QueryBatch
from recsys.models.common.pairs import chosen_items, only, user_feature
from recsys.models.protocols import RetrievalModel


class MF(nn.Module, RetrievalModel):
    """Dot product of a user vector and an item vector, plus an item bias.

    The bias is the last element of the item vector; the last element of every query is 1. With `normalise`, scores are
    cosines without a bias, as loss=cosine_contrastive needs them.

    Args:
        user: name of the user feature; by default, the only single-valued feature other than the item.
        dim: width of the vectors of users and items, without the bias.
        normalise: whether to scale the vectors to length 1.
        init_std: standard deviation of the initial embeddings.
    """

    wider_than_dim = True

    def __init__(
        self,
        features: FeatureSpec,
        *,
        user: str | None = None,
        dim: Width = 64,
        normalise: bool = False,
        init_std: Deviation = 0.01,
        device: torch.device | None = None,
    ) -> None:
        super().__init__()
        who = user_feature(features, user, "MF")
        alone = FeatureSpec(dense=(), sparse=(who,), labels=())
        self.users = PooledEmbeddings(alone, dim, prefix="user_", init_std=init_std, device=device)
        width = dim if normalise else dim + 1
        self.items = Items(features, width, about=False, normalise=normalise, init_std=init_std, device=device)
        self.user, self.normalise = who.name, normalise

    def make_queries(self, batch: Batch) -> QueryBatch:
        return chosen_items(batch, self.items.name)

    def encode(self, batch: Batch, query_batch: QueryBatch, vectors: Tensor) -> Tensor:
        """Return queries (B, dim + 1): a user's vector and a 1 for the item bias; (B, dim) with `normalise`."""
        users = self.users(only(batch.sparse, [self.user]))[:, 0]
        if self.normalise:
            return nn.functional.normalize(users, dim=1)
        return torch.cat([users, users.new_ones(users.shape[0], 1)], dim=1)
