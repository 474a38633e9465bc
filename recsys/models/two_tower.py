"""Two towers: Covington et al., Deep Neural Networks for YouTube Recommendations, 2016,
https://dl.acm.org/doi/10.1145/2959100.2959190, and Yi et al., Sampling-Bias-Corrected Neural Modeling for Large Corpus
Item Recommendations, 2019, https://dl.acm.org/doi/10.1145/3298689.3346996 (in-batch softmax, corrected for the
frequency of items).
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from recsys.base.ranges import Deviation, Width
from recsys.interface.batch import Batch
from recsys.interface.candidates import Candidates
from recsys.interface.features import FeatureSpec
from recsys.models.common.embeddings import PooledEmbeddings
from recsys.models.common.items import Items, QueryBatch
from recsys.models.common.layers import MLP, flat_width, flatten
from recsys.models.common.lists import list_means
from recsys.models.common.pairs import chosen_items, history_features, only, user_features, with_histories
from recsys.models.protocols import RetrievalModel


class ItemTower(nn.Module):
    """Network over the vector of an item, which is made of its id and its features.

    Args:
        items: vectors of the items, of width `dim`.
        mlp: hidden widths; a linear layer to `out` follows.
        out: width of the result.
        normalise: whether to scale the result to length 1.
    """

    def __init__(self, items: Items, dim: int, mlp: Sequence[int], out: int, *, normalise: bool) -> None:
        super().__init__()
        self.vectors = items
        self.deep = _tower(dim, mlp, out)
        self.normalise = normalise

    @property
    def rows(self) -> int:
        """Rows of the item table."""
        return self.vectors.rows

    @property
    def candidates(self) -> Candidates | None:
        return self.vectors.candidates

    @candidates.setter
    def candidates(self, candidates: Candidates | None) -> None:
        self.vectors.candidates = candidates

    def forward(self, ids: Tensor) -> Tensor:
        """Return item vectors: ids (M,) -> (M, out)."""
        x = self.deep(self.vectors(ids))
        return nn.functional.normalize(x, dim=1) if self.normalise else x


class TwoTower(nn.Module, RetrievalModel):
    """Dot product of a network over the user's features and a network over the item's id and features (data.items).

    The user's features are all features except the item's. A history, a feature that shares the item's table, is the
    mean of the vectors that the item tower gives to its items. For a held-out row they have the values of the first
    interaction to predict: use only features that are known before it (user, place, `last`, `lag`); others leak the
    answer.

    Args:
        dim: width of the embeddings that the towers read.
        user_mlp: hidden widths of the user tower; a linear layer to `out` follows.
        item_mlp: hidden widths of the item tower; a linear layer to `out` follows.
        out: width of queries and item vectors.
        normalise: whether to scale queries and item vectors to length 1, so that scores are cosines; the loss then
            needs a temperature near 0.05.
        init_std: standard deviation of the initial embeddings.
    """

    def __init__(
        self,
        features: FeatureSpec,
        *,
        dim: Width = 32,
        user_mlp: Sequence[Width] = (128,),
        item_mlp: Sequence[Width] = (128,),
        out: Width = 64,
        normalise: bool = True,
        init_std: Deviation = 0.02,
        device: torch.device | None = None,
    ) -> None:
        super().__init__()
        self.user_features = user_features(features, "TwoTower", histories=True)
        self.histories = history_features(features)
        self.users = None
        if self.user_features.sparse:
            self.users = PooledEmbeddings(self.user_features, dim, prefix="user_", init_std=init_std, device=device)
        self.deep = _tower(flat_width(self.user_features, dim) + len(self.histories) * out, user_mlp, out)
        items = Items(features, dim, init_std=init_std, device=device)
        self.item, self.normalise = items.name, normalise
        self.items = ItemTower(items, dim, item_mlp, out, normalise=normalise)

    def make_queries(self, batch: Batch) -> QueryBatch:
        queries = chosen_items(batch, self.item)
        if not self.histories:
            return queries
        return with_histories(queries, batch, self.histories, self.item, training=self.training)

    def encode(self, batch: Batch, query_batch: QueryBatch, vectors: Tensor) -> Tensor:
        """Return queries (B, out)."""
        x = batch.dense
        if self.users is not None:
            x = flatten(x, self.users(only(batch.sparse, [f.name for f in self.user_features.sparse])))
        if self.histories:
            means = list_means(vectors, query_batch.lengths)
            x = torch.cat([x, *means.unflatten(0, (len(self.histories), -1))], dim=1)
        x = self.deep(x)
        return nn.functional.normalize(x, dim=1) if self.normalise else x


def _tower(width: int, mlp: Sequence[int], out: int) -> nn.Module:
    hidden = MLP(width, mlp)
    return nn.Sequential(hidden, nn.Linear(hidden.out_features, out))
