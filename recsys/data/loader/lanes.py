"""Continue an epoch with a different number of processes, so that every row is still used exactly once.

With W processes, the rows of a split are divided into W lanes, one per process, and each step takes the same number of
rows from each lane. If a run is resumed within an epoch with another number of processes, it keeps the lanes of that
epoch: each process reads its part of every step from the lanes that contain it. From the next epoch on, each process
has its own lane again.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recsys.interface.batch import Batch


@dataclass(frozen=True)
class LanePart:
    """Rows start ... stop - 1 of each batch of a lane."""

    lane: int
    start: int
    stop: int


def parts_of(rank: int, world_size: int, lanes: int, step_rows: int) -> list[LanePart]:
    """Return the lanes, and the rows of their batches, that contain this rank's rows of a step.

    step_rows: rows of a step over all ranks, a multiple of `world_size` and of `lanes`
    """
    mine, lane_rows = step_rows // world_size, step_rows // lanes
    first, last = rank * mine, (rank + 1) * mine
    parts = []
    for lane in range(first // lane_rows, -(-last // lane_rows)):
        before = lane * lane_rows
        parts.append(LanePart(lane, max(first - before, 0), min(last - before, lane_rows)))
    return parts


def lane_batches(open_lane: Callable[[int], Iterator[Batch]], parts: list[LanePart], lane_rows: int) -> Iterator[Batch]:
    """Yield this rank's batches. Each is the concatenation of this rank's parts of the lanes' batches.

    lane_rows: rows of a lane's batch. The last one may have fewer; its ranks have shares of the same size
    """
    lanes = [open_lane(part.lane) for part in parts]
    for batches in zip(*lanes, strict=True):
        pairs = zip(batches, parts, strict=True)
        yield concat([rows_of(b, p.start * b.rows // lane_rows, p.stop * b.rows // lane_rows) for b, p in pairs])


def rows_of(batch: Batch, start: int, stop: int) -> Batch:
    """Return rows start ... stop - 1 of a training batch."""
    if (start, stop) == (0, batch.rows):
        return batch
    sparse, rows = batch.sparse, batch.rows
    stop = min(stop, rows)
    offsets, values = sparse.offsets(), sparse.values()
    lengths = sparse.lengths().view(-1, rows)[:, start:stop]
    slices = [values[offsets[f * rows + start] : offsets[f * rows + stop]] for f in range(len(sparse.keys()))]
    empty = values[:0]
    return Batch(
        batch.dense[start:stop],
        KeyedJaggedTensor(sparse.keys(), torch.cat([empty, *slices]), lengths=lengths.reshape(-1)),
        batch.labels[start:stop],
        None if batch.weight is None else batch.weight[start:stop],
        None if batch.group is None else batch.group[start:stop],
        None if batch.position is None else batch.position[start:stop],
    )


def concat(batches: list[Batch]) -> Batch:
    """Return the rows of training batches as one batch."""
    if len(batches) == 1:
        return batches[0]
    keys = batches[0].sparse.keys()
    jagged = [b.sparse.to_dict() for b in batches]
    values = [j[key].values() for key in keys for j in jagged]
    lengths = [j[key].lengths() for key in keys for j in jagged]
    empty = batches[0].sparse.values()[:0]
    names = ("weight", "group", "position")
    weights, groups, positions = ([x for b in batches if (x := getattr(b, n)) is not None] for n in names)
    return Batch(
        torch.cat([b.dense for b in batches]),
        KeyedJaggedTensor(keys, torch.cat([empty, *values]), lengths=torch.cat([empty, *lengths]).int()),
        torch.cat([b.labels for b in batches]),
        torch.cat(weights) if len(weights) == len(batches) else None,
        torch.cat(groups) if groups else None,
        torch.cat(positions) if positions else None,
    )
