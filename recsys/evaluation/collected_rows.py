"""The measured rows of a split, collected from all ranks."""

from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from recsys.base.errors import NotFinite

Value = TypeVar("Value")


@dataclass(frozen=True)
class Rows:
    """Measured rows in the order of their split.

    place: (R,) int64, row numbers in the split
    probability: (R,) float32; of a label that is not binary, its prediction, (R,) or (R, C)
    label: (R,)
    weight: (R,) float32; None if all rows have weight 1
    """

    place: np.ndarray
    probability: np.ndarray
    label: np.ndarray
    weight: np.ndarray | None = None

    @classmethod
    def concat(cls, parts: list["Rows"]) -> "Rows":
        """Return the rows of all parts; a part without rows may lack the weight of the others."""
        weights = [p.weight for p in parts if p.weight is not None]
        place, probability, label = (
            np.concatenate([getattr(p, name) for p in parts]) for name in ("place", "probability", "label")
        )
        return cls(place, probability, label, np.concatenate(weights) if weights else None)

    @property
    def weights(self) -> np.ndarray:
        """The weight of each row, (R,) float64; 1 where rows have none."""
        return np.ones(len(self.label)) if self.weight is None else self.weight.astype(np.float64)

    def take(self, at: np.ndarray) -> "Rows":
        """Return the rows at these indices, or where a mask is True."""
        weight = None if self.weight is None else self.weight[at]
        return Rows(self.place[at], self.probability[at], self.label[at], weight)


class RowCollector:
    """Collects the measured rows of this rank.

    rows: number of rows that were added and not taken
    added, not_finite: number of rows added since the last `take`, and of their predictions that are not finite
    """

    def __init__(self) -> None:
        self.rows = self.added = self.not_finite = 0
        self._parts: list[Rows] = []

    def add(self, prediction: Tensor, label: Tensor, weight: Tensor | None, first_row: int) -> None:
        """Add predictions (B,) or (B, C), labels (B,), and weights (B,).

        Rows whose label is NaN are left out, and rows of weight 0, such as padding.
        """
        known = ~torch.isnan(label)
        if weight is not None:
            known &= weight > 0
        whole = bool(known.all())
        place = np.arange(first_row, first_row + len(label))
        parts = [prediction, label, weight]
        if not whole:
            place, parts = place[known.cpu().numpy()], [None if x is None else x[known] for x in parts]
        p, y, w = (None if x is None else x.cpu().numpy() for x in parts)
        assert p is not None and y is not None
        if len(p):
            self.not_finite += int((~np.isfinite(p)).sum())
            self.rows += len(p)
            self.added += len(p)
            self._parts.append(Rows(place, p, y, w))

    def take(self, label_type: Any, width: int = 0) -> Rows:
        """Return all rows that were added, in the order of the split, and forget them. Collective.

        width: C for predictions (R, C), 0 for (R,)

        Raises:
            NotFinite: a prediction is NaN or infinite; on all ranks.
        """
        rows, counts = self.take_mine(label_type, width), np.array([self.added, self.not_finite])
        self.added = self.not_finite = 0
        total, not_finite = summed_over_ranks(counts).tolist()
        if not_finite:
            raise NotFinite(f"{not_finite:,} of {total:,} predictions are NaN or infinite")
        return rows

    def take_mine(self, label_type: Any, width: int = 0) -> Rows:
        """Return the rows of this rank as `take` does, but without looking at the predictions."""
        parts, self._parts, self.rows = sorted(self._parts, key=lambda part: part.place[0]), [], 0
        shape = (0, width) if width else (0,)
        none = Rows(np.zeros(0, np.int64), np.zeros(shape, np.float32), np.zeros(0, label_type))
        return Rows.concat([none, *(replace(p, label=p.label.astype(label_type)) for p in parts)])


def is_distributed() -> bool:
    """Return whether there are several processes."""
    return world_size() > 1


def world_size() -> int:
    """Return the number of processes, 1 without a process group."""
    return dist.get_world_size() if dist.is_initialized() else 1


def rank() -> int:
    """Return the rank of this process, 0 without a process group."""
    return dist.get_rank() if dist.is_initialized() else 0


def summed_over_ranks(x: np.ndarray) -> np.ndarray:
    """Return the sum over ranks. Collective."""
    if not is_distributed():
        return x
    sum_ = torch.from_numpy(x.copy())
    dist.all_reduce(sum_)
    return sum_.numpy()


def from_rank_0(value: Value) -> Value:
    """Return the value of rank 0 on every rank. Collective."""
    box = [value]
    if is_distributed():
        dist.broadcast_object_list(box)
    return box[0]


def on_rank_0(rows: Rows, group: np.ndarray | None) -> tuple[Rows, np.ndarray | None]:
    """Return the rows of all ranks on rank 0, in the order of their split; other ranks keep theirs. Collective."""
    if not is_distributed():
        return rows, group
    parts: list[Any] | None = [None] * dist.get_world_size() if rank() == 0 else None
    dist.gather_object((rows, group), parts)
    if parts is None:
        return rows, group
    parts.sort(key=lambda part: part[0].place[0] if len(part[0].place) else 0)  # ranks read consecutive rows
    return Rows.concat([r for r, _ in parts]), None if group is None else np.concatenate([g for _, g in parts])
