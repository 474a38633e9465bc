"""Transitions between items: Han et al., An Embarrassingly Simple Graph Heuristic Reveals Shortcut-Solvable Benchmarks
for Sequential Recommendation, 2026, https://arxiv.org/abs/2605.07125."""

import torch
from pydantic import PositiveFloat
from torch import Tensor, nn

from recsys.base.ranges import Age, Depth, Natural, Part
from recsys.interface.ageing import Ageing
from recsys.interface.batch import ItemLists, JaggedIds, segment_ids_of
from recsys.interface.candidates import Candidates
from recsys.interface.features import FeatureSpec
from recsys.models.common.co_occurrence import (
    best_of_rows,
    candidates,
    co_occurrences,
    invert,
    known,
    sparse_matrix,
    starts,
    take_sizes_on_load,
)
from recsys.models.protocols import ClosedFormModel

_CHUNK = 1024  # number of items whose common features are counted at a time
_COMMON = 1000  # largest number of items with a value that makes them alike


class Transition(nn.Module, ClosedFormModel):
    """Items that followed the last items of a history, directly or by way of a few others.

    Row i of P (N, N) has the shares of the items that came next among the transitions from item i to another item.
    Items whose features (data.items.sparse) are most like its own count as similar_weight transitions: an item with few
    transitions leads to them, and one with many to what came next. Unknown items are skipped. An item's score is the
    sum of its entries in x P, hop_weight x P^2, ..., where x is 1 at the last item, and smaller at the ones before.

    Args:
        items: number of last items that count.
        item_weight: weight of the item before, relative to the last one; its square for the one before that, and so on.
        hops: longest path from one of these items to another.
        hop_weight: weight of a path, relative to one that is a step shorter.
        backward: weight of a transition in the other direction, from an item to one that it followed.
        similar: number of items most like an item, or 0, by the cosine of their features' values, each weighted by the
            logarithm of its inverse frequency; values of more than 1,000 items and a hundredth of all do not count.
        similar_weight: number of transitions that they count as, together.
        window: age of the later item from which a transition does not count.
        half_life: age of the later item at which a transition counts half.
    """

    item_starts: Tensor  # (N + 1,) int64: where the followers of each item start
    followers: Tensor  # (E,) int64
    shares: Tensor  # (E,) float32: P at these pairs

    def __init__(
        self,
        features: FeatureSpec,
        *,
        items: Depth = 2,
        item_weight: Part = 0.5,
        hops: Depth = 2,
        hop_weight: Part = 0.3,
        backward: Part = 0.0,
        similar: Natural = 20,
        similar_weight: PositiveFloat = 10.0,
        window: Age | None = None,
        half_life: Age | None = None,
        device: torch.device | None = None,
    ) -> None:
        super().__init__()
        self.last, self.item_weight, self.hops, self.hop_weight = items, item_weight, hops, hop_weight
        self.backward, self.similar, self.similar_weight = backward, similar, similar_weight
        self.ageing = Ageing.of(window, half_life)
        self._about: JaggedIds | None = None  # the values of all features of each item, numbered together
        self.rows = candidates(features, "Transition")
        self.register_buffer("item_starts", torch.zeros(self.rows + 1, dtype=torch.int64, device=device))
        self.register_buffer("followers", torch.zeros(0, dtype=torch.int64, device=device))
        self.register_buffer("shares", torch.zeros(0, device=device))
        take_sizes_on_load(self, ("followers", "shares"))

    def set_candidates(self, candidates: Candidates) -> None:
        if not (candidates.values and self.similar):
            return
        sizes = [int(values.max()) + 1 if len(values) else 0 for values in candidates.values.values()]
        bags = [JaggedIds(v, candidates.offsets[n].diff()) for n, v in candidates.values.items()]
        owner = torch.cat([bag.segment_ids for bag in bags])
        value = torch.cat([bag.values + sum(sizes[:i]) for i, bag in enumerate(bags)])
        named = torch.cat([bag.values > 0 for bag in bags]) & (owner < self.rows)  # row 0 is for unknown values
        pairs = torch.unique(owner[named] * sum(sizes) + value[named])
        self._about = JaggedIds(pairs % sum(sizes), torch.bincount(pairs // sum(sizes), minlength=self.rows))

    def fit(self, interactions: ItemLists) -> None:
        """Count the transitions of all lists, oldest item first."""
        lists = known(interactions, self.rows)
        within = lists.segment_ids[1:] == lists.segment_ids[:-1]
        before, after = lists.values[:-1][within], lists.values[1:][within]
        rows, columns = torch.cat([before, after]), torch.cat([after, before])
        of_moves = torch.ones(len(before), dtype=torch.float64)
        if lists.weights is not None:
            of_moves = lists.weights[1:][within]
        weights = torch.cat([of_moves, self.backward * of_moves])
        moves = (rows != columns) & (weights > 0)
        keys, weights = rows[moves] * self.rows + columns[moves], weights[moves]
        if self._about is not None:
            alike, cosines = self._alike(self._about)
            keys = torch.cat([keys, alike])
            weights = torch.cat([weights, self.similar_weight * self._shares(alike, cosines)])
        keys, place = torch.unique(keys, return_inverse=True)
        rows, self.followers = keys // self.rows, keys % self.rows
        self.shares = self._shares(keys, torch.bincount(place, weights)).float()
        self.item_starts = starts(torch.bincount(rows, minlength=self.rows))

    def _shares(self, keys: Tensor, weights: Tensor) -> Tensor:
        """Return the weight at each key i N + j as a share of its row's sum."""
        return weights / torch.bincount(keys // self.rows, weights)[keys // self.rows]

    def _alike(self, about: JaggedIds) -> tuple[Tensor, Tensor]:
        """Return the keys i N + j of the items j most like each item i, and their cosines."""
        values = int(about.values.max()) + 1 if len(about.values) else 1
        common = torch.bincount(about.values, minlength=values) > max(_COMMON, self.rows // 100)
        rare = ~common[about.values]  # pairs of items with a common value are too many, and say little
        about = JaggedIds(about.values[rare], torch.bincount(about.segment_ids[rare], minlength=self.rows))
        with_value = invert(about, values)
        weight = (self.rows / with_value.lengths.clamp(min=1).double()).log().square()
        norm = torch.zeros(self.rows, dtype=torch.float64).index_add_(0, about.segment_ids, weight[about.values])
        keys, cosines = [torch.zeros(0, dtype=torch.int64)], [torch.zeros(0, dtype=torch.float64)]
        for start, block in co_occurrences(with_value, self.rows, chunk=_CHUNK, weights=weight):
            row, other = block.indices()[0] + start, block.indices()[1]
            cosine = block.values() / (norm[row] * norm[other]).sqrt()
            kept = ((row != other) & (cosine > 0)).nonzero()[:, 0]
            best = kept[best_of_rows(row[kept], cosine[kept], self.similar)[0]]
            keys.append(row[best] * self.rows + other[best])
            cosines.append(cosine[best])
        return torch.cat(keys), torch.cat(cosines)

    def score(self, history: ItemLists) -> Tensor:
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
