"""Cosine contrastive loss: Mao et al., SimpleX: A Simple and Strong Baseline for Collaborative Filtering, 2021,
https://arxiv.org/abs/2109.12613.
"""

from typing import Annotated

import torch
from pydantic import Field, NonNegativeFloat
from torch import Tensor, nn

from recsys.base.errors import UserError
from recsys.base.ranges import Age, Count
from recsys.losses.retrieval import LossInputs, RetrievalLoss
from recsys.losses.sampling import Distribution, Negatives, Popularity, ageing_of_negatives, sample_negatives

_TOLERANCE = 1e-2  # difference of a vector's length from 1 that rounding may make, also in bfloat16


class CosineContrastive(nn.Module, RetrievalLoss):
    """1 - the score of the chosen item, plus `weight` times the mean of max(0, score - margin) over the negatives.

    Scores must be cosines: the model must scale queries and item vectors to length 1.

    Args:
        negatives: uniform, popularity or in_batch (the batch's own chosen items).
        count: number of negatives. If shared, uniform ones would be half of all candidates or more, all are taken.
        margin: negatives whose score is at most this add nothing.
        weight: weight of the negatives.
        shared: whether all chosen items of a batch share one sample, which takes one matrix product; otherwise each
            has its own, as in the paper.
        window: age from which a choice does not count for the popularity of negatives.
        half_life: age at which it counts half.
    """

    def __init__(
        self,
        *,
        negatives: Distribution = "uniform",
        count: Count = 1000,
        margin: Annotated[float, Field(ge=-1, le=1)] = 0.4,
        weight: NonNegativeFloat = 150.0,
        shared: bool = True,
        window: Age | None = None,
        half_life: Age | None = None,
    ) -> None:
        super().__init__()
        self.ageing = ageing_of_negatives(negatives, window, half_life)
        self.negatives, self.count, self.margin, self.weight, self.shared = negatives, count, margin, weight, shared
        self._checked = False

    def sample(self, targets: Tensor, popularity: Popularity) -> Negatives:
        return sample_negatives(self.negatives, self.count, targets, popularity, shared=self.shared)

    def forward(self, inputs: LossInputs) -> Tensor:
        """Return the mean loss, (): queries (Q, d), targets (T,), negative vectors (M, d) if shared, or (T, n, d).

        Raises:
            UserError: the vectors of items do not have length 1.
        """
        if not self._checked:  # the first batch
            self._checked = True
            lengths = inputs.target_vectors.detach().float().norm(dim=-1)
            if bool(((lengths - 1).abs() > _TOLERANCE).any()):
                raise UserError(
                    "loss=cosine_contrastive: needs cosines, but this model's item vectors do not have length 1; set "
                    "model.normalise=true (model=mf, two_tower, lightgcn) or use model=simplex"
                )
        positive = inputs.scorer.score_pairs(inputs.target_queries, inputs.target_vectors)
        if inputs.negatives.ids.dim() == 1:
            scores = inputs.scorer.score_all(inputs.queries, inputs.negative_vectors)
            above = torch.relu(scores - self.margin).mean(dim=1)
            above = above if inputs.one_target_each else above[inputs.query_of_target]
        else:
            above = torch.relu(inputs.negative_scores() - self.margin).mean(dim=1)
        return (1 - positive + self.weight * above).mean()
