"""Losses of retrieval models, which compare the score of the chosen item with the scores of other items.

A loss samples the items that it compares the chosen items with (`sample`), then compares their scores (`forward`).
Scores are computed by the model's scorer: dot products of queries and item vectors by default. B rows make Q queries,
which have T chosen items.
"""

import math
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from pydantic import PositiveFloat
from torch import Tensor, nn

from recsys.base.ranges import Age, Count, Part, Share
from recsys.interface.ageing import Ageing
from recsys.losses.blocked_softmax import NO_TARGET, blocked_cross_entropy
from recsys.losses.sampling import (
    Distribution,
    Negatives,
    Popularity,
    ageing_of_negatives,
    all_candidates,
    sample_ids,
    sample_negatives,
)
from recsys.models.common.items import QueryBatch, Scorer

REDRAWS = 4  # how often negatives that are in a row's history are drawn again


@dataclass
class LossInputs:
    """A batch's queries, chosen items and negatives.

    scorer: the model's scorer
    queries: (Q, d)
    query_of_target: (T,) index of the query that chose each item
    targets: (T,) ids of the chosen items
    target_vectors: (T, d), vectors of targets
    negatives: the sample that `sample` returned
    looked_up: vectors of negatives.looked_up: (M, d), (T, n, d) or, of all candidates, (N - 1, d)
    in_order: whether each query is known to have one chosen item, in the order of the queries
    one_target_each: the same, where the host need not wait for a GPU that knows it
    weights: weights of the chosen items, (T,), and of their negatives, (T, n); None if all pairs have equal weights
    filled: (T,), whether each target counts; None if all do. Others are item 0, and fill up the tensors
    """

    scorer: Scorer
    queries: Tensor
    query_of_target: Tensor
    targets: Tensor
    target_vectors: Tensor
    negatives: Negatives
    looked_up: Tensor
    in_order: bool = False
    weights: tuple[Tensor, Tensor] | None = None
    filled: Tensor | None = None

    def __post_init__(self) -> None:
        self.one_target_each = self.in_order
        if not self.in_order and len(self.query_of_target) == len(self.queries) and not self.queries.is_cuda:
            order = torch.arange(len(self.queries))
            self.one_target_each = bool((self.query_of_target == order).all())

    @property
    def target_queries(self) -> Tensor:
        """Query of each chosen item, (T, d)."""
        return self.queries if self.one_target_each else self.queries[self.query_of_target]

    @property
    def negative_vectors(self) -> Tensor:
        """Vectors of negatives.ids: (M, d) if shared, or (T, n, d)."""
        ids, vectors = self.negatives.ids, self.looked_up
        return vectors[ids - 1] if ids.dim() == 2 and vectors.dim() == 2 else vectors

    def no_negatives(self) -> Tensor:
        """Return which negatives are the chosen item, or fill up the tensor: (T, M) or (T, n), bool."""
        ids = self.negatives.ids
        chosen = ids == self.targets[:, None]
        return chosen if self.filled is None or ids.dim() == 2 else chosen | (ids == 0)

    def number_of_negatives(self) -> Tensor | int:
        """Return how many negatives each target has: M or n."""
        ids = self.negatives.ids
        return ids.shape[-1] if self.filled is None or ids.dim() == 2 else (ids > 0).sum()

    def mean(self, losses: Tensor) -> Tensor:
        """Return the mean, (), of the losses of the targets that count: (T,) or (T, n)."""
        if self.filled is None:
            return losses.mean()
        filled = self.filled.view(-1, *[1] * (losses.dim() - 1))
        return torch.where(filled, losses, 0.0).sum() / (filled.sum() * losses[0].numel())

    def negative_scores(self) -> Tensor:
        """Return the scores of each chosen item's negatives: (T, M) if shared, or (T, n)."""
        ids, vectors = self.negatives.ids, self.looked_up
        if ids.dim() == 1:
            scores = self.scorer.score_all(self.queries, vectors)
            return scores if self.one_target_each else scores[self.query_of_target]
        if vectors.dim() == 2:  # of all candidates; under autocast, gradients of repeated ids add up in float32
            return self.scorer.score_all(self.target_queries, vectors).float().gather(1, ids - 1)
        return self.scorer.score_pairs(self.target_queries[:, None, :].expand(-1, ids.shape[1], -1), vectors)


