"""SIM with hard search: Pi et al., Search-based User Interest Modeling with Lifelong Sequential Behavior Data for
Click-Through Rate Prediction, 2020, https://arxiv.org/abs/2006.05639.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recsys.base.ranges import Depth, Deviation, Length, Share, Width
from recsys.interface.features import FeatureSpec
from recsys.models.common.attention import PlacesFromEnd, QueryAttention
from recsys.models.common.behaviour import BehaviourEmbeddings
from recsys.models.common.layers import MLP
from recsys.models.common.lists import first_kept, from_end, repeat_rows


class HardSearch(nn.Module):
    """The last k items of each history whose category is that of the target."""

    def __init__(self, k: int) -> None:
        super().__init__()
        self.k = k

    def forward(self, target: Tensor, history: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Find items by category: target (B,), history (P,), lengths (B,).

        Returns:
            The index in the history of each item found, (N,), and their number in each row, (B,).
        """
        same = history == repeat_rows(target[:, None], lengths, history.shape[0])[:, 0]
        at, found = first_kept(torch.arange(history.shape[0], device=history.device), same, lengths)
        return first_kept(at, from_end(found, at.shape[0]) < self.k, found)


class SIM(nn.Module):
    """Deep network over the target, its attention to the items of a long history that have its category, and all other
    features. If there is no such item, the result of the attention is zero.

    The paper also gives each item the time since it, for which the number of later items stands in here, and models the
    last few items by DIEN; to read those, add a feature with a small `last`, which is pooled.

    Args:
        history: the history of each feature of the target, see DIN.
        category: the feature of the target by which the history is searched; None for the one with the smallest table.
        k: the number of items that are kept, the last ones.
        dim: width of the embeddings.
        heads: of the attention; each has an equal part of the width, the pairs of `history` times `dim`.
        max_length: number of learnt position vectors, counted from the end of the history; earlier items share the
            last one.
        deep_mlp: hidden widths of the deep network; a linear layer to the T logits follows.
        batch_norm: whether to normalise the hidden layers of the deep network over the batch.
        dropout: share of values that are dropped in training, in the attention and in the deep network.
        init_std: standard deviation of the initial embeddings; None for a uniform distribution in +-1/sqrt(rows).
    """

    def __init__(
        self,
        features: FeatureSpec,
        *,
        history: Mapping[str, str] | None = None,
        category: str | None = None,
        k: Length = 50,
        dim: Width = 16,
        heads: Depth = 2,
        max_length: Length = 1000,
        deep_mlp: Sequence[Width] = (200, 80),
        batch_norm: bool = False,
        dropout: Share = 0.0,
        init_std: Deviation | None = None,
        device: torch.device | None = None,
    ) -> None:
        super().__init__()
        self.embeddings = BehaviourEmbeddings(features, history, dim, model="SIM", init_std=init_std, device=device)
        pairs = self.embeddings.pairs
        if category is None and len(pairs) == 1:
            raise ValueError(
                f"SIM searches the history for the target's category, but it only has {next(iter(pairs))}; add the "
                "category of each item to the history, or set model.category"
            )
        if category is not None and category not in pairs:
            raise ValueError(f"category={category}: has no history; there are {', '.join(pairs)}")
        self.category = category or min(pairs, key=lambda name: features.feature(name).cardinality)
        self.categories = pairs[self.category]
        width = self.embeddings.width
        self.search = HardSearch(k)
        self.places = PlacesFromEnd(max_length, width, init_std=0.02)
        self.attention = QueryAttention(width, heads, dropout=dropout)
        self.deep = MLP(2 * width + self.embeddings.other_width, deep_mlp, batch_norm=batch_norm, dropout=dropout)
        self.logits = nn.Linear(self.deep.out_features, features.logits)

    def forward(self, dense: Tensor, sparse: KeyedJaggedTensor) -> Tensor:
        """Return logits: dense (B, D), sparse with F keys of B bags -> (B, T)."""
        target, history, lengths, others = self.embeddings(dense, sparse)
        at, found = self.search(sparse[self.category].values(), sparse[self.categories].values(), lengths)
        interest = self.attention(
            target, (history + self.places(lengths, history.shape[0])).index_select(0, at), found
        )  # (B, W)
        return self.logits(self.deep(torch.cat([others, target, interest], dim=1)))
