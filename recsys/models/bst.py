"""BST: Chen et al., Behavior Sequence Transformer for E-commerce Recommendation in Alibaba, 2019,
https://arxiv.org/abs/1905.06874.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recsys.base.ranges import Depth, Deviation, Length, Share, Width
from recsys.interface.features import FeatureSpec
from recsys.models.common.attention import Attention, PlacesFromEnd
from recsys.models.common.behaviour import BehaviourEmbeddings
from recsys.models.common.layers import MLP, Dropout
from recsys.models.common.lists import first_values, with_first


class BstBlock(nn.Module):
    """Self-attention, then a feed-forward network, each followed by a residual and a norm."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.attention = Attention(width, heads, causal=False, dropout=dropout)
        self.between = nn.LayerNorm(width)
        self.feed_forward = nn.Sequential(
            nn.Linear(width, 4 * width), nn.LeakyReLU(), nn.Linear(4 * width, width), Dropout(dropout)
        )
        self.after = nn.LayerNorm(width)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """Transform the states of B lists: (P, W), lengths (B,) -> (P, W)."""
        x = self.between(x + self.attention(x, x, lengths))
        return self.after(x + self.feed_forward(x))


class BST(nn.Module):
    """Transformer over the history and the target, whose final state enters a deep network with the target itself and
    all other features. The target attends to itself alone if the history is empty.

    An item's position is its distance to the target in items; the paper takes the time between them. The paper gives
    the states of a fixed number of items to the deep network, and this implementation only the target's, which depends
    on all others and needs no padding.

    Args:
        history: the history of each feature of the target, see DIN.
        dim: width of the embeddings.
        blocks: number of transformer blocks; the paper finds one to be best.
        heads: of the attention; each has an equal part of the width, the pairs of `history` times `dim`.
        max_length: number of learnt position vectors of items; earlier items share the last one.
        deep_mlp: hidden widths of the deep network; a linear layer to the T logits follows.
        batch_norm: whether to normalise the hidden layers of the deep network over the batch.
        dropout: share of values that are dropped in training, in the transformer and in the deep network.
        init_std: standard deviation of the initial embeddings; None for a uniform distribution in +-1/sqrt(rows).
    """

    def __init__(
        self,
        features: FeatureSpec,
        *,
        history: Mapping[str, str] | None = None,
        dim: Width = 16,
        blocks: Depth = 1,
        heads: Depth = 2,
        max_length: Length = 200,
        deep_mlp: Sequence[Width] = (128, 64),
        batch_norm: bool = False,
        dropout: Share = 0.0,
        init_std: Deviation | None = None,
        device: torch.device | None = None,
    ) -> None:
        super().__init__()
        self.embeddings = BehaviourEmbeddings(features, history, dim, model="BST", init_std=init_std, device=device)
        width = self.embeddings.width
        self.transformer = BstTransformer(width, blocks, heads, max_length, dropout)
        self.deep = MLP(2 * width + self.embeddings.other_width, deep_mlp, batch_norm=batch_norm, dropout=dropout)
        self.logits = nn.Linear(self.deep.out_features, features.logits)

    def forward(self, dense: Tensor, sparse: KeyedJaggedTensor) -> Tensor:
        """Return logits: dense (B, D), sparse with F keys of B bags -> (B, T)."""
        target, history, lengths, others = self.embeddings(dense, sparse)
        state = self.transformer(target, history, lengths)  # (B, W)
        return self.logits(self.deep(torch.cat([others, target, state], dim=1)))


class BstTransformer(nn.Module):
    """Transformer over lists of the target, in position 0, and its history; the target's state is the result.

    Args:
        width: width W of the states.
        blocks: number of blocks.
        heads: number of heads of the attention; it must divide `width`.
        max_length: number of learnt position vectors of the history; earlier items share the last one.
        dropout: share of values that are dropped in training, of the input and in each block.
    """

    def __init__(self, width: int, blocks: int, heads: int, max_length: int, dropout: float) -> None:
        super().__init__()
        self.places = PlacesFromEnd(1 + max_length, width, init_std=0.02)
        self.dropout = Dropout(dropout)
        self.blocks = nn.ModuleList(BstBlock(width, heads, dropout) for _ in range(blocks))

    def forward(self, target: Tensor, history: Tensor, lengths: Tensor) -> Tensor:
        """Return the state of each target: target (B, W), history (P, W), lengths (B,) -> (B, W)."""
        first = target + self.places.weight[0]
        with with_first(first, history + self.places(lengths, history.shape[0], first=1), lengths) as (x, longer):
            x = self.dropout(x)
            for block in self.blocks:
                x = block(x, longer)
            return first_values(x, longer)