class RetrievalLoss(Protocol):
    """Protocol of losses over queries and items. A loss that a config names must subclass it and nn.Module.

    ageing: how choices count by their age in the popularity that `sample` takes; None: alike
    reads_filled: whether `forward` leaves out what fills up the tensors, see LossInputs.filled
    """

    ageing: Ageing | None = None
    reads_filled: bool = False

    def sample(self, targets: Tensor, popularity: Popularity) -> Negatives:
        """Sample the negatives for the chosen items, targets (T,)."""
        ...

    def forward(self, inputs: LossInputs) -> Tensor:
        """Return the mean loss over the T chosen items, (): queries (Q, d), targets (T,), negatives (M, d) or (T, n,
        d).
        """
        ...


class FullSoftmax(nn.Module, RetrievalLoss):
    """Cross-entropy over all candidates.

    Args:
        label_smoothing: the share of the target distribution that is uniform over all candidates.
    """

    reads_filled = True

    def __init__(self, *, label_smoothing: Share = 0.0) -> None:
        super().__init__()
        self.label_smoothing = label_smoothing

    def sample(self, targets: Tensor, popularity: Popularity) -> Negatives:
        return all_candidates(targets, popularity)

    def forward(self, inputs: LossInputs) -> Tensor:
        """Return the mean loss, (): queries (Q, d), targets (T,), vectors of all candidates (M, d)."""
        if type(inputs.scorer) is Scorer:
            return _full_softmax(inputs, inputs.queries, self.label_smoothing)
        scores, places = inputs.negative_scores(), inputs.targets - 1
        return nn.functional.cross_entropy(scores, places, ignore_index=NO_TARGET, label_smoothing=self.label_smoothing)


