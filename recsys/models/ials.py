"""iALS: Hu et al., Collaborative Filtering for Implicit Feedback Datasets, 2008, https://doi.org/10.1109/ICDM.2008.22,
with the regularisation of Rendle et al., Revisiting the Performance of iALS on Item Recommendation Benchmarks, 2021,
https://arxiv.org/abs/2110.14037.
"""

from collections.abc import Iterator

import torch
from pydantic import PositiveFloat
from torch import Tensor, nn

from recsys.base.errors import NotFinite
from recsys.base.ranges import Count, Part, Width
from recsys.interface.batch import ItemLists, JaggedIds
from recsys.interface.features import FeatureSpec
from recsys.models.common.co_occurrence import candidates, distinct, invert, starts
from recsys.models.protocols import ClosedFormModel

_NUMBERS = 2**25  # of the matrices that are solved at a time
_UNOBSERVED = 3.0  # times the weight of the observed pairs, where unobserved_weight is null (experiments/retrieval)


class IALS(nn.Module, ClosedFormModel):
    """Vectors of lists and items, fitted by alternating least squares.

    The sum over all items of a list of (1 - <w, h>)^2, over all pairs of a list and an item of
    unobserved_weight <w, h>^2, and of l2 (n + unobserved_weight M)^power |w|^2 is smallest, where n is the number of
    items of the list and M that of all items; likewise for the vectors h of items. A history gets the vector w that is
    best for its items, so that a new user needs no training. Fitting holds the vectors of all lists, too.

    Args:
        dim: length of the vectors; time grows with its cube, and the paper's best models have 1,024 and more.
        unobserved_weight: weight of a pair that was not observed, relative to one that was; None: all pairs of a list
            and an item together have three times the weight of the observed ones, however many items there are.
        l2: regularisation; 0.003 in the paper, for 20 million ratings.
        power: 1: in proportion to the number of pairs (the paper's setting); 0: equal for all.
        epochs: passes over lists and items.
        stddev: standard deviation of the first vectors of the items, times the root of dim.
        seed: seed of the first vectors.
    """

    vectors: Tensor  # (N, dim); zeros for items of no list
    gram: Tensor  # (dim, dim): the sum of their outer products
    weight: Tensor  # (): that of a pair that was not observed

    def __init__(
        self,
        features: FeatureSpec,
        *,
        dim: Width = 256,
        unobserved_weight: PositiveFloat | None = None,
        l2: PositiveFloat = 0.01,
        power: Part = 1.0,
        epochs: Count = 16,
        stddev: PositiveFloat = 0.1,
        seed: int = 0,
        device: torch.device | None = None,
    ) -> None:
        super().__init__()
        self.rows = candidates(features, "IALS")
        self.unobserved_weight, self.l2, self.power = unobserved_weight, l2, power
        self.epochs, self.stddev, self.seed = epochs, stddev, seed
        weight = torch.tensor(unobserved_weight or 0.0, device=device)
        self.register_buffer("vectors", torch.zeros(self.rows, dim, device=device))
        self.register_buffer("gram", torch.zeros(dim, dim, device=device))
        self.register_buffer("weight", weight, persistent=not unobserved_weight)

    def memory(self) -> dict[str, int]:
        """Return the bytes of the items' vectors and of the equations that are solved at a time."""
        dim = len(self.gram)
        return {f"{self.rows:,} x {dim} vectors": 8 * self.rows * dim, "equations": 16 * max(_NUMBERS, dim**2)}

    def fit(self, interactions: ItemLists) -> None:
        """Alternate between the vectors of lists and those of items."""
        lists = distinct(interactions, self.rows)
        if self.unobserved_weight is None:
            self.weight = _UNOBSERVED * lists.lengths.sum() / max(1, len(lists) * (self.rows - 1))
        inverse = invert(lists, self.rows)
        generator, dim = torch.Generator().manual_seed(self.seed), len(self.gram)
        items = torch.randn(self.rows, dim, generator=generator) * self.stddev / dim**0.5
        items[inverse.lengths == 0] = 0.0
        for _ in range(self.epochs):
            users = self._solve(lists, items, self.rows - 1)
            items = self._solve(inverse, users, len(lists))
            self.advance(self.rows / self.epochs)
        self.vectors, self.gram = items, items.T @ items

    def score(self, history: ItemLists) -> Tensor:
        """Return scores (B, N) for B histories; zeros for an empty history."""
        lists = distinct(history, self.rows)
        return self._solve(lists, self.vectors, self.rows - 1) @ self.vectors.T

    def _solve(self, lists: JaggedIds, others: Tensor, count: int) -> Tensor:
        """Return the best vectors (B, dim) of B lists of rows of `others` (M, dim), of which `count` are no padding."""
        dim, lengths, first = others.shape[1], lists.lengths, starts(lists.lengths)
        gram = self.weight * (others.T @ others)
        l2 = self.l2 * (lengths + self.weight * count).pow(self.power)
        solved = torch.zeros(len(lists), dim)
        for rows in _blocks(lengths, dim):
            left, right = gram.repeat(len(rows), 1, 1), torch.zeros(len(rows), dim, 1)
            for places in torch.arange(int(lengths[rows].max())).split(max(1, _NUMBERS // (len(rows) * dim))):
                inside = places < lengths[rows, None]
                ids = lists.values[(first[rows, None] + places).clamp(max=len(lists.values) - 1)]
                chosen = others[ids] * inside[..., None]  # (b, length, dim)
                left.baddbmm_(chosen.transpose(1, 2), chosen)
                right += chosen.sum(1)[..., None]
            left.diagonal(dim1=1, dim2=2).add_(l2[rows, None])
            try:
                solved[rows] = torch.cholesky_solve(right, torch.linalg.cholesky(left))[..., 0]
            except torch.linalg.LinAlgError:
                raise NotFinite("iALS: its equations have no solution; raise model.l2, or lower model.dim") from None
        return solved


def _blocks(lengths: Tensor, dim: int) -> Iterator[Tensor]:
    """Yield the indices of lists of similar lengths whose equations fit into memory together, without empty lists."""
    order = torch.argsort(lengths, stable=True)
    order = order[lengths[order] > 0]
    while len(order):
        longest = int(lengths[order[-1]])
        size = max(1, _NUMBERS // (dim * (dim + longest)))
        yield order[-size:]
        order = order[:-size]
