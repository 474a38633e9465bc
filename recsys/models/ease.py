"""EASE: Steck, Embarrassingly Shallow Autoencoders for Sparse Data, 2019, https://arxiv.org/abs/1905.03375."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from recsys.batch import JaggedIds
from recsys.features import FeatureSpec
from recsys.models.common.co_occurrence import candidates, co_occurrences, distinct, starts
from recsys.models.protocols import ClosedFormModel

_BYTES = 20  # bytes per pair of items while fitting: two float64 matrices and the float32 weights
_CHUNK = 1024  # number of items whose co-occurrences are counted at a time


class EASE(nn.Module, ClosedFormModel):
    """Linear autoencoder over all items, solved in closed form.

    X (lists, N) is 1 where a list contains an item, and P = (X'X + l2 I)^-1. The weights B = -P / diag(P), with a
    diagonal of zeros, minimise |X - XB|^2 + l2 |B|^2 under that constraint. The scores of a history are its row of X
    times B. Time grows as N^3.

    Args:
        l2: regularisation; the greater it is, the less is learnt of rare items.
        max_items: raise an error if N is above this, because of the memory: 20 N^2 bytes to fit, 4 N^2 to store.
    """

    weights: Tensor  # (N, N)

    def __init__(
        self,
        features: FeatureSpec,
        *,
        l2: float = 250.0,
        max_items: int = 30_000,
        device: torch.device | None = None,
    ) -> None:
        super().__init__()
        if l2 <= 0:
            raise ValueError(f"l2={l2}: must be above 0")
        self.l2 = l2
        self.rows = candidates(features, "EASE")
        if self.rows > max_items:
            raise ValueError(
                f"EASE of {self.rows:,} items needs {_BYTES * self.rows**2 / 1e9:,.1f} GB to fit, above max_items="
                f"{max_items:,}: raise model.max_items if there is that much memory, drop rare items, or use "
                "model=item_knn"
            )
        self.register_buffer("weights", torch.zeros(self.rows, self.rows, device=device))

    def fit(self, interactions: JaggedIds) -> None:
        """Solve for the weights from the items of each list."""
        gram = self.weights.new_empty(self.weights.shape, dtype=torch.float64)
        for start, block in co_occurrences(distinct(interactions, self.rows), self.rows, chunk=_CHUNK):
            gram[start : start + len(block)] = block.to_dense()
        gram.diagonal().add_(self.l2)
        factor = torch.linalg.cholesky(gram)
        del gram
        inverse = torch.cholesky_inverse(factor)
        del factor
        inverse /= -inverse.diagonal().clone()
        self.weights.copy_(inverse.fill_diagonal_(0.0))

    def score(self, history: JaggedIds) -> Tensor:
        """Return scores (B, N) for B histories; zeros for an empty history."""
        items = distinct(history, self.rows)
        return functional.embedding_bag(items.values, self.weights, starts(items.lengths)[:-1], mode="sum")
