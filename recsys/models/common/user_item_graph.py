"""The graph of users and items that graph models train with."""

from typing import Any

import torch
from torch import Tensor

from recsys.batch import Interactions, JaggedIds
from recsys.models.common.co_occurrence import best_of_rows, co_occurrences, starts

_CHUNK = 1024  # number of items whose co-occurrences are counted at a time


def normalised_adjacency(interactions: Interactions, users: int, items: int) -> Tensor:
    """Return the symmetric adjacency matrix D^-1/2 A D^-1/2, a sparse CSR tensor (users + items, users + items).

    D is the diagonal matrix of the nodes' degrees; the users' nodes come first.
    """
    left, right = interactions.users, interactions.items + users
    row, column = torch.cat([left, right]), torch.cat([right, left])
    order = torch.argsort(row * (users + items) + column)
    row, column = row[order], column[order]
    degree = torch.bincount(row, minlength=users + items)
    values = 1 / (degree[row].float() * degree[column]).sqrt()
    size = (users + items, users + items)
    return torch.sparse_csr_tensor(starts(degree), column, values, size, check_invariants=False)


class SymmetricProduct(torch.autograd.Function):
    """Product of a constant, symmetric sparse matrix (V, V) and a dense one (V, d), with the gradient of the latter."""

    @staticmethod
    def forward(ctx: Any, matrix: Tensor, x: Tensor) -> Tensor:
        """Return the product: matrix (V, V), x (V, d) -> (V, d)."""
        ctx.matrix = matrix
        return matrix @ x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor]:  # type: ignore[override]
        return None, ctx.matrix @ gradient.contiguous()


def item_neighbours(interactions: Interactions, users: int, items: int, k: int) -> tuple[Tensor, Tensor]:
    """Return the k items with the highest weights of each item in the graph of co-occurrences: ids and weights (N, k).

    With G_ij users of both items and g_i the sum of row i, the weight of j for i is G_ij / (g_i - G_ii) sqrt(g_i / g_j)
    (UltraGCN, equation 13). An item with fewer neighbours has the id 0 and the weight 0 in the other places.
    """
    order = torch.argsort(interactions.users * items + interactions.items)
    of_user = torch.bincount(interactions.users, minlength=users)
    lists = JaggedIds(interactions.items[order], of_user)
    degree = torch.bincount(interactions.items, minlength=items).double()
    sums = torch.bincount(interactions.items, of_user[interactions.users].double(), minlength=items)
    ids = torch.zeros(items, k, dtype=torch.int64, device=degree.device)
    weights = torch.zeros(items, k, device=degree.device)
    for start, block in co_occurrences(lists, items, chunk=_CHUNK):
        one, other = block.indices()
        item = one + start
        distinct = item != other
        one, other, item, count = one[distinct], other[distinct], item[distinct], block.values()[distinct]
        weight = count / (sums[item] - degree[item]) * (sums[item] / sums[other]).sqrt()
        kept, rank = best_of_rows(one, weight, k)
        ids[item[kept], rank] = other[kept]
        weights[item[kept], rank] = weight[kept].float()
    return ids, weights
