"""RankMixer: Zhu et al., RankMixer: Scaling Up Ranking Models in Industrial Recommenders, 2025,
https://arxiv.org/abs/2507.15551.
"""

import torch
from torch import Tensor, nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recsys.base.ranges import Depth, Deviation, Share, Width
from recsys.interface.features import FeatureSpec
from recsys.models.common.embeddings import PooledEmbeddings
from recsys.models.common.layers import Dropout, flat_width, flatten, require_sparse


class PerToken(nn.Module):
    """A linear layer of its own for each token: (B, tokens, width) -> (B, tokens, out)."""

    def __init__(self, tokens: int, width: int, out: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(tokens, width, out).uniform_(-(width**-0.5), width**-0.5))
        self.bias = nn.Parameter(torch.zeros(tokens, out))

    def forward(self, x: Tensor) -> Tensor:
        """Project each token by its own weights: (B, tokens, width) -> (B, tokens, out)."""
        return torch.einsum("btw,two->bto", x, self.weight) + self.bias


class MixerBlock(nn.Module):
    """LN(mix(S) + S), then LN(FFN(S) + S) with a feed-forward network for each token: (B, tokens, width), the same.

    Mixing has no weights: token h of the result is made of the h-th part of every token, so that there are as many
    parts as tokens (equations 3 to 7).
    """

    def __init__(self, tokens: int, width: int, ratio: int, dropout: float) -> None:
        super().__init__()
        self.tokens = tokens
        self.norm_mixed, self.norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.up, self.down = PerToken(tokens, width, ratio * width), PerToken(tokens, ratio * width, width)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Mix the tokens, then transform each: (B, tokens, width) -> (B, tokens, width)."""
        mixed = x.unflatten(2, (self.tokens, -1)).transpose(1, 2).flatten(2)
        x = self.norm_mixed(mixed + x)
        return self.norm(self.dropout(self.down(nn.functional.gelu(self.up(x)))) + x)


class RankMixer(nn.Module):
    """Tokens made of all features, mixed without attention.

    The concatenated dense features and embeddings are cut into `tokens` parts of equal width, each with a projection of
    its own. The mean of the last block's tokens gives the logits. The paper's sparse mixture of experts is left out.

    Args:
        dim: width of the embeddings.
        tokens: number of tokens; it must divide `width`.
        width: width of a token.
        blocks: number of blocks.
        ratio: hidden width of a feed-forward network over the width of a token.
        dropout: share of the outputs of each feed-forward network that are dropped in training.
        init_std: standard deviation of the initial embeddings; None for a uniform distribution in +-1/sqrt(rows).
    """

    def __init__(
        self,
        features: FeatureSpec,
        *,
        dim: Width = 16,
        tokens: Depth = 8,
        width: Width = 64,
        blocks: Depth = 2,
        ratio: Depth = 2,
        dropout: Share = 0.0,
        init_std: Deviation | None = None,
        device: torch.device | None = None,
    ) -> None:
        super().__init__()
        require_sparse(features, "RankMixer")
        if width % tokens:
            raise ValueError(f"tokens={tokens}: does not divide width={width}")
        self.embeddings = PooledEmbeddings(features, dim, init_std=init_std, device=device)
        self.tokens = tokens
        self.part = -(-flat_width(features, dim) // tokens)
        self.padding = tokens * self.part - flat_width(features, dim)
        self.to_tokens = PerToken(tokens, self.part, width)
        self.blocks = nn.Sequential(*(MixerBlock(tokens, width, ratio, dropout) for _ in range(blocks)))
        self.logits = nn.Linear(width, features.logits)

    def forward(self, dense: Tensor, sparse: KeyedJaggedTensor) -> Tensor:
        """Return logits: dense (B, D), sparse with F keys of B bags -> (B, T)."""
        x = nn.functional.pad(flatten(dense, self.embeddings(sparse)), (0, self.padding))
        return self.logits(self.blocks(self.to_tokens(x.unflatten(1, (self.tokens, self.part)))).mean(dim=1))
