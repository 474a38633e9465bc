"""Interactions as counts and as a graph of users and items, for closed-form models and graph models."""

import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from recsys.interface.batch import CandidateIds, Interactions, ItemLists, ItemRows, JaggedIds, segment_ids_of
from recsys.interface.features import FeatureSpec

_CHUNK = 1024  # number of items whose co-occurrences are counted at a time


def candidates(features: FeatureSpec, model: str) -> int:
    """Return N, the number of rows of the item table, in which row 0 is the unknown item.

    Raises ValueError if the data has no item feature.
    """
    for f in features.sparse:
        if f.name == features.item:
            return f.cardinality
    raise ValueError(f"{model} retrieves items: set data.items.feature to the feature of the items")


def known(lists: ItemLists, n: int) -> ItemLists:
    """Drop the unknown items (0) and those that count 0. Raises ValueError if an id is not one of the `n` rows."""
    if lists.values.numel():
        low, high = (int(x) for x in lists.values.aminmax())
        if low < 0 or high >= n:
            raise ValueError(f"item {low if low < 0 else high}: the item table has rows 0 to {n - 1}")
    keep = lists.values != 0 if lists.weights is None else (lists.values != 0) & (lists.weights > 0)
    weights = None if lists.weights is None else lists.weights[keep]
    return _rows(lists.values[keep], torch.bincount(lists.segment_ids[keep], minlength=len(lists)), weights)


def distinct(lists: ItemLists, n: int) -> ItemLists:
    """Return the known items of each list once, in ascending order, with the largest of their weights."""
    items = known(lists, n)
    keys, place = torch.unique(items.segment_ids * n + items.values, return_inverse=True)  # ascending
    weights = items.weights
    if weights is not None:
        weights = weights.new_zeros(len(keys)).index_reduce_(0, place, weights, "amax")
    return _rows(keys % n, torch.bincount(keys // n, minlength=len(lists)), weights)


def _rows(values: Tensor, lengths: Tensor, weights: Tensor | None) -> ItemLists:
    return ItemLists(ItemRows(CandidateIds(values)), lengths, weights)


def starts(lengths: Tensor) -> Tensor:
    """Return the start of each list, and the end of the last one: lengths (B,) -> (B + 1,)."""
    return torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])


def ranges(begin: Tensor, length: Tensor) -> tuple[Tensor, Tensor]:
    """Concatenate B ranges of integers: begin (B,), length (B,) -> the integers (P,), the range of each (P,)."""
    owner = segment_ids_of(length)
    before = starts(length)[:-1]
    return begin[owner] + torch.arange(len(owner), device=begin.device) - before[owner], owner


def invert(lists: JaggedIds, n: int) -> JaggedIds:
    """Return, for each of n items, the lists that contain it, in order. The items of a list must be distinct."""
    order = torch.argsort(lists.values, stable=True)
    return JaggedIds(lists.segment_ids[order], torch.bincount(lists.values, minlength=n))


def co_occurrences(
    lists: JaggedIds, n: int, *, chunk: int, weights: Tensor | None = None, roots: Tensor | None = None
) -> Iterator[tuple[int, Tensor]]:
    """Count the lists that contain both of two items, `chunk` items at a time. The items of a list must be distinct.

    Args:
        weights: (M,) float64, what each of the M lists adds to a count; by default 1.
        roots: (P,) float64, of each item of a list; a list adds the product of two items' times its weight; by
            default 1.

    Yields:
        The first item of a chunk, and its counts as a coalesced sparse (chunk, n) float64 tensor. The diagonal is the
        number of lists that contain an item.
    """
    of_item = None if weights is None else weights[lists.segment_ids]
    if roots is not None:
        of_item = roots if of_item is None else of_item * roots
    contains = sparse_matrix(lists.segment_ids, lists.values, (len(lists), n), of_item)
    inverse = invert(lists, n)
    if roots is not None:
        roots = roots[torch.argsort(lists.values, stable=True)]
    for start in range(0, n, chunk):
        part, first = inverse.slice(start, min(start + chunk, n)), int(inverse.lengths[:start].sum())
        values = None if roots is None else roots[first : first + len(part.values)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns that sparse tensors are in beta
            of_items = sparse_matrix(part.segment_ids, part.values, (len(part), len(lists)), values)
            product = torch.sparse.mm(of_items, contains)
        yield start, product.coalesce()


def best_of_rows(row: Tensor, value: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the indices of the k highest values of each row, and the rank of each; ties keep their order.

    Args:
        row: (P,) in ascending order.
        value: (P,).
    """
    order = torch.argsort(value, descending=True, stable=True)
    order = order[torch.argsort(row[order], stable=True)]
    rank = torch.arange(len(row), device=row.device) - torch.searchsorted(row, row)
    return order[rank < k], rank[rank < k]


def sparse_matrix(rows: Tensor, columns: Tensor, size: tuple[int, int], values: Tensor | None = None) -> Tensor:
    """Return a sparse float64 matrix with these values, by default 1, at pairs that are in ascending order."""
    if values is None:
        values = torch.ones(len(rows), dtype=torch.float64, device=rows.device)
    return torch.sparse_coo_tensor(torch.stack([rows, columns]), values, size, is_coalesced=True, check_invariants=True)


def take_sizes_on_load(model: nn.Module, names: Sequence[str]) -> None:
    """Let `load_state_dict` resize these buffers, whose sizes depend on the interactions, to those in the state."""

    def take_sizes(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
        for name in names:
            if f"{prefix}{name}" in state:
                setattr(module, name, getattr(module, name).new_empty(state[f"{prefix}{name}"].shape))

    model.register_load_state_dict_pre_hook(take_sizes)


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
    return torch.sparse_csr_tensor(starts(degree), column, values, size, check_invariants=True)


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
