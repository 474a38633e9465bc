"""Popularity: the most chosen items, the same for every user. Every other recommender should beat it."""

import torch
from torch import Tensor, nn

from recsys.base.ranges import Age
from recsys.interface.ageing import Ageing
from recsys.interface.batch import ItemLists
from recsys.interface.features import FeatureSpec
from recsys.models.common.co_occurrence import candidates, known
from recsys.models.protocols import ClosedFormModel


class Popularity(nn.Module, ClosedFormModel):
    """Ranks items by the number of their interactions. An item that occurs twice in a list counts twice.

    Args:
        window: age from which interactions do not count.
        half_life: age at which an interaction counts half.
    """

    relates_items = False
    counts: Tensor  # (N,) float64

    def __init__(
        self,
        features: FeatureSpec,
        *,
        window: Age | None = None,
        half_life: Age | None = None,
        device: torch.device | None = None,
    ) -> None:
        super().__init__()
        self.ageing = Ageing.of(window, half_life)
        self.rows = candidates(features, "Popularity")
        self.register_buffer("counts", torch.zeros(self.rows, dtype=torch.float64, device=device))

    def fit(self, interactions: ItemLists) -> None:
        """Count the interactions of each item."""
        lists = known(interactions, self.rows)
        self.counts.copy_(torch.bincount(lists.values, lists.weights, minlength=self.rows))

    def score(self, history: ItemLists) -> Tensor:
        """Return the counts (B, N), the same for each of B histories."""
        return self.counts.float().repeat(len(history), 1)
