"""Items as codes: the trie of the codes that exist, and layers of an encoder and a decoder over codes."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from recsys.interface.candidates import Candidates
from recsys.interface.features import FeatureSpec
from recsys.models.common.attention import Attention, attend, mix_padded
from recsys.models.common.layers import Dropout
from recsys.models.common.lists import padded_length, padded_to

UNIT = 2.0**-30  # ids and codes are stored in this unit, exactly, so that they do not count in similarities of vectors
CODE = "semantic_"


@dataclass(frozen=True)
class CodeTrie:
    """The codes of all items as a tree: a node for each prefix, node 0 being the empty one.

    children: for each level, (nodes, C) int32, the child for each code: a node of the next level or, at the last level,
        an item; -1 for a code that no item has after this prefix
    paths: (N, L), the node of each item's prefix before each level; 0 for items without codes
    """

    children: tuple[Tensor, ...]
    paths: Tensor

    @classmethod
    def from_codes(cls, codes: Tensor) -> "CodeTrie":
        """Build the trie of items 0 ... N - 1. Items whose codes are all 0 have none and are left out.

        Args:
            codes: (N, L) integers.

        Raises:
            ValueError: two items have the same codes.
        """
        size = int(codes.max()) + 1 if codes.numel() else 1
        items = codes.any(dim=1).nonzero()[:, 0]
        node = torch.zeros(len(items), dtype=torch.long, device=codes.device)
        nodes, children, paths = 1, [], torch.zeros_like(codes, dtype=torch.long)
        for level in range(codes.shape[1]):
            paths[items, level] = node
            keys, child = torch.unique(node * size + codes[items, level], return_inverse=True)
            if level == codes.shape[1] - 1 and len(keys) < len(items):
                raise ValueError(
                    f"{len(items) - len(keys):,} of {len(items):,} items have the codes of another item; set "
                    "data.semantic_ids.unique=true"
                )
            table = torch.full((nodes * size,), -1, dtype=torch.int32, device=codes.device)
            table[keys] = torch.arange(len(keys), dtype=torch.int32, device=codes.device)
            if level == codes.shape[1] - 1:
                table[keys[child]] = items.int()
            children.append(table.view(nodes, size))
            node, nodes = child, len(keys)
        return cls(tuple(children), paths)


class CodedItems(nn.Module):
    """Items as their semantic ids: the features semantic_1, semantic_2, ... of data.semantic_ids.

    An item's vector is the sum of its codes' embeddings, which metrics of lists compare, then its id and its codes in
    UNITs. Set `candidates` before the first call.

    Args:
        dim: width of the embeddings.
        init_std: standard deviation of their initial values.
    """

    def __init__(self, features: FeatureSpec, dim: int, *, init_std: float) -> None:
        super().__init__()
        if features.item is None or features.items is None:
            raise ValueError("this model reads semantic ids of items: set data.semantic_ids")
        coded = [f for f in features.items.sparse if f.name.removeprefix(CODE).isdigit()]
        if not coded:
            raise ValueError("this model reads semantic ids of items: set data.semantic_ids")
        feature = features.feature(features.item)
        self.name, self.rows = feature.name, feature.cardinality
        self.levels = tuple(f.name for f in coded)
        self.size = max(f.cardinality for f in coded)
        self.embeddings = nn.Embedding(len(coded) * self.size, dim)
        nn.init.normal_(self.embeddings.weight, std=init_std)
        self._candidates: Candidates | None = None
        self.codes: Tensor | None = None
        self.trie: CodeTrie | None = None

    @property
    def candidates(self) -> Candidates | None:
        """The candidates, whose codes the trie holds. Raises ValueError if two of them have the same codes."""
        return self._candidates

    @candidates.setter
    def candidates(self, candidates: Candidates | None) -> None:
        self._candidates = candidates
        if candidates is not None:
            self.codes = torch.stack([candidates.values[n].long() for n in self.levels], dim=1)
            self.trie = CodeTrie.from_codes(self.codes)

    def embed(self, codes: Tensor, level: int | None = None) -> Tensor:
        """Return the embeddings of codes (..., L), or (...) of one level -> (..., L, dim) or (..., dim)."""
        first = torch.arange(len(self.levels), device=codes.device) * self.size if level is None else level * self.size
        vectors: Tensor = self.embeddings(codes + first)
        return vectors

    def forward(self, ids: Tensor) -> Tensor:
        """Return item vectors: ids (M,) -> (M, dim + 1 + L)."""
        assert self.codes is not None
        codes = self.codes[ids]
        numbers = torch.cat([ids[:, None], codes], dim=1).float() * UNIT
        return torch.cat([self.embed(codes).sum(dim=1).float(), numbers], dim=1)

    def codes_of(self, vectors: Tensor) -> Tensor:
        """Return the codes of items from their vectors: (P, dim + 1 + L) -> (P, L)."""
        return (vectors[:, -len(self.levels) :] / UNIT).round().long()


class BeamScorer(nn.Module):
    """Scores of the items that a beam search found; minus infinity for all others.

    Queries are (..., 2 W): the ids of W items, then the logarithms of their probabilities.

    Args:
        levels: the number of codes of an item.
    """

    def __init__(self, levels: int) -> None:
        super().__init__()
        self.levels = levels

    def _ids(self, items: Tensor) -> Tensor:
        return (items[..., -1 - self.levels] / UNIT).round()

    def score_all(self, queries: Tensor, items: Tensor) -> Tensor:
        """Score items for every query: (Q, 2 W), (M, d) -> (Q, M). The items' ids are consecutive."""
        found, scores = queries.chunk(2, dim=1)
        table = queries.new_full((len(queries), len(items) + 1), -torch.inf)
        if len(items):
            column = (found - self._ids(items[:1])).long()
            table.scatter_(1, torch.where((column >= 0) & (column < len(items)), column, len(items)), scores)
        return table[:, :-1]

    def score_pairs(self, queries: Tensor, items: Tensor) -> Tensor:
        """Score pairs: (..., 2 W), (..., d) -> (...)."""
        found, scores = queries.chunk(2, dim=-1)
        return torch.where(found == self._ids(items)[..., None], scores, -torch.inf).amax(dim=-1)

    def log_likelihood(self, queries: Tensor) -> Tensor:
        """Return the logarithm of the probability of each query's target: in training, queries (Q, L) -> (Q,)."""
        return queries.sum(dim=1)


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
