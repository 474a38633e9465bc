"""What the models share that are fitted to interactions in closed form or by counting."""

import warnings
from collections.abc import Iterator

import torch
from torch import Tensor

from recsys.batch import Lists, owners_of
from recsys.features import FeatureSpec


def candidates(features: FeatureSpec, model: str) -> int:
    """N: the rows of the item table, row 0 being the unknown item."""
    for f in features.sparse:
        if f.name == features.item:
            return f.cardinality
    raise ValueError(f"{model} rates the candidates of data for retrieval; the FeatureSpec names no item")


def known(lists: Lists, n: int) -> Lists:
    """Without the unknown items; ValueError where an id is not one of the `n` rows."""
    if lists.values.numel():
        low, high = (int(x) for x in lists.values.aminmax())
        if low < 0 or high >= n:
            raise ValueError(f"item {low if low < 0 else high}: the item table has {n} rows, 0 to {n - 1}")
    keep = lists.values != 0
    return Lists(lists.values[keep], torch.bincount(lists.owners[keep], minlength=len(lists)))


def distinct(lists: Lists, n: int) -> Lists:
    """The known items, each once a list, in ascending order."""
    items = known(lists, n)
    keys = torch.unique(items.owners * n + items.values)  # ascending
    return Lists(keys % n, torch.bincount(keys // n, minlength=len(lists)))


def starts(lengths: Tensor) -> Tensor:
    """Where each list starts, and where the last one ends: (B,) -> (B + 1,)."""
    return torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])


def ranges(begin: Tensor, length: Tensor) -> tuple[Tensor, Tensor]:
    """The integers of B ranges, one range after another, and which range each is of: (B,), (B,) -> (P,), (P,)."""
    owner = owners_of(length)
    before = starts(length)[:-1]
    return begin[owner] + torch.arange(len(owner), device=begin.device) - before[owner], owner


def invert(lists: Lists, n: int) -> Lists:
    """Of each of the n items, the lists that it is in, in their order; of distinct items."""
    order = torch.argsort(lists.values, stable=True)
    return Lists(lists.owners[order], torch.bincount(lists.values, minlength=n))


def co_occurrences(lists: Lists, n: int, *, chunk: int) -> Iterator[tuple[int, Tensor]]:
    """In how many lists two items are together, `chunk` items at a time; of distinct items.

    Yields the first item and a sparse (chunk, n) float64, coalesced. The diagonal holds each item's count.
    """
    contains = _ones(lists.owners, lists.values, (len(lists), n))
    inverse = invert(lists, n)
    for start in range(0, n, chunk):
        part = inverse.slice(start, min(start + chunk, n))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's own, of sparse tensors being new
            product = torch.sparse.mm(_ones(part.owners, part.values, (len(part), len(lists))), contains)
        yield start, product.coalesce()


def _ones(rows: Tensor, columns: Tensor, size: tuple[int, int]) -> Tensor:
    ones = torch.ones(len(rows), dtype=torch.float64, device=rows.device)
    return torch.sparse_coo_tensor(torch.stack([rows, columns]), ones, size, is_coalesced=True, check_invariants=False)
