"""Items as codes: a module that looks codes up, a trie of the codes that exist, and scores of the items of a beam."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from recsys.candidates import Candidates
from recsys.features import FeatureSpec

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
