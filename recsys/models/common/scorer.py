"""Scores of queries and item vectors."""

from torch import Tensor, nn


class Scorer(nn.Module):
    """Dot products of queries and item vectors."""

    def score_all(self, queries: Tensor, items: Tensor) -> Tensor:
        """Score every item for every query: (Q, d), (M, d) -> (Q, M)."""
        return queries @ items.T

    def score_pairs(self, queries: Tensor, items: Tensor) -> Tensor:
        """Score pairs: (..., d), (..., d) -> (...)."""
        return (queries * items).sum(dim=-1)
