"""Losses that a config names under `loss`.

Ranking losses compare logits with labels, retrieval losses compare scores of items.
"""

from recsys.losses.cosine_contrastive import CosineContrastive
from recsys.losses.groups import Listwise, Pairwise
from recsys.losses.ranking import MSE, BinaryCrossEntropy, CrossEntropy, FocalLoss, Huber, RankingLoss
from recsys.losses.retrieval import (
    BCE,
    BPR,
    FullSoftmax,
    Likelihood,
    LossInputs,
    RetrievalLoss,
    SampledSoftmax,
)
from recsys.losses.sampling import Negatives, Popularity
from recsys.losses.tasks import LabelLosses, Tasks, label_loss

__all__ = [
    "BCE",
    "BPR",
    "MSE",
    "BinaryCrossEntropy",
    "CosineContrastive",
    "CrossEntropy",
    "FocalLoss",
    "FullSoftmax",
    "Huber",
    "LabelLosses",
    "Likelihood",
    "Listwise",
    "LossInputs",
    "Negatives",
    "Pairwise",
    "Popularity",
    "RankingLoss",
    "RetrievalLoss",
    "SampledSoftmax",
    "Tasks",
    "label_loss",
]
