"""Layers of an encoder and a decoder over codes of items: each item of a list is a slot of L tokens."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial

import torch
from torch import Tensor, nn

from recsys.models.common.attention import Attention, attend, mix_padded
from recsys.models.common.layers import Dropout
from recsys.models.common.lists import padded_length, padded_to

Cache = tuple[Tensor, Tensor]  # keys and values (B, H, S, d)


@contextmanager
def tokens_of_items(levels: int) -> Iterator[None]:
    """Within the block, a list has a place for each token, not for each item, if lists are padded."""
    length = padded_length()
    with nullcontext() if length is None else padded_to(length * levels):
        yield


class FeedForward(nn.Sequential):
    """Two linear layers with ReLU between them."""

    def __init__(self, dim: int, hidden: int, dropout: float) -> None:
        super().__init__(nn.Linear(dim, hidden), nn.ReLU(), Dropout(dropout), nn.Linear(hidden, dim), Dropout(dropout))


class EncoderLayer(nn.Module):
    """Causal self-attention and a feed-forward network, each after a norm and with its residual."""

    def __init__(self, dim: int, heads: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.attention = Attention(dim, heads, causal=True, dropout=dropout)
        self.feed_forward = FeedForward(dim, hidden, dropout)
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(2))

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """Transform the states of B lists: (P, dim), lengths (B,) -> (P, dim)."""
        normed = self.norms[0](x)
        x = x + self.attention(normed, normed, lengths)
        return x + self.feed_forward(self.norms[1](x))


class CrossAttention(nn.Module):
    """Multi-head attention from the tokens of a decoder to the states of an encoder."""

    def __init__(self, dim: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(dim, dim)
        self.key_value = nn.Linear(dim, 2 * dim)
        self.out = nn.Sequential(nn.Linear(dim, dim), Dropout(dropout))

    def forward(self, x: Tensor, states: Tensor, lengths: Tensor, levels: int) -> Tensor:
        """Attend from each slot of B lists to the slots up to its own, all (P, dim) -> (P, dim).

        Args:
            x: the decoder's tokens.
            states: the encoder's states.
            lengths: (B,) tokens of each list, multiples of `levels`.
            levels: the tokens of a slot.
        """
        padded = partial(self._mixed, levels=levels)
        return self.out(mix_padded(padded, lengths, torch.cat([self.query(x), self.key_value(states)], dim=1)))

    def _mixed(self, block: Tensor, lengths: Tensor, levels: int) -> Tensor:
        """Attend within padded lists: queries, keys and values (B, S, 3 dim), lengths (B,) -> (B * S, dim)."""
        q, k, v = (x.unflatten(2, (self.heads, -1)).transpose(1, 2) for x in block.chunk(3, dim=2))
        slot = torch.arange(block.shape[1], device=block.device) // levels
        return attend(q, k, v, slot[:, None] >= slot).transpose(1, 2).flatten(2).flatten(0, 1)

    def keys_values(self, block: Tensor) -> Cache:
        """Return the keys and values of padded states: (B, S, dim) -> two of (B, H, S, dim / H)."""
        k, v = (x.unflatten(2, (self.heads, -1)).transpose(1, 2) for x in self.key_value(block).chunk(2, dim=2))
        return k, v

    def step(self, x: Tensor, cache: Cache, mask: Tensor) -> Tensor:
        """Attend from the tokens of W beams to the same states: (B, W, dim), mask (B, 1, 1, S) -> (B, W, dim)."""
        q = self.query(x).unflatten(2, (self.heads, -1)).transpose(1, 2)
        return self.out(attend(q, *cache, mask).transpose(1, 2).flatten(2))


class SlotAttention(nn.Module):
    """Causal multi-head attention among the L tokens of a slot."""

    def __init__(self, dim: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.query_key_value = nn.Linear(dim, 3 * dim)
        self.out = nn.Sequential(nn.Linear(dim, dim), Dropout(dropout))

    def forward(self, x: Tensor) -> Tensor:
        """Attend within slots: (P, L, dim) -> (P, L, dim)."""
        q, k, v = (y.unflatten(2, (self.heads, -1)).transpose(1, 2) for y in self.query_key_value(x).chunk(3, dim=2))
        return self.out(attend(q, k, v, is_causal=True).transpose(1, 2).flatten(2))

    def step(self, x: Tensor, cache: Cache | None) -> tuple[Tensor, Cache]:
        """Attend from the newest token of W beams to their tokens: (B, W, dim) -> (B, W, dim), and the new cache.

        cache: keys and values of each beam's earlier tokens, (B, W, H, tokens, dim / H); None for the first token
        """
        q, k, v = (y.unflatten(2, (self.heads, 1, -1)) for y in self.query_key_value(x).chunk(3, dim=2))
        if cache is not None:
            k, v = torch.cat([cache[0], k], dim=3), torch.cat([cache[1], v], dim=3)
        weights = ((q * k).sum(dim=4, keepdim=True) / q.shape[4] ** 0.5).softmax(dim=3)
        return self.out((weights * v).sum(dim=3).flatten(2)), (k, v)


class DecoderLayer(nn.Module):
    """Attention within a slot, attention to the encoder and a feed-forward network, each after a norm."""

    def __init__(self, dim: int, heads: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.own = SlotAttention(dim, heads, dropout)
        self.cross = CrossAttention(dim, heads, dropout)
        self.feed_forward = FeedForward(dim, hidden, dropout)
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(3))

    def forward(self, x: Tensor, states: Tensor, lengths: Tensor) -> Tensor:
        """Transform the tokens of P slots: (P, L, dim), states (P * L, dim), lists of (B,) tokens -> (P, L, dim)."""
        x = x + self.own(self.norms[0](x))
        mixed = self.cross(self.norms[1](x).flatten(0, 1), states, lengths, x.shape[1])
        x = x + mixed.view_as(x)
        return x + self.feed_forward(self.norms[2](x))

    def step(self, x: Tensor, own: Cache | None, states: Cache, mask: Tensor) -> tuple[Tensor, Cache]:
        """Transform the newest token of W beams: (B, W, dim) -> (B, W, dim), and the new cache."""
        mixed, own = self.own.step(self.norms[0](x), own)
        x = x + mixed
        x = x + self.cross.step(self.norms[1](x), states, mask)
        return x + self.feed_forward(self.norms[2](x)), own
