"""EASE: Steck, Embarrassingly Shallow Autoencoders for Sparse Data, 2019, https://arxiv.org/abs/1905.03375."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from recsys.batch import JaggedIds
from recsys.features import FeatureSpec
from recsys.models.common.co_occurrence import candidates, co_occurrences, distinct, starts
from recsys.models.protocols import ClosedFormModel

_BYTES = 20  # of each pair of items, while fitting: two float64 matrices and the float32 weights
_CHUNK = 1024  # items whose co-occurrences are counted at a time


class EASE(nn.Module, ClosedFormModel):
    """A linear model of all items from all others, in closed form.

    Of X (lists, N), 1 where a list has the item, and P = (X'X + l2 I)^-1, the weights are B = -P / diag(P) with a
    diagonal of zeros, which minimises |X - XB|^2 + l2 |B|^2 under that constraint; scores are a history's row of X
    times B. Time grows as N^3.

    l2: the greater, the less is learned of items that few have chosen.
    max_items: N above this is refused, for its memory: 20 N^2 bytes to fit, 4 N^2 to keep.

    history of B lists -> scores (B, N); zeros where a history is empty
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
                f"{max_items:,}: raise max_items where there is that much memory, drop rare items, or use ItemKNN"
            )
        self.register_buffer("weights", torch.zeros(self.rows, self.rows, device=device))

    def fit(self, interactions: JaggedIds) -> None:
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
        items = distinct(history, self.rows)
        return functional.embedding_bag(items.values, self.weights, starts(items.lengths)[:-1], mode="sum")
