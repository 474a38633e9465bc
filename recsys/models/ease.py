"""EASE: Steck, Embarrassingly Shallow Autoencoders for Sparse Data, 2019, https://arxiv.org/abs/1905.03375."""

import torch
from pydantic import PositiveFloat
from torch import Tensor, nn
from torch.nn import functional

from recsys.base.ranges import Count
from recsys.interface.batch import ItemLists
from recsys.interface.features import FeatureSpec
from recsys.models.common.co_occurrence import candidates, co_occurrences, distinct, starts
from recsys.models.protocols import ClosedFormModel

_BYTES = 4  # bytes per pair of items: the float32 weights, which are solved in place
_MAX_DOUBLE_ITEMS = 20_000  # with at most this many items, solve in double precision: 20 bytes per pair
_CHUNK = 1024  # number of items whose co-occurrences are counted at a time


class EASE(nn.Module, ClosedFormModel):
    """Linear autoencoder over all items, solved in closed form.

    X (lists, N) is 1 where a list contains an item, and P = (X'X + l2 I)^-1. The weights B = -P / diag(P), with a
    diagonal of zeros, minimise |X - XB|^2 + l2 |B|^2 under that constraint. The scores of a history are its row of X
    times B. Time grows as N^3.

    Args:
        l2: regularisation; the greater it is, the less is learnt of rare items.
        max_items: raise an error if N exceeds this. Storing and fitting the weights takes 4 N^2 bytes; fitting up to
            20,000 items takes 20 N^2 bytes, because it uses double precision.
    """

    weights: Tensor  # (N, N)

    def __init__(
        self,
        features: FeatureSpec,
        *,
        l2: PositiveFloat = 250.0,
        max_items: Count = 60_000,
        device: torch.device | None = None,
    ) -> None:
        super().__init__()
        self.l2 = l2
        self.rows = candidates(features, "EASE")
        if self.rows > max_items:
            raise ValueError(
                f"EASE: {self.rows:,} items exceed max_items={max_items:,} (fitting needs "
                f"{_BYTES * self.rows**2 / 1e9:,.1f} GB): raise model.max_items if there is enough memory, drop rare "
                "items, or use model=item_knn"
            )
        self.register_buffer("weights", torch.zeros(self.rows, self.rows, device=device))

    def memory(self) -> dict[str, int]:
        """Return the bytes of the weights and, up to 20,000 items, of the two matrices in double precision."""
        pairs = self.rows**2
        matrices = {f"{self.rows:,} x {self.rows:,} weights, solved in place": _BYTES * pairs}
        if self.rows <= _MAX_DOUBLE_ITEMS:
            matrices |= {"their inverse and its factor in double precision": 2 * 8 * pairs}
        return matrices

    def fit(self, interactions: ItemLists) -> None:
        """Solve for the weights from the items of each list."""
        large = self.rows > _MAX_DOUBLE_ITEMS
        gram = self.weights if large else self.weights.new_empty(self.weights.shape, dtype=torch.float64)
        for start, block in co_occurrences(distinct(interactions, self.rows), self.rows, chunk=_CHUNK):
            gram[start : start + len(block)] = block.to_dense()
        gram.diagonal().add_(self.l2)
        if large:
            invert_in_place(gram)
            inverse = gram
        else:
            factor = torch.linalg.cholesky(gram)
            del gram
            inverse = torch.cholesky_inverse(factor)
            del factor
        inverse /= -inverse.diagonal().clone()
        inverse.fill_diagonal_(0.0)
        if not large:
            self.weights.copy_(inverse)

    def score(self, history: ItemLists) -> Tensor:
        """Return scores (B, N) for B histories; zeros for an empty history."""
        items = distinct(history, self.rows)
        return functional.embedding_bag(items.values, self.weights, starts(items.lengths)[:-1], mode="sum")


def invert_in_place(a: Tensor, block: int = 2048) -> None:
    """Invert a symmetric positive definite matrix (N, N) in its own memory.

    Gauss-Jordan elimination of one block of rows and columns after another (the sweep operator, Goodnight 1979,
    https://www.jstor.org/stable/2683825), on the lower triangle; N^3 operations, and 4 N x block numbers in addition to
    `a`. Blocks on the diagonal are inverted in double precision.
    """
    n = len(a)
    for start in range(0, n, block):
        stop = min(start + block, n)
        corner = a[start:stop, start:stop]  # symmetric, but only its lower triangle is given
        whole = corner.tril().double() + corner.tril(-1).double().T
        pivot = torch.cholesky_inverse(torch.linalg.cholesky(whole)).to(corner.dtype)
        column = torch.cat([a[start:stop, :start].T, a[start:stop, start:stop], a[stop:, start:stop]])
        column[start:stop] = 0.0
        scaled = column @ pivot
        for first in range(0, n, block):
            last = min(first + block, n)
            if first != start:
                a[first:last, :last].addmm_(scaled[first:last], column[:last].T, alpha=-1)
        a[start:stop, :start] = scaled[:start].T
        a[stop:, start:stop] = scaled[stop:]
        a[start:stop, start:stop] = -pivot
    for start in range(0, n, block):  # the result is minus the inverse, in the lower triangle
        stop = min(start + block, n)
        a[start:stop, :stop] *= -1
        a[:start, start:stop] = a[start:stop, :start].T
        corner = a[start:stop, start:stop]
        corner.copy_(corner.tril() + corner.tril(-1).T)
