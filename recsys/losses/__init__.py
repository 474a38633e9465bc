"""Losses that a config names under `loss`.

Ranking losses compare logits with labels, retrieval losses compare scores of items.
"""

from recsys.losses.ranking import BinaryCrossEntropy, FocalLoss, RankingLoss
from recsys.losses.retrieval import (
    BCE,
    BPR,
    FullSoftmax,
    LossInputs,
    Negatives,
    Popularity,
    RetrievalLoss,
    SampledSoftmax,
)

__all__ = [
    "BCE",
    "BPR",
    "BinaryCrossEntropy",
    "FocalLoss",
    "FullSoftmax",
    "LossInputs",
    "Negatives",
    "Popularity",
    "RankingLoss",
    "RetrievalLoss",
    "SampledSoftmax",
]
