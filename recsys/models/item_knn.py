"""ItemKNN: Deshpande & Karypis, Item-Based Top-N Recommendation Algorithms, 2004,
https://doi.org/10.1145/963770.963776.
"""

import torch
from pydantic import NonNegativeFloat
from torch import Tensor, nn

from recsys.base.ranges import Age, Count
from recsys.interface.ageing import Ageing
from recsys.interface.batch import ItemLists
from recsys.interface.features import FeatureSpec
from recsys.models.common.co_occurrence import best_of_rows, candidates, co_occurrences, distinct
from recsys.models.protocols import ClosedFormModel

_CHUNK = 1024  # number of items whose neighbours are computed at a time


class ItemKNN(nn.Module, ClosedFormModel):
    """Nearest items to the items of a history, by the cosine similarity of the lists that contain them.

    Two items that are in n_i and n_j lists, and together in n_ij, have the similarity n_ij / (sqrt(n_i n_j) + shrink).
    A list of m items counts 1 / m in these numbers, as the paper scales the rows of its matrix to length 1. Each item
    of a history adds the similarities of its k nearest items to their scores.

    Args:
        k: number of neighbours kept per item; ties go to the lower id.
        shrink: the greater it is, the less the similarities of rare items count.
        weigh_lists: whether a list counts the less, the longer it is; false: each list counts 1.
        normalise: divide each item's kept similarities by their sum, so that all items have an equal vote.
        window: age from which interactions do not count.
        half_life: age at which an interaction counts half; two items of a list count the root of their product in n_ij.
    """

    neighbours: Tensor  # (N, k) int64, nearest first
    similarities: Tensor  # (N, k) float32, 0 if an item has fewer neighbours

    def __init__(
        self,
        features: FeatureSpec,
        *,
        k: Count = 50,
        shrink: NonNegativeFloat = 0.3,
        weigh_lists: bool = True,
        normalise: bool = False,
        window: Age | None = None,
        half_life: Age | None = None,
        device: torch.device | None = None,
    ) -> None:
        super().__init__()
        self.rows = candidates(features, "ItemKNN")
        self.shrink = shrink
        self.weigh_lists = weigh_lists
        self.normalise = normalise
        self.ageing = Ageing.of(window, half_life)
        size = (self.rows, min(k, self.rows))
        self.register_buffer("neighbours", torch.zeros(size, dtype=torch.int64, device=device))
        self.register_buffer("similarities", torch.zeros(size, device=device))

    def fit(self, interactions: ItemLists) -> None:
        """Find the k nearest neighbours of each item."""
        lists = distinct(interactions, self.rows)
        weights = lists.lengths.double().clamp(min=1).reciprocal() if self.weigh_lists else None
        counts = None if weights is None else weights[lists.segment_ids]
        if lists.weights is not None:
            counts = lists.weights if counts is None else counts * lists.weights
        roots = None if lists.weights is None else lists.weights.sqrt()
        root = torch.bincount(lists.values, counts, minlength=self.rows).double().sqrt()
        self.neighbours.zero_()
        self.similarities.zero_()
        for start, block in co_occurrences(lists, self.rows, chunk=_CHUNK, weights=weights, roots=roots):
            one, other = block.indices()
            similarity = block.values() / (root[one + start] * root[other] + self.shrink)
            similarity = (
                similarity.float()
            )  # so that equal similarities are equal, in whatever order they were added up
            one, other, similarity = (x[one + start != other] for x in (one, other, similarity))
            kept, rank = best_of_rows(one, similarity, self.neighbours.shape[1])
            self.neighbours[one[kept] + start, rank] = other[kept]
            self.similarities[one[kept] + start, rank] = similarity[kept]
        if self.normalise:
            self.similarities /= self.similarities.sum(dim=1, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny)

    def score(self, history: ItemLists) -> Tensor:
        """Return scores (B, N) for B histories; zeros for an empty history."""
        items = distinct(history, self.rows)
        scores = self.similarities.new_zeros(len(items) * self.rows)
        places = items.segment_ids[:, None] * self.rows + self.neighbours[items.values]  # (P, k)
        scores.index_add_(0, places.flatten(), self.similarities[items.values].flatten())
        return scores.view(len(items), self.rows)
