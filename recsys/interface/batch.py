"""Batches of rows, jagged lists of ids, and the two numbers of an item: its candidate and its row of the item table."""

from dataclasses import dataclass, replace
from typing import NewType, Self, cast

import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor
from torchrec.streamable import Pipelineable


def segment_ids_of(lengths: Tensor, total: int | None = None) -> Tensor:
    """Return the segment id of each value: (B,) lengths -> (P,) index of the list that contains each value.

    total: P, the sum of the lengths; if it is not given, the host waits for a GPU that computes it

    >>> segment_ids_of(torch.tensor([2, 0, 3]))
    tensor([0, 0, 2, 2, 2])
    """
    return torch.repeat_interleave(torch.arange(len(lengths), device=lengths.device), lengths, output_size=total)


@dataclass
class JaggedIds:
    """B lists of ids of any length: values (P,), one list after another, and lengths (B,), both int64.

    >>> lists = JaggedIds(values=torch.tensor([5, 6, 7]), lengths=torch.tensor([2, 1]))
    >>> len(lists), lists.slice(1, 2).values
    (2, tensor([7]))
    """

    values: Tensor
    lengths: Tensor

    def __len__(self) -> int:
        return self.lengths.shape[0]

    @property
    def segment_ids(self) -> Tensor:
        """Index of the list that contains each value, (P,)."""
        return segment_ids_of(self.lengths, len(self.values))

    def to(self, device: torch.device) -> Self:
        return replace(self, values=self.values.to(device), lengths=self.lengths.to(device))

    def slice(self, start: int, stop: int) -> Self:
        """Return lists start ... stop - 1."""
        first = int(self.lengths[:start].sum())
        values = self.values[first : first + int(self.lengths[start:stop].sum())]
        return replace(self, values=values, lengths=self.lengths[start:stop])


CandidateIds = NewType("CandidateIds", Tensor)
"""Numbers of candidates, of which those behind the item table have no row: rare and new items of data.items.file."""

ItemRows = NewType("ItemRows", CandidateIds)
"""Rows of the item table, which are the candidates of the same numbers. Row 0 is the unknown item."""


def item_rows(ids: CandidateIds, rows: int) -> ItemRows:
    """Return the row of each candidate in an item table of `rows` rows: 0 for a candidate behind the table.

    >>> item_rows(CandidateIds(torch.tensor([1, 4, 5])), rows=5)
    tensor([1, 4, 0])
    """
    return cast(ItemRows, torch.where(ids < rows, ids, 0))  # compiled models cannot call a NewType


@dataclass
class ItemLists(JaggedIds):
    """B lists of rows of the item table.

    weights: (P,) float64, what each item counts in a fit, at most 1; None: 1
    """

    values: ItemRows
    weights: Tensor | None = None


@dataclass
class CandidateLists(JaggedIds):
    """B lists of candidates. weights: as of ItemLists"""

    values: CandidateIds
    weights: Tensor | None = None

    def in_table(self, rows: int) -> ItemLists:
        """Return the rows of the candidates in an item table of `rows` rows."""
        return ItemLists(item_rows(self.values, rows), self.lengths, self.weights)


@dataclass(frozen=True)
class Interactions:
    """Distinct pairs of a user and a known item in the training rows: users (E,) and items (E,), both int64.

    Both are rows of their tables.
    """

    users: Tensor
    items: ItemRows

    def to(self, device: torch.device) -> "Interactions":
        return Interactions(self.users.to(device), ItemRows(CandidateIds(self.items.to(device))))


@dataclass
class Batch(Pipelineable):
    """B rows.

    dense: (B, D) float32
    sparse: F keys in the FeatureSpec's order, B bags each
    labels: (B, T) float32
    weight: (B,) float32, or None if all rows have weight 1; rows of weight 0 are padding
    group: (B,) int64, equal for neighbouring rows of one group; None unless data.group.together is set
    position: (B,) int32, where each row stood in its list; None unless data.position is set, and in serving
    first_row: row number of the first row in its split
    queries: what a retrieval model makes of the rows, if the loader has had it made before the copy to a GPU

    For retrieval, held-out rows are queries. Two fields contain candidate ids (0: an unknown item), always on the CPU:
    targets: the items that followed each query
    history: the items that precede the query's targets; the protocol may leave them out of the ranking

    >>> sparse = KeyedJaggedTensor(["user"], torch.tensor([3, 1]), lengths=torch.tensor([1, 1]))
    >>> Batch(torch.zeros(2, 4), sparse, labels=torch.tensor([[1.0], [0.0]])).rows
    2
    """

    dense: Tensor
    sparse: KeyedJaggedTensor
    labels: Tensor
    weight: Tensor | None = None
    group: Tensor | None = None
    position: Tensor | None = None
    targets: CandidateLists | None = None
    history: CandidateLists | None = None
    first_row: int = 0
    queries: Pipelineable | None = None

    @property
    def rows(self) -> int:
        return self.labels.shape[0]

    def to(self, device: torch.device, non_blocking: bool = False) -> "Batch":
        return Batch(
            dense=self.dense.to(device, non_blocking=non_blocking),
            sparse=self.sparse.to(device, non_blocking=non_blocking),
            labels=self.labels.to(device, non_blocking=non_blocking),
            weight=None if self.weight is None else self.weight.to(device, non_blocking=non_blocking),
            group=None if self.group is None else self.group.to(device, non_blocking=non_blocking),
            position=None if self.position is None else self.position.to(device, non_blocking=non_blocking),
            targets=self.targets,
            history=self.history,
            first_row=self.first_row,
            queries=None if self.queries is None else self.queries.to(device, non_blocking=non_blocking),
        )

    def record_stream(self, stream: torch.Stream) -> None:
        for tensor in (self.dense, self.labels, self.weight, self.group, self.position):
            if tensor is not None:
                tensor.record_stream(stream)
        self.sparse.record_stream(stream)
        if self.queries is not None:
            self.queries.record_stream(stream)

    def pin_memory(self) -> "Batch":
        return Batch(
            dense=self.dense.pin_memory(),
            sparse=self.sparse.pin_memory(),
            labels=self.labels.pin_memory(),
            weight=None if self.weight is None else self.weight.pin_memory(),
            group=None if self.group is None else self.group.pin_memory(),
            position=None if self.position is None else self.position.pin_memory(),
            targets=self.targets,
            history=self.history,
            first_row=self.first_row,
            queries=None if self.queries is None else self.queries.pin_memory(),
        )
