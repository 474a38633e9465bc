"""SessionKNN (SKNN and V-SKNN): Ludewig & Jannach, Evaluation of Session-based Recommendation Algorithms, 2018,
https://arxiv.org/abs/1803.09587.
"""

from typing import Literal

import torch
from torch import Tensor, nn

from recsys.base.ranges import Count
from recsys.interface.batch import ItemLists
from recsys.interface.features import FeatureSpec
from recsys.models.common.co_occurrence import candidates, distinct, invert, known, ranges, starts, take_sizes_on_load
from recsys.models.protocols import ClosedFormModel


class SessionKNN(nn.Module, ClosedFormModel):
    """Items of the past sessions nearest to the current one.

    Among the past sessions that share an item with the current one, take the `sample_size` most recent, and of these
    the k most similar as neighbours; ties go to the more recent. An item's score is the sum of the similarities of the
    neighbours that contain it. Sessions count as sets. The later in `fit` a session is, the more recent; recsys passes
    them in the order of their last items (data.group.order).

    Args:
        k: number of neighbours.
        sample_size: number of recent sessions to compare.
        weighting: "linear" gives the p-th of the current session's L items the weight p / L, "none" gives each 1.
        similarity: "dot" is the sum of the weights over shared items; "cosine" divides it by the norms of both
            sessions, so that long sessions have no advantage. linear and dot are the paper's V-SKNN, none and cosine
            its SKNN.
    """

    items: Tensor  # (P,) int64: items of M sessions, concatenated
    item_starts: Tensor  # (M + 1,) int64
    sessions: Tensor  # (P,) int64: for each of N items, the sessions that contain it, oldest first
    session_starts: Tensor  # (N + 1,) int64

    def __init__(
        self,
        features: FeatureSpec,
        *,
        k: Count = 100,
        sample_size: Count = 5000,
        weighting: Literal["linear", "none"] = "linear",
        similarity: Literal["dot", "cosine"] = "cosine",
        device: torch.device | None = None,
    ) -> None:
        super().__init__()
        if sample_size < k:
            raise ValueError(f"sample_size={sample_size}: must be at least k={k}")
        self.k = k
        self.sample_size = sample_size
        self.linear = weighting == "linear"
        self.cosine = similarity == "cosine"
        self.rows = candidates(features, "SessionKNN")
        sizes = {"items": 0, "item_starts": 1, "sessions": 0, "session_starts": self.rows + 1}
        for name, size in sizes.items():
            self.register_buffer(name, torch.zeros(size, dtype=torch.int64, device=device))
        take_sizes_on_load(self, ("items", "item_starts", "sessions"))

    def fit(self, interactions: ItemLists) -> None:
        """Store the sessions of each item and the items of each session."""
        lists = distinct(interactions, self.rows)
        inverse = invert(lists, self.rows)
        self.items, self.item_starts = lists.values, starts(lists.lengths)
        self.sessions, self.session_starts = inverse.values, starts(inverse.lengths)

    def score(self, history: ItemLists) -> Tensor:
        """Return scores (B, N) for B histories, oldest item first; zeros if a history shares no item with any
        session.
        """
        current = known(history, self.rows)
        scores = torch.zeros(len(history), self.rows, device=self.items.device)
        for row, items in zip(scores, current.values.split(current.lengths.tolist()), strict=True):
            if not len(items):
                continue
            distinct_items, place = torch.unique(items, return_inverse=True)
            positions = torch.arange(1, len(items) + 1, device=items.device)
            last = torch.zeros_like(distinct_items).scatter_reduce(0, place, positions, "amax")
            weights = last.double() / len(items) if self.linear else torch.ones_like(last, dtype=torch.float64)
            # the most recent sessions overall are among the most recent ones of each item: older ones can be left out
            stop = self.session_starts[distinct_items + 1]
            begin = torch.maximum(self.session_starts[distinct_items], stop - self.sample_size)
            places, owner = ranges(begin, stop - begin)
            sessions, shared = torch.unique(self.sessions[places], return_inverse=True)
            similarity = weights.new_zeros(len(sessions)).index_add_(0, shared, weights[owner])
            sessions, similarity = sessions[-self.sample_size :].flip(0), similarity[-self.sample_size :].flip(0)
            if self.cosine:
                lengths = self.item_starts[sessions + 1] - self.item_starts[sessions]
                similarity = similarity / (weights.norm() * lengths.double().sqrt())
            # rounded, so that ties are broken by age
            order = torch.argsort(similarity.round(decimals=9), descending=True, stable=True)[: self.k]
            sessions, similarity = sessions[order], similarity[order].float()
            begin = self.item_starts[sessions]  # add the similarities to the scores of the items of the neighbours
            places, owner = ranges(begin, self.item_starts[sessions + 1] - begin)
            row.index_add_(0, self.items[places], similarity[owner])
        return scores
