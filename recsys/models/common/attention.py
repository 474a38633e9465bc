"""Attention over lists of different lengths: linear layers see no padding, attention itself a padded block."""

import math

import torch
from torch import Tensor, nn

from recsys.batch import segment_ids_of


def padded(x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Lists one after another as a block, each from the left, zeros after: (P, d), (B,) -> (B, L, d), (P,) where in
    the block's B x L rows each value stands. L is the longest list's length, at least 1.
    """
    longest = max(int(lengths.max()), 1) if len(lengths) else 1
    at = segment_ids_of(lengths) * longest + from_start(lengths)
    block = x.new_zeros(len(lengths) * longest, x.shape[1]).index_copy(0, at, x)
    return block.view(len(lengths), longest, -1), at


def from_start(lengths: Tensor) -> Tensor:
    """(P,) the place of each value within its list."""
    starts = torch.repeat_interleave(lengths.cumsum(0) - lengths, lengths)
    return torch.arange(len(starts), device=lengths.device) - starts


def from_end(lengths: Tensor) -> Tensor:
    """(P,) how many values follow each within its list."""
    ends = torch.repeat_interleave(lengths.cumsum(0) - 1, lengths)
    return ends - torch.arange(len(ends), device=lengths.device)


class Attention(nn.Module):
    """Multi-head attention within each list (Vaswani et al. 2017, https://arxiv.org/abs/1706.03762).

    dropout: of what comes out. Not of the weights within, as the paper has it: kernels that keep no weights in memory
    (PyTorch's for CPUs) cannot drop any, and without them a step takes twice as long.

    queries and values (P, dim), lengths (B,) -> (P, dim)
    """

    def __init__(self, dim: int, heads: int, *, causal: bool, dropout: float = 0.0) -> None:
        super().__init__()
        if heads < 1 or dim % heads:
            raise ValueError(f"dim {dim} is not divisible by heads {heads}")
        self.heads, self.causal = heads, causal
        self.query = nn.Linear(dim, dim)
        self.key_value = nn.Linear(dim, 2 * dim)
        self.out = nn.Sequential(nn.Linear(dim, dim), nn.Dropout(dropout))

    def forward(self, queries: Tensor, values: Tensor, lengths: Tensor) -> Tensor:
        dim = queries.shape[1]
        block, at = padded(torch.cat([self.query(queries), self.key_value(values)], dim=1), lengths)
        q, k, v = (self._by_head(x) for x in block.split(dim, dim=2))
        mask = None
        if not self.causal:  # with causal attention, what pads a list comes after all that looks back
            mask = (torch.arange(block.shape[1], device=lengths.device) < lengths[:, None])[:, None, None, :]
            mask = mask | (lengths == 0)[:, None, None, None]
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=self.causal)
        return self.out(mixed.transpose(1, 2).reshape(-1, dim)[at])

    def _by_head(self, x: Tensor) -> Tensor:
        return x.unflatten(2, (self.heads, -1)).transpose(1, 2)


class RelativeAttention(nn.Module):
    """Attention that knows distances, not places (Dai et al. 2019, Transformer-XL, https://arxiv.org/abs/1901.02860;
    XLNet's is the same): value j has for query i the weight softmax of ((q_i + u) k_j + (q_i + v) r_(i-j)) / sqrt(d),
    where r is a linear map of sinusoids.

    The second term, a number for each pair and head, is a bias to PyTorch's attention. With one that is learnt, CPUs
    have no fused kernel: a step takes two to three times as long as Attention's. FlexAttention, which could compute
    it within the kernel, pays on GPUs alone, and there where the bias takes too much of their memory.

    queries and values (P, dim), lengths (B,) -> (P, dim)
    """

    def __init__(self, dim: int, heads: int, *, causal: bool, dropout: float = 0.0) -> None:
        super().__init__()
        if heads < 1 or dim % heads:
            raise ValueError(f"dim {dim} is not divisible by heads {heads}")
        self.heads, self.causal = heads, causal
        self.query = nn.Linear(dim, dim, bias=False)  # u and v are its biases
        self.key_value = nn.Linear(dim, 2 * dim)
        self.distance = nn.Linear(dim, dim, bias=False)
        self.u = nn.Parameter(torch.randn(heads, 1, dim // heads) * 0.02)
        self.v = nn.Parameter(torch.randn(heads, 1, dim // heads) * 0.02)
        self.out = nn.Sequential(nn.Linear(dim, dim), nn.Dropout(dropout))

    def forward(self, queries: Tensor, values: Tensor, lengths: Tensor) -> Tensor:
        dim = queries.shape[1]
        block, at = padded(torch.cat([self.query(queries), self.key_value(values)], dim=1), lengths)
        q, k, v = (x.unflatten(2, (self.heads, -1)).transpose(1, 2) for x in block.split(dim, dim=2))
        longest = block.shape[1]
        place = torch.arange(longest, device=lengths.device)
        if self.causal:
            seen = (place[:, None] >= place)[None, None]
        else:
            seen = ((place < lengths[:, None]) | (lengths == 0)[:, None])[:, None, None, :]
        r = self.distance(sinusoids(torch.arange(longest - 1, -longest - 1, -1, device=lengths.device), dim))
        bias = by_pair((q + self.v) @ r.unflatten(1, (self.heads, -1)).permute(1, 2, 0)) / math.sqrt(q.shape[3])
        bias = bias.masked_fill(~seen, -math.inf)
        mixed = nn.functional.scaled_dot_product_attention(q + self.u, k, v, attn_mask=bias)
        return self.out(mixed.transpose(1, 2).reshape(-1, dim)[at])


def sinusoids(distances: Tensor, dim: int) -> Tensor:
    """(M,) -> (M, dim): sines, then cosines, of wavelengths from 2 pi to 10000 times that."""
    rates = 10000 ** (-torch.arange(0, dim, 2, device=distances.device) / dim)
    angles = distances[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], dim=1)[:, :dim]


def by_pair(scores: Tensor) -> Tensor:
    """Scores of query i for distances L - 1, ..., -L to those for each value j, at distance i - j:
    (..., L, 2 L) -> (..., L, L). Row i starts L - 1 - i columns in: with rows one column shorter, all start at once.
    """
    n = scores.shape[-2]
    return scores.flatten(-2)[..., n - 1 : 2 * n * n - 1].unflatten(-1, (n, 2 * n - 1))[..., :n]
