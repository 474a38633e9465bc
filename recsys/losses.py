"""Losses of models that retrieve: which of all items was chosen?

Each says which items it wants to compare the chosen ones with (`draw`) and how it compares them. A model's scores are
dot products of queries and items, or what its own `match` makes of them.

All take queries (Q, d) with, for T chosen items, the query of each (`owners`), and give the mean over the T.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

NEGATIVES = ("uniform", "popularity", "in_batch")


class Popularity:
    """How often each of N candidates was chosen, (N,), and what draws make of it, worked out once."""

    def __init__(self, counts: Tensor) -> None:
        self.counts = counts

    def __len__(self) -> int:
        return len(self.counts)

    @cached_property
    def cumulative(self) -> Tensor:
        """(N,) float64"""
        return self.counts.double().cumsum(0)

    @cached_property
    def log_share(self) -> Tensor:
        """(N,) the logarithm of each one's share; none is below that of one chosen once."""
        return (self.counts.clamp(min=1) / self.counts.sum().clamp(min=1)).log()


@dataclass
class Drawn:
    """Items to compare with.

    ids: (M,), shared by all queries, or (T, n) of each chosen item's own
    log_share: of each candidate (N,), the logarithm of its expected share of what is drawn, where that counts
    rate: how many of all others are drawn
    """

    ids: Tensor
    log_share: Tensor | None = None
    rate: float = 1.0


class Match(nn.Module):
    """Scores as dot products."""

    def all(self, queries: Tensor, items: Tensor) -> Tensor:
        """(Q, d), (M, d) -> (Q, M)"""
        return queries @ items.T

    def each(self, queries: Tensor, items: Tensor) -> Tensor:
        """(..., d), (..., d) -> (...)"""
        return (queries * items).sum(dim=-1)


class FullSoftmax(nn.Module):
    """Cross-entropy over all candidates."""

    def __init__(self, *, label_smoothing: float = 0.0) -> None:
        super().__init__()
        self.label_smoothing = label_smoothing

    def draw(self, targets: Tensor, popularity: Popularity) -> Drawn:
        return Drawn(torch.arange(1, len(popularity), device=targets.device))

    def forward(
        self,
        match: Match,
        queries: Tensor,
        owners: Tensor,
        targets: Tensor,
        chosen: Tensor,
        drawn: Drawn,
        others: Tensor,
    ) -> Tensor:
        scores = match.all(queries, others)
        if _one_each(queries, owners):
            return nn.functional.cross_entropy(scores, targets - 1, label_smoothing=self.label_smoothing)
        log_share = scores.log_softmax(dim=1)
        chosen_share = -log_share[owners, targets - 1].mean()
        if not self.label_smoothing:
            return chosen_share
        return (1 - self.label_smoothing) * chosen_share - self.label_smoothing * log_share.mean(dim=1)[owners].mean()


class SampledSoftmax(nn.Module):
    """Cross-entropy over the chosen item and drawn ones, shared by all queries, each score less the logarithm of the
    item's expected share of the draw: without that correction what is drawn often would score low (Bengio & Senecal
    2008; Yi et al. 2019, https://dl.acm.org/doi/10.1145/3298689.3346996). An item drawn that is the chosen one of a
    query is no negative to it.

    negatives: uniform | popularity | in_batch (the batch's own chosen items, at most `count` of them; what a query has
    chosen itself is no negative to it)
    hardest: only so many of the drawn ones, those that score highest with the query, count (Zhang et al. 2013,
    https://dl.acm.org/doi/10.1145/2484028.2484126); the draw is then one of candidates for hard negatives
    """

    def __init__(
        self,
        *,
        negatives: str = "uniform",
        count: int = 256,
        correct: bool = True,
        temperature: float = 1.0,
        hardest: int | None = None,
    ) -> None:
        super().__init__()
        _check(negatives, count)
        if hardest is not None and hardest < 1:
            raise ValueError(f"hardest {hardest} is not positive")
        self.hardest = hardest
        if temperature <= 0:
            raise ValueError(f"temperature {temperature} is not positive")
        self.negatives, self.count, self.correct, self.temperature = negatives, count, correct, temperature

    def draw(self, targets: Tensor, popularity: Popularity) -> Drawn:
        ids = _drawn(self.negatives, (self.count,), targets, popularity)
        if not self.correct or self.negatives == "uniform":  # all shares are one, which makes no difference
            return Drawn(ids)
        return Drawn(ids, popularity.log_share)

    def forward(
        self,
        match: Match,
        queries: Tensor,
        owners: Tensor,
        targets: Tensor,
        chosen: Tensor,
        drawn: Drawn,
        others: Tensor,
    ) -> Tensor:
        one_each = _one_each(queries, owners)
        positive = match.each(queries if one_each else queries[owners], chosen)
        scores = match.all(queries, others)
        if self.temperature != 1:
            positive, scores = positive / self.temperature, scores / self.temperature
        if drawn.log_share is not None:
            positive = positive - drawn.log_share[targets]
            scores = scores - drawn.log_share[drawn.ids]
        scores = scores if one_each else scores[owners]
        own_choice = targets[:, None] == drawn.ids[None, :]
        if self.negatives == "in_batch" and len(owners) > len(queries):
            own_choice = _chosen_by(owners, targets, drawn.ids, len(queries))[owners]
        scores = scores.masked_fill(own_choice, -math.inf)
        if self.hardest is not None and self.hardest < scores.shape[1]:
            scores = scores.topk(self.hardest, dim=1, sorted=False).values
        return (torch.logaddexp(positive, scores.logsumexp(dim=1)) - positive).mean()


