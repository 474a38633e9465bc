"""ChebyCF: Kim et al., Graph Spectral Filtering with Chebyshev Interpolation for Recommendation, 2025,
https://arxiv.org/abs/2505.00552.
"""

import math

import torch
from pydantic import NonNegativeFloat, PositiveFloat
from torch import Tensor

from recsys.base.ranges import Count, Share
from recsys.interface.batch import ItemLists
from recsys.interface.features import FeatureSpec
from recsys.models.common.co_occurrence import distinct, sparse_matrix
from recsys.models.gf_cf import GFCF

TOGETHER = 64  # histories that are filtered at once: more are slower, for lack of cache


class ChebyCF(GFCF):
    """A graph filter of any shape, by a polynomial, and an ideal low-pass filter over items, in closed form.

    With R, D and V as in GFCF, a history x (N,) has the scores

        x D^-degree (p(I - 2 R^T R) + low_pass V V^T) D^degree

    where the polynomial p interpolates a plateau: 1 at the lowest frequency (-1), about 1/2 in the middle, 0 at the
    highest (1). Its product with a history takes two sparse products for each order.

    Args:
        k: number of singular vectors; at most min(M, N) are used.
        low_pass: weight of the low-pass filter (alpha in the paper); 0 leaves it out.
        order: that of the polynomial (K).
        flatness: exponent of the plateau (phi): 1 is a straight line, more is flatter in the middle.
        degree: exponent of the items' numbers of users (beta); 0 favours popular items least.
    """

    coefficients: Tensor  # (order + 1,)

    def __init__(
        self,
        features: FeatureSpec,
        *,
        k: Count = 512,
        low_pass: NonNegativeFloat = 0.2,
        order: Count = 8,
        flatness: PositiveFloat = 1.5,
        degree: Share = 0.4,
        device: torch.device | None = None,
    ) -> None:
        super().__init__(features, k=k, low_pass=low_pass, device=device)
        self.degree = degree
        self.register_buffer("coefficients", plateau(order, flatness).to(device))

    def score(self, history: ItemLists) -> Tensor:
        """Return scores (B, N) for B histories; zeros for an empty history."""
        lists = distinct(history, self.rows)
        chosen = sparse_matrix(lists.segment_ids, lists.values, (len(lists), self.rows)).float().to_dense()
        counts = self.user_starts.diff().float()
        signal = torch.where(counts > 0, counts.clamp(min=1) ** -self.degree, 0) * chosen
        by_user, by_item = self._matrices()
        parts = [self._filtered(part.T.contiguous(), by_user, by_item).T for part in signal.split(TOGETHER)]
        scores = torch.cat([signal[:0], *parts])
        if self.low_pass:
            scores.addmm_(signal @ self.vectors, self.vectors.T, alpha=self.low_pass)
        return scores * counts**self.degree * (counts > 0)

    def _filtered(self, signal: Tensor, by_user: Tensor, by_item: Tensor) -> Tensor:
        """Return p(I - 2 R^T R) signal, (N, B), by Clenshaw's recurrence for Chebyshev polynomials."""
        later, last = torch.zeros_like(signal), torch.zeros_like(signal)
        for i in reversed(range(1, len(self.coefficients))):
            later, last = self.coefficients[i] * signal + 2 * _shifted(later, by_user, by_item) - last, later
        return self.coefficients[0] * signal + _shifted(later, by_user, by_item) - last


def _shifted(signal: Tensor, by_user: Tensor, by_item: Tensor) -> Tensor:
    """Return (I - 2 R^T R) signal, (N, B)."""
    return signal - 2 * torch.sparse.mm(by_item, torch.sparse.mm(by_user, signal))


def plateau(order: int, flatness: float) -> Tensor:
    """Return the coefficients (order + 1,) of Chebyshev polynomials that interpolate the plateau at their roots.

    As in the authors' code, the value at the root of number j is that of the plateau at the extremum of number j, which
    takes the ends of the range for 1 and 0.
    """
    n, j = order + 1, torch.arange(order + 1, dtype=torch.float64)
    roots, x = torch.cos((n - 0.5 - j) / n * math.pi), torch.cos((order - j) / order * math.pi)
    values = 0.5 - 0.5 * x.sign() * x.abs() ** flatness
    polynomials = torch.cos(j[:, None] * torch.arccos(roots))  # T_i(x) = cos(i arccos x)
    coefficients = 2 / n * polynomials @ values
    coefficients[0] /= 2
    return coefficients.float()
