"""FuXi-alpha: Ye et al., FuXi-alpha: Scaling Recommendation Model with Feature Interaction Enhanced Transformer, 2025,
https://arxiv.org/abs/2502.03036.
"""

import torch
from torch import Tensor, nn

from recsys.models.common.attention import mix_padded, time_buckets
from recsys.models.common.layers import Dropout, SwiGLU
from recsys.models.hstu import HSTU, TIME_BUCKETS

EPSILON = 1e-6


class RMSNorm(nn.Module):
    """Divide each row by its root mean square; PyTorch's has a kernel of its own only on GPUs."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalized rows: (P, dim) -> (P, dim)."""
        return x * (x.square().mean(dim=1, keepdim=True) + EPSILON).rsqrt()


class FuXiBlock(nn.Module):
    """Attention with separate channels for contents, positions and times, then a feed-forward network in two stages.

    The weights of contents are SiLU(Q K^T) / N for each head; the weights of positions and times are learnt numbers for
    each distance and for each bucket of the time between two values, which all heads share. The channels' values are
    concatenated and gated.

    Args:
        dim: width of the states.
        heads: number of heads of the attention; it must divide `dim`.
        dropout: share of the values that are dropped in training, before each stage.
        length: N, also the number of distances; larger ones share the last.
        timed: whether there is a channel for times.
    """

    def __init__(self, dim: int, heads: int, dropout: float, length: int, *, timed: bool) -> None:
        super().__init__()
        if heads < 1 or dim % heads:
            raise ValueError(f"dim={dim} is not divisible by heads={heads}")
        self.heads, self.length = heads, length
        wide = (3 if timed else 2) * dim
        self.norm = RMSNorm()
        self.uvqk = nn.Linear(dim, wide + 3 * dim, bias=False)
        self.distances = nn.Parameter(torch.randn(length) * 0.02)
        self.spans = nn.Parameter(torch.randn(TIME_BUCKETS) * 0.02) if timed else None
        self.merge = nn.Sequential(Dropout(dropout), nn.Linear(wide, dim))
        self.feed_forward = nn.Sequential(RMSNorm(), Dropout(dropout), SwiGLU(dim, dim, 0.0))
        nn.init.normal_(self.uvqk.weight, std=0.02)
        nn.init.xavier_uniform_(self.merge[1].weight)  # type: ignore[arg-type]

    def forward(self, x: Tensor, lengths: Tensor, times: Tensor | None = None) -> Tensor:
        """Transform the states of B lists: (P, dim), lengths (B,), times (P,) of the values -> (P, dim)."""
        dim = x.shape[1]
        u, vqk = nn.functional.silu(self.uvqk(self.norm(x))).tensor_split([self.uvqk.out_features - 3 * dim], dim=1)
        more = [] if times is None or self.spans is None else [times[:, None]]
        x = x + self.merge(u * self.norm(mix_padded(self._mixed, lengths, vqk, *more)))
        return x + self.feed_forward(x)

    def _mixed(self, vqk: Tensor, *more: Tensor) -> Tensor:
        """Attend within padded lists: (B, L, 3 * dim), times (B, L, 1) -> (B * L, channels * dim)."""
        v, q, k = (part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in vqk.chunk(3, dim=2))
        place = torch.arange(vqk.shape[1], device=vqk.device)
        back = place[:, None] - place[None, :]
        seen = back >= 0
        weights = nn.functional.silu(q @ k.transpose(2, 3)) / self.length * seen
        channels = [(self.distances[back.clamp(0, self.length - 1)] * seen) @ v]
        if self.spans is not None:
            channels.append((self.spans[time_buckets(more[0][:, :, 0], TIME_BUCKETS)] * seen)[:, None] @ v)
        mixed = torch.cat([*channels, weights @ v], dim=3)  # (B, heads, L, channels * dim / heads)
        return mixed.transpose(1, 2).flatten(2).flatten(0, 1)


class FuXiAlpha(HSTU):
    """Causal blocks of FuXi-alpha over the items of a list; each state is the query for the next item.

    Arguments are HSTU's; without `times`, there is no channel for them.
    """

    block = FuXiBlock