class BCE(nn.Module):
    """Binary cross-entropy of the chosen item against `count` drawn ones of its own (SASRec's has one, uniform).

    calibration: t of gBCE (Petrov & Macdonald 2023, https://arxiv.org/abs/2308.07192), whose positive probability is
    raised to a power so that drawing few of many items makes no model overconfident: 0 is plain, 1 fully calibrated.
    shared: the same drawn items for all of the batch, which many of them need.
    """

    def __init__(
        self, *, negatives: str = "uniform", count: int = 1, calibration: float = 0.0, shared: bool = False
    ) -> None:
        super().__init__()
        _check(negatives, count)
        if not 0 <= calibration <= 1:
            raise ValueError(f"calibration {calibration} is not from 0 to 1")
        self.negatives, self.count, self.calibration, self.shared = negatives, count, calibration, shared

    def draw(self, targets: Tensor, popularity: Popularity) -> Drawn:
        shape = (self.count,) if self.shared else (len(targets), self.count)
        ids = _drawn(self.negatives, shape, targets, popularity)
        return Drawn(ids, rate=min(ids.shape[-1] / max(len(popularity) - 2, 1), 1.0))

    def forward(
        self,
        match: Match,
        queries: Tensor,
        owners: Tensor,
        targets: Tensor,
        chosen: Tensor,
        drawn: Drawn,
        others: Tensor,
    ) -> Tensor:
        own = queries if _one_each(queries, owners) else queries[owners]
        positive = match.each(own, chosen)
        if drawn.ids.dim() == 1:
            negative = match.all(own, others)
            hit = drawn.ids[None, :] == targets[:, None]
        else:
            negative = match.each(own[:, None, :].expand_as(others), others)
            hit = drawn.ids == targets[:, None]
        against = nn.functional.softplus(negative).masked_fill(hit, 0.0).sum(dim=1)
        power = drawn.rate * (self.calibration * (1 - 1 / drawn.rate) + 1 / drawn.rate)  # their beta, of alpha and t
        return (power * nn.functional.softplus(-positive) + against).mean()


class BPR(nn.Module):
    """Pairwise: the chosen item above a drawn one (Rendle et al. 2009, https://arxiv.org/abs/1205.2618)."""

    def __init__(self, *, negatives: str = "uniform", count: int = 1) -> None:
        super().__init__()
        _check(negatives, count)
        self.negatives, self.count = negatives, count

    def draw(self, targets: Tensor, popularity: Popularity) -> Drawn:
        return Drawn(_drawn(self.negatives, (len(targets), self.count), targets, popularity))

    def forward(
        self,
        match: Match,
        queries: Tensor,
        owners: Tensor,
        targets: Tensor,
        chosen: Tensor,
        drawn: Drawn,
        others: Tensor,
    ) -> Tensor:
        own = queries if _one_each(queries, owners) else queries[owners]
        margin = match.each(own, chosen)[:, None] - match.each(own[:, None, :].expand_as(others), others)
        return nn.functional.softplus(-margin).masked_fill(drawn.ids == targets[:, None], 0.0).mean()


def _chosen_by(owners: Tensor, targets: Tensor, ids: Tensor, queries: int) -> Tensor:
    """(Q, M) which of these items each query has chosen."""
    distinct, place = torch.unique(torch.cat([targets, ids]), return_inverse=True)
    chosen = torch.zeros(queries, len(distinct), dtype=torch.bool, device=ids.device)
    chosen[owners, place[: len(targets)]] = True
    return chosen[:, place[len(targets) :]]


def _one_each(queries: Tensor, owners: Tensor) -> bool:
    """Whether each query has one chosen item, in their order."""
    return len(owners) == len(queries) and bool((owners == torch.arange(len(owners), device=owners.device)).all())


def _check(negatives: str, count: int) -> None:
    if negatives not in NEGATIVES:
        raise ValueError(f"negatives {negatives!r} is not one of {', '.join(NEGATIVES)}")
    if count < 1:
        raise ValueError(f"count {count} is not positive")


def _drawn(negatives: str, shape: tuple[int, ...], targets: Tensor, popularity: Popularity) -> Tensor:
    """Candidates drawn with replacement; of the batch, all its chosen items, or others' in random order."""
    if negatives == "in_batch":
        if len(shape) == 1 and shape[0] >= len(targets):
            return targets
        return targets[torch.randint(len(targets), shape, device=targets.device)]
    if negatives == "uniform":
        return torch.randint(1, len(popularity), shape, device=targets.device)
    weights = popularity.cumulative
    drawn = torch.rand(shape, dtype=torch.float64, device=targets.device) * weights[-1]
    return torch.searchsorted(weights, drawn, right=True).clamp(max=len(popularity) - 1)
