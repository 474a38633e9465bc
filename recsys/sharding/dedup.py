"""FBGEMM's operator of distinct ids on CPUs, where FBGEMM has none, for `sharding.dedup`."""

from functools import cache

import torch
from torch import Tensor


@cache
def add_cpu_operator() -> torch.library.Library:
    """Add `distinct_ids` as fbgemm::jagged_unique_indices for CPUs. Keep what is returned: it holds the operator."""
    library = torch.library.Library("fbgemm", "IMPL")
    library.impl("jagged_unique_indices", distinct_ids, "CPU")
    return library


def distinct_ids(
    first_rows: Tensor, first_features: Tensor, offsets: Tensor, ids: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return each table's distinct ids and where each id is among them, as FBGEMM's operator for GPUs does.

    Args:
        first_rows: (F + 1,) at a table's first feature, the number of rows of all tables before it; its other features
            have the same number.
        first_features: (F + 1,) for a table's first feature i, [i] and [i + 1] are the bounds of its features; two
            equal numbers for others.
        offsets: (F * B + 1,) of the ids of each feature and row.
        ids: (N,) of all features.

    Returns:
        lengths (F * B,), which divide the distinct ids of a table evenly among its features and rows, for what is sent
        has no rows; their offsets; the distinct ids (U,); and the place (N,) of each id among them.
    """
    features = len(first_features) - 1
    rows = (len(offsets) - 1) // features
    shift = first_rows[:-1].repeat_interleave(offsets[rows::rows] - offsets[:-1:rows])
    distinct, places = torch.unique(ids + shift, return_inverse=True)
    lengths = torch.zeros_like(offsets[1:])
    bounds = torch.searchsorted(distinct, first_rows)
    begin = distinct.new_zeros(len(distinct))
    for start, stop in zip(first_features[:-1].tolist(), first_features[1:].tolist(), strict=True):
        if start < stop:
            of_table = slice(int(bounds[start]), int(bounds[stop]))
            begin[of_table] = first_rows[start]
            each, more = divmod(of_table.stop - of_table.start, (stop - start) * rows)
            lengths[start * rows : stop * rows] = each
            lengths[start * rows : start * rows + more] += 1
    return lengths, torch.cat([offsets[:1], lengths.cumsum(0)]), distinct - begin, places
