"""What the models share that are fitted to interactions in closed form or by counting."""

import warnings
from collections.abc import Iterator

import torch
from torch import Tensor

from recsys.batch import JaggedIds, segment_ids_of
from recsys.features import FeatureSpec


def candidates(features: FeatureSpec, model: str) -> int:
    """N: the rows of the item table, row 0 being the unknown item."""
    for f in features.sparse:
        if f.name == features.item:
            return f.cardinality
    raise ValueError(f"{model} rates the candidates of data for retrieval; the FeatureSpec names no item")


def known(lists: JaggedIds, n: int) -> JaggedIds:
    """Without the unknown items; ValueError where an id is not one of the `n` rows."""
    if lists.values.numel():
        low, high = (int(x) for x in lists.values.aminmax())
        if low < 0 or high >= n:
            raise ValueError(f"item {low if low < 0 else high}: the item table has {n} rows, 0 to {n - 1}")
    keep = lists.values != 0
    return JaggedIds(lists.values[keep], torch.bincount(lists.segment_ids[keep], minlength=len(lists)))


def distinct(lists: JaggedIds, n: int) -> JaggedIds:
    """The known items, each once a list, in ascending order."""
    items = known(lists, n)
    keys = torch.unique(items.segment_ids * n + items.values)  # ascending
    return JaggedIds(keys % n, torch.bincount(keys // n, minlength=len(lists)))


def starts(lengths: Tensor) -> Tensor:
    """Where each list starts, and where the last one ends: (B,) -> (B + 1,)."""
    return torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])


def ranges(begin: Tensor, length: Tensor) -> tuple[Tensor, Tensor]:
    """The integers of B ranges, one range after another, and which range each is of: (B,), (B,) -> (P,), (P,)."""
    owner = segment_ids_of(length)
    before = starts(length)[:-1]
    return begin[owner] + torch.arange(len(owner), device=begin.device) - before[owner], owner


def invert(lists: JaggedIds, n: int) -> JaggedIds:
    """Of each of the n items, the lists that it is in, in their order; of distinct items."""
    order = torch.argsort(lists.values, stable=True)
    return JaggedIds(lists.segment_ids[order], torch.bincount(lists.values, minlength=n))


def co_occurrences(lists: JaggedIds, n: int, *, chunk: int) -> Iterator[tuple[int, Tensor]]:
    """In how many lists two items are together, `chunk` items at a time; of distinct items.

    Yields the first item and a sparse (chunk, n) float64, coalesced. The diagonal holds each item's count.
    """
    contains = _ones(lists.segment_ids, lists.values, (len(lists), n))
    inverse = invert(lists, n)
    for start in range(0, n, chunk):
        part = inverse.slice(start, min(start + chunk, n))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's own, of sparse tensors being new
            product = torch.sparse.mm(_ones(part.segment_ids, part.values, (len(part), len(lists))), contains)
        yield start, product.coalesce()


def _ones(rows: Tensor, columns: Tensor, size: tuple[int, int]) -> Tensor:
    ones = torch.ones(len(rows), dtype=torch.float64, device=rows.device)
    return torch.sparse_coo_tensor(torch.stack([rows, columns]), ones, size, is_coalesced=True, check_invariants=False)
