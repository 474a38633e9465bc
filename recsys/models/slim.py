"""SLIM: Ning & Karypis, SLIM: Sparse Linear Methods for Top-N Recommender Systems, 2011,
https://doi.org/10.1109/ICDM.2011.134.
"""

import torch
from pydantic import NonNegativeFloat, PositiveFloat
from torch import Tensor, nn

from recsys.base.ranges import Count, Depth
from recsys.interface.batch import ItemLists
from recsys.interface.features import FeatureSpec
from recsys.models.common import co_occurrence
from recsys.models.protocols import ClosedFormModel

_CHUNK = 1024  # number of items whose co-occurrences are counted at a time
_NUMBERS = 2**24  # of the matrices of the neighbours of items that are fitted at a time


class SLIM(nn.Module, ClosedFormModel):
    """Sparse, non-negative weights between items, fitted item by item by an elastic net.

    X (lists, N) is 1 where a list contains an item. Column j of W (N, N) minimises |x_j - X w|^2 / 2 + l2 |w|^2 / 2 +
    l1 |w|_1 with w >= 0 and w_j = 0; at most `sweeps` passes of coordinate descent come near it. The scores of a
    history are its row of X times W.

    Args:
        neighbours: number of items most like an item, by the cosine of their columns of X, that may have a weight in
            its column (fsSLIM in the paper); time and memory grow with its square.
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
        neighbours: Depth = 200,
        l1: NonNegativeFloat = 1.0,
        l2: PositiveFloat = 10.0,
        sweeps: Count = 30,
        tolerance: NonNegativeFloat = 1e-4,
        device: torch.device | None = None,
    ) -> None:
        super().__init__()
        self.rows = co_occurrence.candidates(features, "SLIM")
        self.l1, self.l2, self.sweeps, self.tolerance = l1, l2, sweeps, tolerance
        self.neighbours = neighbours
        self.register_buffer("item_starts", torch.zeros(self.rows + 1, dtype=torch.int64, device=device))
        self.register_buffer("others", torch.zeros(0, dtype=torch.int64, device=device))
        self.register_buffer("weights", torch.zeros(0, device=device))
        co_occurrence.take_sizes_on_load(self, ("others", "weights"))

    def fit(self, interactions: ItemLists) -> None:
        """Fit the weights of the items of each list."""
        lists = co_occurrence.distinct(interactions, self.rows)
        blocks = co_occurrence.co_occurrences(lists, self.rows, chunk=_CHUNK)
        gram = torch.cat([block for _, block in blocks]).coalesce()  # sparse (N, N)
        rows, columns = gram.indices()
        counts, keys = gram.values(), rows * self.rows + columns
        root = torch.bincount(lists.values, minlength=self.rows).double().sqrt()
        near = ((counts > self.l1) & (rows != columns)).nonzero()[:, 0]  # all other weights are 0
        cosines = counts[near] / (root[rows[near]] * root[columns[near]])
        near = near[co_occurrence.best_of_rows(rows[near], cosines, self.neighbours)[0]].sort().values
        rows, columns = rows[near], columns[near]
        lengths = torch.bincount(rows, minlength=self.rows)
        first = co_occurrence.starts(lengths)
        items = torch.argsort(lengths)[(lengths == 0).sum() :]
        found = [torch.zeros(3, 0, dtype=torch.float64)]
        while len(items):
            longest = int(lengths[items[-1]])
            chunk = items[-max(1, _NUMBERS // longest**2) :]
            places, owner = co_occurrence.ranges(first[chunk], lengths[chunk])
            place = torch.arange(len(places)) - co_occurrence.starts(lengths[chunk])[owner]
            # of each item's neighbours; id 0, which is in no list, pads
            used = torch.zeros(len(chunk), longest, dtype=torch.int64).index_put_((owner, place), columns[places])
            items = items[: -len(chunk)]
            target = torch.zeros(len(chunk), used.shape[1])
            target[owner, place] = counts[near[places]].float()
            wanted = used[:, :, None] * self.rows + used[:, None, :]
            place = torch.searchsorted(keys, wanted).clamp(max=len(keys) - 1)
            weights = self._descend(torch.where(keys[place] == wanted, counts[place], 0.0).float(), target)
            at, other = weights.nonzero(as_tuple=True)
            found.append(torch.stack([used[at, other].double(), chunk[at].double(), weights[at, other].double()]))
            self.advance(len(chunk))
        one, other, weight = torch.cat(found, dim=1)
        order = torch.argsort(one * self.rows + other)
        self.others, self.weights = other[order].long(), weight[order].float()
        self.item_starts = co_occurrence.starts(torch.bincount(one.long(), minlength=self.rows))

    def _descend(self, gram: Tensor, target: Tensor) -> Tensor:
        """Return the weights (b, L) of b items.

        Args:
            gram: (b, L, L) of the L neighbours of each.
            target: (b, L) of each item and these neighbours.
        """
        weights, may = torch.zeros_like(target), target > self.l1
        diagonal = gram.diagonal(dim1=1, dim2=2)
        for _ in range(self.sweeps):
            before = weights.clone()
            for i in range(gram.shape[1]):
                others = (weights * gram[:, i]).sum(1)
                rest = target[:, i] - others + diagonal[:, i] * weights[:, i] - self.l1
                weights[:, i] = rest.clamp(min=0) / (diagonal[:, i] + self.l2) * may[:, i]
            if (weights - before).abs().max() <= self.tolerance:
                break
        return weights

    def score(self, history: ItemLists) -> Tensor:
        """Return scores (B, N) for B histories; zeros for an empty history."""
        items = co_occurrence.distinct(history, self.rows)
        begin = self.item_starts[items.values]
        places, owner = co_occurrence.ranges(begin, self.item_starts[items.values + 1] - begin)
        scores = self.weights.new_zeros(len(items) * self.rows)
        scores.index_add_(0, items.segment_ids[owner] * self.rows + self.others[places], self.weights[places])
        return scores.view(len(items), self.rows)