def _full_softmax(inputs: LossInputs, queries: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """Return the mean loss, (), by dot products: queries (Q, d)."""
    return blocked_cross_entropy(
        queries,
        inputs.negative_vectors,
        inputs.query_of_target,
        inputs.targets - 1,
        label_smoothing,
        inputs.one_target_each,
    )


class SampledSoftmax(nn.Module, RetrievalLoss):
    """Cross-entropy over the chosen item and sampled negatives.

    If shared uniform negatives would be half of all candidates or more, all are taken, as in FullSoftmax.
    Each score is reduced by the logarithm of the item's expected share of the sample; without that correction, items
    that are sampled often would score too low (Bengio & Senecal 2008; Yi et al. 2019,
    https://dl.acm.org/doi/10.1145/3298689.3346996). A sampled item that a query has chosen is not used as its negative;
    its own score is reduced by the logarithm of the probability that the sample has it at all. So scores are those of
    the full softmax, also of an item that occurs many times in a batch.

    Args:
        negatives: uniform, popularity or in_batch (the batch's own chosen items).
        count: number of negatives to sample; with in_batch, the maximum.
        correct: whether to subtract the logarithm of each item's expected share from its score.
        temperature: divides all scores.
        shared: whether all chosen items of a batch share one sample; separate ones take T x count vectors, or T x N
            scores if there are few candidates.
        hardest: use only this many negatives per query, those with the highest scores (Zhang et al. 2013,
            https://dl.acm.org/doi/10.1145/2484028.2484126); None uses all.
        window: age from which a choice does not count for the popularity of negatives.
        half_life: age at which it counts half.
    """

    reads_filled = True

    def __init__(
        self,
        *,
        negatives: Distribution = "uniform",
        count: Count = 256,
        correct: bool = True,
        temperature: PositiveFloat = 1.0,
        shared: bool = True,
        hardest: Count | None = None,
        window: Age | None = None,
        half_life: Age | None = None,
    ) -> None:
        super().__init__()
        self.ageing = ageing_of_negatives(negatives, window, half_life)
        self.negatives, self.count, self.correct, self.temperature = negatives, count, correct, temperature
        self.shared, self.hardest = shared, hardest

    def sample(self, targets: Tensor, popularity: Popularity) -> Negatives:
        sample = sample_negatives(self.negatives, self.count, targets, popularity, shared=self.shared)
        if not self.correct or self.negatives == "uniform":  # subtracting equal shares would not change the loss
            return sample
        return replace(sample, log_share=popularity.log_share)

    def forward(self, inputs: LossInputs) -> Tensor:
        """Return the mean loss, (): queries (Q, d), targets (T,), negative vectors (M, d) if shared, or (T, n, d)."""
        targets, query_of_target, negatives = inputs.targets, inputs.query_of_target, inputs.negatives
        if negatives.complete and self.hardest is None and type(inputs.scorer) is Scorer:
            return _full_softmax(inputs, inputs.queries / self.temperature)
        positive = inputs.scorer.score_pairs(inputs.target_queries, inputs.target_vectors)
        scores = inputs.negative_scores()
        if self.temperature != 1:
            positive, scores = positive / self.temperature, scores / self.temperature
        if negatives.log_share is not None:
            positive = positive - _log_inclusion(negatives.log_share[targets], inputs.number_of_negatives())
            scores = scores - negatives.log_share[negatives.ids]
        chosen = inputs.no_negatives()
        if self.shared and self.negatives == "in_batch" and len(query_of_target) > len(inputs.queries):
            # all items that a query has chosen are no negatives of any of its targets
            items = len(negatives.ids)
            ordered = negatives.ids.sort().values
            place = torch.searchsorted(ordered, targets).clamp(max=items - 1)
            place = torch.where(ordered[place] == targets, place, items)  # a column that is not read
            of_query = chosen.new_zeros(len(inputs.queries), items + 1)
            of_query[query_of_target, place] = True
            chosen = of_query[:, torch.searchsorted(ordered, negatives.ids)][query_of_target]
        scores = scores.float().masked_fill(chosen, -math.inf)  # autocast on CPUs would add exponentials in bfloat16
        if self.hardest is not None and self.hardest < scores.shape[1]:
            scores = scores.topk(self.hardest, dim=1, sorted=False).values
        return inputs.mean(torch.logaddexp(positive, scores.logsumexp(dim=1)) - positive)


def _log_inclusion(log_share: Tensor, drawn: Tensor | int) -> Tensor:
    """Return the logarithm of the probability that an item is among the drawn ones at all, divided by their number.

    The chosen item's term stands for all its occurrences, since those among the negatives are left out: with its share,
    an item that most samples hold several times would score too high.
    """
    share = log_share.double().exp().clamp(max=1 - 1e-12)
    return (-torch.expm1(drawn * torch.log1p(-share)) / drawn).log().to(log_share.dtype)


class BCE(nn.Module, RetrievalLoss):
    """Binary cross-entropy of the chosen item (label 1) and its sampled negatives (label 0).

    SASRec samples one negative uniformly.

    Args:
        negatives: uniform, popularity or in_batch.
        count: number of negatives per chosen item.
        calibration: t of gBCE (Petrov & Macdonald 2023, https://arxiv.org/abs/2308.07192), which raises the positive
            probability to a power so that sampling few of many items does not make the model overconfident. 0 is plain
            binary cross-entropy, 1 is fully calibrated.
        outside_history: whether negatives are drawn outside the row's own items; otherwise only the target itself is
            left out.
        shared: whether all chosen items of a batch share one sample; use it with a large `count`, since separate
            samples take T x count vectors, or T x N scores if there are few candidates.
        window: age from which a choice does not count for the popularity of negatives.
        half_life: age at which it counts half.
    """

    takes_weights, reads_filled = True, True

    def __init__(
        self,
        *,
        negatives: Distribution = "uniform",
        count: Count = 1,
        calibration: Part = 0.0,
        shared: bool = False,
        outside_history: bool = False,
        window: Age | None = None,
        half_life: Age | None = None,
    ) -> None:
        super().__init__()
        self.ageing = ageing_of_negatives(negatives, window, half_life)
        if shared and outside_history:
            raise ValueError("outside_history=true: rows have different histories; set shared=false")
        self.negatives, self.count, self.calibration, self.shared = negatives, count, calibration, shared
        self.outside_history = outside_history

    def sample(self, targets: Tensor, popularity: Popularity, query_batch: QueryBatch | None = None) -> Negatives:
        shape = (self.count,) if self.shared else (len(targets), self.count)
        ids = sample_ids(self.negatives, shape, targets, popularity)
        if query_batch is not None:
            keys, rows = query_batch.chosen_keys(len(popularity))
            for _ in range(REDRAWS):
                chosen = torch.isin(rows[:, None] * len(popularity) + ids, keys)
                ids = torch.where(chosen, sample_ids(self.negatives, shape, targets, popularity), ids)
        rate = min(ids.shape[-1] / max(len(popularity) - 2, 1), 1.0)
        return Negatives(ids, sampling_rate=rate, uniform=self.negatives == "uniform")

    def forward(self, inputs: LossInputs) -> Tensor:
        """Return the mean loss, (): queries (Q, d), targets (T,), negative vectors (T, n, d), or (M, d) if shared."""
        rate = inputs.negatives.sampling_rate
        positive = inputs.scorer.score_pairs(inputs.target_queries, inputs.target_vectors)
        negative, chosen = inputs.negative_scores(), inputs.no_negatives()
        power = rate * (self.calibration * (1 - 1 / rate) + 1 / rate)  # the paper's beta, from alpha and t
        towards = power * nn.functional.softplus(-positive)
        against = nn.functional.softplus(negative).masked_fill(chosen, 0.0)
        if inputs.weights is not None:
            towards, against = inputs.weights[0] * towards, inputs.weights[1] * against
        return inputs.mean(towards + against.sum(dim=1))


class BPR(nn.Module, RetrievalLoss):
    """Pairwise loss: the chosen item scores above a sampled one (Rendle et al. 2009, https://arxiv.org/abs/1205.2618).

    Args:
        negatives: uniform, popularity or in_batch.
        count: number of negatives per chosen item; 1 in the paper.
        window: age from which a choice does not count for the popularity of negatives.
        half_life: age at which it counts half.
    """

    reads_filled = True

    def __init__(
        self,
        *,
        negatives: Distribution = "uniform",
        count: Count = 16,
        window: Age | None = None,
        half_life: Age | None = None,
    ) -> None:
        super().__init__()
        self.ageing = ageing_of_negatives(negatives, window, half_life)
        self.negatives, self.count = negatives, count

    def sample(self, targets: Tensor, popularity: Popularity) -> Negatives:
        return sample_negatives(self.negatives, self.count, targets, popularity, shared=False)

    def forward(self, inputs: LossInputs) -> Tensor:
        """Return the mean loss, (): queries (Q, d), targets (T,), vectors of negatives (T, n, d)."""
        positive = inputs.scorer.score_pairs(inputs.target_queries, inputs.target_vectors)
        margin = positive[:, None] - inputs.negative_scores()
        return inputs.mean(nn.functional.softplus(-margin).masked_fill(inputs.no_negatives(), 0.0))


class Likelihood(nn.Module, RetrievalLoss):
    """The negative logarithm of the probability that a generative model gives to the chosen item; no negatives."""

    def sample(self, targets: Tensor, popularity: Popularity) -> Negatives:
        return Negatives(targets[:0])

    def forward(self, inputs: LossInputs) -> Tensor:
        """Return the mean loss, (), from queries (Q, L), the logarithms of probabilities of the targets' L codes."""
        scorer: Any = inputs.scorer
        loss: Tensor = -scorer.log_likelihood(inputs.target_queries).mean()
        return loss
