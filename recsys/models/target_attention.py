"""Target attention: the multi-head attention of Vaswani et al., Attention Is All You Need, 2017,
https://arxiv.org/abs/1706.03762, with the item of a row as the only query, as in Chen et al., End-to-End User Behavior
Retrieval in Click-Through Rate Prediction Model, 2021, https://arxiv.org/abs/2108.04468.
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


class TargetAttention(nn.Module):
    """Deep network over the target, the result of its attention to the history, and all other features. That of an
    empty history is zero.

    Args:
        history: the history of each feature of the target, see DIN.
        dim: width of the embeddings.
        heads: of the attention; each has an equal part of the width, the pairs of `history` times `dim`.
        max_length: number of learnt position vectors, counted from the end; earlier items share the last one.
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
        dim: Width = 16,
        heads: Depth = 2,
        max_length: Length = 200,
        deep_mlp: Sequence[Width] = (128, 64),
        batch_norm: bool = False,
        dropout: Share = 0.0,
        init_std: Deviation | None = None,
        device: torch.device | None = None,
    ) -> None:
        super().__init__()
        self.embeddings = BehaviourEmbeddings(
            features, history, dim, model="TargetAttention", init_std=init_std, device=device
        )
        width = self.embeddings.width
        self.places = PlacesFromEnd(max_length, width, init_std=0.02)
        self.attention = QueryAttention(width, heads, dropout=dropout)
        self.deep = MLP(2 * width + self.embeddings.other_width, deep_mlp, batch_norm=batch_norm, dropout=dropout)
        self.logits = nn.Linear(self.deep.out_features, features.logits)

    def forward(self, dense: Tensor, sparse: KeyedJaggedTensor) -> Tensor:
        """Return logits: dense (B, D), sparse with F keys of B bags -> (B, T)."""
        target, history, lengths, others = self.embeddings(dense, sparse)
        interest = self.attention(target, history + self.places(lengths, history.shape[0]), lengths)  # (B, W)
        return self.logits(self.deep(torch.cat([others, target, interest], dim=1)))
