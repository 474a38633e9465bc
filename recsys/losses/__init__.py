"""Losses, which a config's `loss:` names: of ranking models over labels, of retrieval models over items."""

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
