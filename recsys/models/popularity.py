"""Popularity: what most have chosen, the same for everyone; the floor under every other recommender."""

import torch
from torch import Tensor, nn

from recsys.batch import Lists
from recsys.features import FeatureSpec
from recsys.models.common.co_occurrence import candidates, known


class Popularity(nn.Module):
    """An item's score is the number of its interactions; one that is twice in a list counts twice.

    history of B lists -> scores (B, N), whatever the history
    """

    counts: Tensor  # (N,) int64

    def __init__(self, features: FeatureSpec, *, device: torch.device | None = None) -> None:
        super().__init__()
        self.rows = candidates(features, "Popularity")
        self.register_buffer("counts", torch.zeros(self.rows, dtype=torch.int64, device=device))

    def fit(self, interactions: Lists) -> None:
        self.counts.copy_(torch.bincount(known(interactions, self.rows).values, minlength=self.rows))

    def rate(self, history: Lists) -> Tensor:
        return self.counts.float().repeat(len(history), 1)
