"""Transitions between items: Han et al., An Embarrassingly Simple Graph Heuristic Reveals Shortcut-Solvable Benchmarks
for Sequential Recommendation, 2026, https://arxiv.org/abs/2605.07125; here ranked by counts, not by features of items.
"""

import torch
from torch import Tensor, nn

from recsys.batch import JaggedIds, segment_ids_of
from recsys.features import FeatureSpec
from recsys.models.common.co_occurrence import candidates, known, sparse_matrix, starts, take_sizes_on_load
from recsys.models.protocols import ClosedFormModel
from recsys.ranges import Depth


class Transition(nn.Module, ClosedFormModel):
    """Items that followed the last items of a history, directly or by way of a few others.

    Row i of P (N, N) has the shares of the items that came next among the transitions from item i to another item.
    Unknown items are skipped. An item's score is the sum of its entries in x P, hop_weight x P^2, ..., where x is 1 at
    the last item, and smaller at the ones before.

    Args:
        items: number of last items that count.
        item_weight: weight of the item before, relative to the last one; its square for the one before that, and so on.
        hops: longest path from one of these items to another.
        hop_weight: weight of a path, relative to one that is a step shorter.
        backward: weight of a transition in the other direction, from an item to one that it followed.
    """

    item_starts: Tensor  # (N + 1,) int64: where the followers of each item start
    followers: Tensor  # (E,) int64
    shares: Tensor  # (E,) float32: P at these pairs

    def __init__(
        self,
        features: FeatureSpec,
        *,
        items: Depth = 2,
        item_weight: float = 0.5,
        hops: Depth = 2,
        hop_weight: float = 0.3,
        backward: float = 0.0,
        device: torch.device | None = None,
    ) -> None:
        super().__init__()
        for name, weight in (("item_weight", item_weight), ("hop_weight", hop_weight), ("backward", backward)):
            if not 0 <= weight <= 1:
                raise ValueError(f"{name}={weight}: must be from 0 to 1")
        self.last, self.item_weight, self.hops, self.hop_weight = items, item_weight, hops, hop_weight
        self.backward = backward
        self.rows = candidates(features, "Transition")
        self.register_buffer("item_starts", torch.zeros(self.rows + 1, dtype=torch.int64, device=device))
        self.register_buffer("followers", torch.zeros(0, dtype=torch.int64, device=device))
        self.register_buffer("shares", torch.zeros(0, device=device))
        take_sizes_on_load(self, ("followers", "shares"))

    def fit(self, interactions: JaggedIds) -> None:
        """Count the transitions of all lists, oldest item first."""
        lists = known(interactions, self.rows)
        within = lists.segment_ids[1:] == lists.segment_ids[:-1]
        before, after = lists.values[:-1][within], lists.values[1:][within]
        rows, columns = torch.cat([before, after]), torch.cat([after, before])
        weights = torch.ones(len(rows), dtype=torch.float64)
        weights[len(before) :] = self.backward
        moves = (rows != columns) & (weights > 0)
        keys, place = torch.unique(rows[moves] * self.rows + columns[moves], return_inverse=True)
        sums = torch.zeros(len(keys), dtype=torch.float64).index_add_(0, place, weights[moves])
        rows, self.followers = keys // self.rows, keys % self.rows
        out = torch.zeros(self.rows, dtype=torch.float64).index_add_(0, rows, sums)
        self.shares = (sums / out[rows]).float()
        self.item_starts = starts(torch.bincount(rows, minlength=self.rows))

    def score(self, history: JaggedIds) -> Tensor:
        """Return scores (B, N) for B histories, oldest item first; zeros for an empty history."""
        items = known(history, self.rows)
        ends = starts(items.lengths)[1:]
        reached = torch.zeros(len(items), self.rows)
        for back in range(self.last):
            has = items.lengths > back
            reached[has.nonzero()[:, 0], items.values[ends[has] - 1 - back]] += self.item_weight**back
        rows = segment_ids_of(self.item_starts.diff())
        steps = sparse_matrix(rows, self.followers, (self.rows, self.rows), self.shares).t()
        scores = torch.zeros_like(reached)
        for hop in range(self.hops):
            reached = torch.sparse.mm(steps, reached.T).T
            scores += self.hop_weight**hop * reached
        return scores
