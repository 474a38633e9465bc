"""GF-CF: Shen et al., How Powerful is Graph Convolution for Recommendation?, 2021, https://arxiv.org/abs/2108.07567."""

import torch
from pydantic import NonNegativeFloat
from torch import Tensor, nn

from recsys.base.ranges import Count
from recsys.interface.batch import ItemLists, segment_ids_of
from recsys.interface.features import FeatureSpec
from recsys.models.common.co_occurrence import candidates, distinct, invert, sparse_matrix, starts, take_sizes_on_load
from recsys.models.protocols import ClosedFormModel

_SPARE = 64  # singular vectors that are computed in addition, so that the last ones that are kept are exact
_ITERATIONS = 10  # of the subspace; more change the vectors that are kept by less than single precision does


class GFCF(nn.Module, ClosedFormModel):
    """A linear graph filter and an ideal low-pass filter over items, in closed form.

    With the lists of M users as the rows of X (M, N), the numbers of items d_u of users and the numbers of users d_i of
    items, R = X / sqrt(d_u d_i). A history x (N,) has the scores

        x (R^T R + low_pass D^-1/2 V V^T D^1/2)

    where D is the diagonal matrix of d_i, and V (N, k) are the right singular vectors of the k largest singular values
    of R. R^T R is never formed: its product with a history takes two sparse products.

    Args:
        k: number of singular vectors; at most min(M, N) are used.
        low_pass: weight of the low-pass filter (0.3 in the paper); 0 leaves it out.
    """

    items: Tensor  # (P,) int64: items of M users, concatenated
    item_starts: Tensor  # (M + 1,) int64
    users: Tensor  # (P,) int64: for each of N items, the users that have it
    user_starts: Tensor  # (N + 1,) int64
    vectors: Tensor  # (N, k)

    def __init__(
        self,
        features: FeatureSpec,
        *,
        k: Count = 256,
        low_pass: NonNegativeFloat = 0.3,
        device: torch.device | None = None,
    ) -> None:
        super().__init__()
        self.rows = candidates(features, type(self).__name__)
        self.low_pass = low_pass
        sizes = {"items": 0, "item_starts": 1, "users": 0, "user_starts": self.rows + 1}
        for name, size in sizes.items():
            self.register_buffer(name, torch.zeros(size, dtype=torch.int64, device=device))
        self.register_buffer("vectors", torch.zeros(self.rows, min(k, self.rows), device=device))
        take_sizes_on_load(self, ("items", "item_starts", "users"))

    def fit(self, interactions: ItemLists) -> None:
        """Store the lists of users and items, and find the singular vectors."""
        lists = distinct(interactions, self.rows)
        inverse = invert(lists, self.rows)
        self.items, self.item_starts = lists.values, starts(lists.lengths)
        self.users, self.user_starts = inverse.values, starts(inverse.lengths)
        self.vectors.zero_()
        wanted = min(self.vectors.shape[1], len(lists))
        if self.low_pass and wanted and len(self.items):
            matrix = _normalised(self.item_starts, self.items, self.user_starts, torch.float64)
            size = min(wanted + _SPARE, *matrix.shape)
            with torch.random.fork_rng(devices=[]):  # the start of the subspace; the result does not depend on it
                torch.manual_seed(0)
                _, values, vectors = torch.svd_lowrank(matrix, q=size, niter=_ITERATIONS)
            vectors = torch.where(values > 1e-9 * values[0], vectors, 0)  # vectors of the null space are arbitrary
            self.vectors[:, :wanted] = vectors[:, :wanted].float()

    def score(self, history: ItemLists) -> Tensor:
        """Return scores (B, N) for B histories; zeros for an empty history."""
        lists = distinct(history, self.rows)
        chosen = sparse_matrix(lists.segment_ids, lists.values, (len(lists), self.rows)).float()
        by_user, by_item = self._matrices()
        scores = torch.sparse.mm(torch.sparse.mm(chosen, by_item), by_user).to_dense()
        if self.low_pass:
            root = self.user_starts.diff().float().sqrt()
            low = torch.sparse.mm(chosen, torch.where(root > 0, 1 / root, 0)[:, None] * self.vectors)
            scores.addmm_(low, (self.vectors * root[:, None]).T, alpha=self.low_pass)
        return scores

    def _matrices(self) -> tuple[Tensor, Tensor]:
        """Return R (M, N) and its transpose, sparse."""
        by_user = _normalised(self.item_starts, self.items, self.user_starts)
        return by_user, _normalised(self.user_starts, self.users, self.item_starts)


def _normalised(
    row_starts: Tensor, columns: Tensor, column_starts: Tensor, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Return a sparse matrix with the value 1 / sqrt(row's length x column's length) at each pair."""
    in_row, in_column = row_starts.diff(), column_starts.diff()
    rows = segment_ids_of(in_row)
    values = 1 / (in_row[rows].to(dtype) * in_column[columns]).sqrt()
    size = (len(in_row), len(in_column))
    return torch.sparse_coo_tensor(torch.stack([rows, columns]), values, size, is_coalesced=True)
