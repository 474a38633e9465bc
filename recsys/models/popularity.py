"""Popularity: what most have chosen, the same for everyone; the floor under every other recommender."""

import torch
from torch import Tensor, nn

from recsys.batch import JaggedIds
from recsys.features import FeatureSpec
from recsys.models.common.co_occurrence import candidates, known
from recsys.models.protocols import ClosedFormModel


class Popularity(nn.Module, ClosedFormModel):
    """An item's score is the number of its interactions; one that is twice in a list counts twice.

    history of B lists -> scores (B, N), whatever the history
    """

    counts: Tensor  # (N,) int64

    def __init__(self, features: FeatureSpec, *, device: torch.device | None = None) -> None:
        super().__init__()
        self.rows = candidates(features, "Popularity")
        self.register_buffer("counts", torch.zeros(self.rows, dtype=torch.int64, device=device))

    def fit(self, interactions: JaggedIds) -> None:
        self.counts.copy_(torch.bincount(known(interactions, self.rows).values, minlength=self.rows))

    def score(self, history: JaggedIds) -> Tensor:
        return self.counts.float().repeat(len(history), 1)
