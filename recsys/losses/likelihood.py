"""The loss of models that predict the probability of an item themselves, code by code."""

from typing import Any

from torch import Tensor, nn

from recsys.losses.retrieval import LossInputs, Negatives, Popularity, RetrievalLoss


class Likelihood(nn.Module, RetrievalLoss):
    """The negative logarithm of the probability that a generative model gives to the chosen item; no negatives."""

    def sample(self, targets: Tensor, popularity: Popularity) -> Negatives:
        return Negatives(targets[:0])

    def forward(self, inputs: LossInputs) -> Tensor:
        """Return the mean loss, (), from queries (Q, L), the logarithms of probabilities of the targets' L codes."""
        scorer: Any = inputs.scorer
        loss: Tensor = -scorer.log_likelihood(inputs.target_queries).mean()
        return loss
