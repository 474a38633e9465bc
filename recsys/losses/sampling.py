"""Negatives that the chosen items are compared with, and how they are drawn."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor, nn

from recsys.base.ranges import Age
from recsys.interface.ageing import Ageing

Distribution = Literal["uniform", "popularity", "in_batch"]
# samples per candidate from which all candidates are scored: few are then in no sample, with a gradient of 0
MIN_SAMPLES = 8
MAX_CANDIDATES = 32  # candidates per negative of a target up to which it takes less time to score all of them


class Popularity:
    """Counts (N,) of how often each candidate was chosen in training, and cached distributions derived from them."""

    def __init__(self, counts: Tensor) -> None:
        self.counts = counts

    def __len__(self) -> int:
        return len(self.counts)

    @cached_property
    def cumulative(self) -> Tensor:
        """Cumulative counts (N,) in float64, for sampling."""
        return self.counts.double().cumsum(0)

    @cached_property
    def log_share(self) -> Tensor:
        """Logarithm (N,) of each candidate's share of all choices, at least that of a candidate chosen once, and the
        least of those that are chosen where choices count less by their age.
        """
        least = self.counts.masked_fill(self.counts <= 0, 1.0).min().clamp(max=1)
        return (self.counts.maximum(least) / self.counts.sum().clamp(min=least)).log()


@dataclass
class Negatives:
    """Sampled items that the chosen items are compared with.

    ids: (M,) negatives shared by all queries, or (T, n) separate negatives for each chosen item
    log_share: (N,) logarithm of each candidate's expected share of a sample; None if the loss does not need it
    sampling_rate: number of sampled negatives divided by the number of all other items
    complete: whether `ids` has each candidate once
    uniform: whether `ids` are drawn uniformly
    """

    ids: Tensor
    log_share: Tensor | None = None
    sampling_rate: float = 1.0
    complete: bool = False
    uniform: bool = False

    def filled_up(self, targets: int, room: int) -> "Negatives":
        """Return the negatives of as many targets, behind which `room` more are filled in.

        Rows of `ids` that are filled in are item 1; shared ids that are, the batch's own targets, are item 0.
        """
        if self.complete or len(self.ids) != targets:
            return self
        shared = self.ids.dim() == 1
        ids = nn.functional.pad(self.ids, (0, room) if shared else (0, 0, 0, room), value=0 if shared else 1)
        return replace(self, ids=ids)

    def looked_up(self, popularity: Popularity) -> Tensor:
        """Return the ids whose vectors are looked up: `ids`, or all candidates where scoring all takes less time."""
        rows, separate = len(popularity), self.uniform and self.ids.dim() == 2
        of_all = separate and rows <= min(self.ids.numel() // MIN_SAMPLES, MAX_CANDIDATES * self.ids.shape[1])
        return torch.arange(1, rows, device=self.ids.device) if of_all else self.ids


def all_candidates(targets: Tensor, popularity: Popularity) -> Negatives:
    """Return each candidate once."""
    return Negatives(torch.arange(1, len(popularity), device=targets.device), complete=True)


def ageing_of_negatives(negatives: Distribution, window: Age | None, half_life: Age | None) -> Ageing | None:
    """Return how the popularity of negatives ages. Raises ValueError if they are not drawn by it."""
    ageing = Ageing.of(window, half_life)
    if ageing is not None and negatives != "popularity":
        raise ValueError(f"negatives={negatives}: window and half_life age their popularity; set negatives=popularity")
    return ageing


def sample_negatives(
    negatives: Distribution, count: int, targets: Tensor, popularity: Popularity, *, shared: bool
) -> Negatives:
    """Sample negatives (T, n), or (M,) if shared: all candidates if uniform ones would be half of them or more."""
    if shared and negatives == "uniform" and 2 * count >= len(popularity) - 1:
        return all_candidates(targets, popularity)
    shape = (count,) if shared else (len(targets), count)
    return Negatives(sample_ids(negatives, shape, targets, popularity), uniform=negatives == "uniform")


def sample_ids(negatives: Distribution, shape: tuple[int, ...], targets: Tensor, popularity: Popularity) -> Tensor:
    """Sample candidates with replacement. in_batch returns all chosen items of the batch where `shape` allows it."""
    if negatives == "in_batch":
        if len(shape) == 1 and shape[0] >= len(targets):
            return targets
        return targets[torch.randint(len(targets), shape, device=targets.device)]
    if negatives == "uniform":
        return torch.randint(1, len(popularity), shape, device=targets.device)
    weights = popularity.cumulative
    points = torch.rand(shape, dtype=torch.float64, device=targets.device) * weights[-1]
    return torch.searchsorted(weights, points, right=True).clamp(max=len(popularity) - 1)
