"""Attention over lists of different lengths: linear layers see no padding, attention itself a padded block."""

import torch
from torch import Tensor, nn


def padded(x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Lists one after another as a block, each from the left, zeros after: (P, d), (B,) -> (B, L, d), (P,) where in
    the block's B x L rows each value stands. L is the longest list's length, at least 1.
    """
    longest = max(int(lengths.max()), 1) if len(lengths) else 1
    owners = torch.repeat_interleave(torch.arange(len(lengths), device=x.device), lengths)
    at = owners * longest + from_start(lengths)
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
