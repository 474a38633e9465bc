"""SLIM: Ning & Karypis, SLIM: Sparse Linear Methods for Top-N Recommender Systems, 2011,
https://doi.org/10.1109/ICDM.2011.134.
"""

import torch
from torch import Tensor, nn

from recsys.batch import JaggedIds
from recsys.features import FeatureSpec
from recsys.models.common.co_occurrence import (
    candidates,
    co_occurrences,
    distinct,
    ranges,
    starts,
    take_sizes_on_load,
)
from recsys.models.protocols import ClosedFormModel
from recsys.ranges import Count

_CHUNK = 256  # number of items whose weights are fitted at a time


class SLIM(nn.Module, ClosedFormModel):
    """Sparse, non-negative weights between items, fitted item by item by an elastic net.

    X (lists, N) is 1 where a list contains an item. Column j of W (N, N) minimises |x_j - X w|^2 / 2 + l2 |w|^2 / 2 +
    l1 |w|_1 with w >= 0 and w_j = 0, by coordinate descent. The scores of a history are its row of X times W.

    Args:
        l1: the greater it is, the fewer weights differ from 0; items that are together in at most l1 lists have none.
        l2: the greater it is, the smaller the weights of rare items are.
        sweeps: largest number of passes over the weights of an item.
        tolerance: stop when no weight changes by more than this.
    """

    item_starts: Tensor  # (N + 1,) int64: where the weights of each item of a history start
    others: Tensor  # (E,) int64: the items to whose scores they are added
    weights: Tensor  # (E,) float32

    def __init__(
        self,
        features: FeatureSpec,
        *,
        l1: float = 1.0,
        l2: float = 50.0,
        sweeps: Count = 30,
        tolerance: float = 1e-4,
        device: torch.device | None = None,
    ) -> None:
        super().__init__()
        if l1 < 0 or l2 <= 0:
            raise ValueError(f"l1={l1}, l2={l2}: l1 must be at least 0 and l2 above 0")
        self.rows = candidates(features, "SLIM")
        self.l1, self.l2, self.sweeps, self.tolerance = l1, l2, sweeps, tolerance
        self.register_buffer("item_starts", torch.zeros(self.rows + 1, dtype=torch.int64, device=device))
        self.register_buffer("others", torch.zeros(0, dtype=torch.int64, device=device))
        self.register_buffer("weights", torch.zeros(0, device=device))
        take_sizes_on_load(self, ("others", "weights"))

    def fit(self, interactions: JaggedIds) -> None:
        """Fit the weights of the items of each list."""
        blocks = co_occurrences(distinct(interactions, self.rows), self.rows, chunk=_CHUNK)
        gram = torch.cat([block for _, block in blocks]).coalesce()  # sparse (N, N)
        rows, columns = gram.indices()
        first = starts(torch.bincount(rows, minlength=self.rows))
        order = torch.argsort(gram.values()[rows == columns])  # items of like numbers of lists share their neighbours
        items = rows[rows == columns][order]
        found: list[tuple[Tensor, Tensor, Tensor]] = []
        for chunk in items.split(_CHUNK):
            places, owner = ranges(first[chunk], first[chunk + 1] - first[chunk])
            near = (gram.values()[places] > self.l1) & (columns[places] != chunk[owner])  # all other weights are 0
            places, owner = places[near], owner[near]
            used = torch.unique(columns[places])
            if not len(used):
                continue
            place_of = torch.full((self.rows,), -1).index_put_((used,), torch.arange(len(used)))
            target = torch.zeros(len(used), len(chunk))
            target[place_of[columns[places]], owner] = gram.values()[places].float()
            inner, inner_owner = ranges(first[used], first[used + 1] - first[used])
            inside = place_of[columns[inner]] >= 0
            square = torch.zeros(len(used), len(used))
            square[inner_owner[inside], place_of[columns[inner[inside]]]] = gram.values()[inner[inside]].float()
            weights = self._descend(square, target)
            row, column = weights.nonzero(as_tuple=True)
            found.append((used[row], chunk[column], weights[row, column]))
        row, column, weight = (torch.cat(x) for x in zip(*found, strict=True)) if found else (rows[:0],) * 3
        order = torch.argsort(row * self.rows + column)
        self.others, self.weights = column[order], weight[order].float()
        self.item_starts = starts(torch.bincount(row, minlength=self.rows))

    def _descend(self, gram: Tensor, target: Tensor) -> Tensor:
        """Return the weights (U, b) of b items: gram (U, U) of the items that may have some, target (U, b) with b."""
        weights, may = torch.zeros_like(target), target > self.l1
        diagonal = gram.diagonal()
        for _ in range(self.sweeps):
            before = weights.clone()
            for i in range(len(gram)):
                rest = target[i] - gram[i] @ weights + diagonal[i] * weights[i] - self.l1
                weights[i] = rest.clamp(min=0) / (diagonal[i] + self.l2) * may[i]
            if (weights - before).abs().max() <= self.tolerance:
                break
        return weights

    def score(self, history: JaggedIds) -> Tensor:
        """Return scores (B, N) for B histories; zeros for an empty history."""
        items = distinct(history, self.rows)
        begin = self.item_starts[items.values]
        places, owner = ranges(begin, self.item_starts[items.values + 1] - begin)
        scores = self.weights.new_zeros(len(items) * self.rows)
        scores.index_add_(0, items.segment_ids[owner] * self.rows + self.others[places], self.weights[places])
        return scores.view(len(items), self.rows)
