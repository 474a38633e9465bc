"""Two towers: Covington et al. 2016, https://dl.acm.org/doi/10.1145/2959100.2959190; Yi et al. 2019,
https://dl.acm.org/doi/10.1145/3298689.3346996 (in-batch softmax corrected for how often items are drawn).
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from recsys.batch import Batch
from recsys.candidates import Candidates
from recsys.features import FeatureSpec
from recsys.models.common.embeddings import PooledEmbeddings
from recsys.models.common.items import Items, QueryBatch
from recsys.models.common.layers import MLP, flat_width, flatten
from recsys.models.common.pairs import beside_items, chosen_items, only
from recsys.models.protocols import RetrievalModel


class ItemTower(nn.Module):
    """ids (M,) -> (M, out): a network over the item's vector by id and features."""

    def __init__(self, items: Items, dim: int, mlp: Sequence[int], out: int, *, normalise: bool) -> None:
        super().__init__()
        self.vectors = items
        self.deep = _tower(dim, mlp, out)
        self.normalise = normalise

    @property
    def rows(self) -> int:
        return self.vectors.rows

    @property
    def candidates(self) -> Candidates | None:
        return self.vectors.candidates

    @candidates.setter
    def candidates(self, candidates: Candidates | None) -> None:
        self.vectors.candidates = candidates

    def forward(self, ids: Tensor) -> Tensor:
        x = self.deep(self.vectors(ids))
        return nn.functional.normalize(x, dim=1) if self.normalise else x


class TwoTower(nn.Module, RetrievalModel):
    """One network over what is known of who asks (all features but the items'), one over what is known of an item
    (its id and data.items); the score is the product of the two.

    user_mlp, item_mlp: hidden widths; a linear layer to `out` follows.
    Features of a held-out row are those of the first interaction that it asks for: only what was known before it (who,
    where, `last`, `lag`) may be among them, or the answer is.

    normalise: both to length 1, so that scores are cosines; the loss then needs a temperature near 0.05.
    """

    def __init__(
        self,
        features: FeatureSpec,
        *,
        dim: int = 32,
        user_mlp: Sequence[int] = (128,),
        item_mlp: Sequence[int] = (128,),
        out: int = 64,
        normalise: bool = True,
        init_std: float = 0.02,
        device: torch.device | None = None,
    ) -> None:
        super().__init__()
        self.user_features = beside_items(features, "TwoTower")
        self.users = None
        if self.user_features.sparse:
            self.users = PooledEmbeddings(self.user_features, dim, prefix="user_", init_std=init_std, device=device)
        self.deep = _tower(flat_width(self.user_features, dim), user_mlp, out)
        own = Items(features, dim, init_std=init_std, device=device)
        self.item, self.normalise = own.name, normalise
        self.items = ItemTower(own, dim, item_mlp, out, normalise=normalise)

    def make_queries(self, batch: Batch) -> QueryBatch:
        return chosen_items(batch, self.item)

    def encode(self, batch: Batch, query_batch: QueryBatch, vectors: Tensor) -> Tensor:
        """-> queries (B, out)."""
        x = batch.dense
        if self.users is not None:
            x = flatten(x, self.users(only(batch.sparse, [f.name for f in self.user_features.sparse])))
        x = self.deep(x)
        return nn.functional.normalize(x, dim=1) if self.normalise else x


def _tower(width: int, mlp: Sequence[int], out: int) -> nn.Module:
    hidden = MLP(width, mlp)
    return nn.Sequential(hidden, nn.Linear(hidden.out_features, out))
