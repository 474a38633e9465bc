"""Embeddings of numbers: Gorishniy et al., On Embeddings for Numerical Features in Tabular Deep Learning, 2022,
https://arxiv.org/abs/2203.05556.

A network that reads a number as it is can hardly learn steps and narrow ranges of it, as trees do. `numeric=piecewise`
and `numeric=periodic` replace each dense feature of any ranking model by a vector of `dim` numbers.
"""

import math
from abc import abstractmethod
from dataclasses import replace

import torch
from pydantic import PositiveFloat
from torch import Tensor, nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recsys.base.ranges import Width
from recsys.interface.features import FeatureSpec


class NumericEmbedding(nn.Module):
    """A vector for each dense feature: relu(W e(x) + b), where e is the encoding of a subclass.

    Dense features that are vectors already stay as they are.

    Args:
        dim: width of the vector of each feature.
        encoded: width of e.
    """

    def __init__(self, features: FeatureSpec, dim: int, encoded: int) -> None:
        super().__init__()
        if not any(f.is_number for f in features.dense):
            raise ValueError("the data has no dense feature of one number; leave numeric= out")
        self.widths = [f.width for f in features.dense]
        self.numbers = [i for i, f in enumerate(features.dense) if f.is_number]
        self.features = replace(
            features, dense=tuple(replace(f, width=dim) if f.is_number else f for f in features.dense)
        )
        bound = encoded**-0.5
        self.weight = nn.Parameter(torch.empty(len(self.numbers), encoded, dim).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.zeros(len(self.numbers), dim))

    @abstractmethod
    def encode(self, x: Tensor) -> Tensor:
        """Encode numbers: (B, N) -> (B, N, encoded)."""

    def forward(self, dense: Tensor) -> Tensor:
        """Return the dense features with vectors in place of numbers: (B, D) -> (B, D')."""
        parts = list(dense.split(self.widths, dim=1))
        x = torch.cat([parts[i] for i in self.numbers], dim=1)
        vectors = torch.einsum("bne,ned->bnd", self.encode(x), self.weight) + self.bias
        for place, vector in zip(self.numbers, torch.relu(vectors).unbind(1), strict=True):
            parts[place] = vector
        return torch.cat(parts, dim=1)


class Piecewise(NumericEmbedding):
    """Piecewise-linear encoding (section 3.2): element t is how far a number is through piece t, from 0 to 1.

    The pieces divide 0 to 1 evenly. The transform `quantile` puts as many training rows into each of them, which makes
    them the paper's pieces between quantiles.

    Args:
        bins: number of pieces.
    """

    def __init__(self, features: FeatureSpec, *, dim: Width = 16, bins: Width = 64) -> None:
        if wrong := [f.name for f in features.dense if f.is_number and not f.unit]:
            raise ValueError(
                f"dense feature {wrong[0]} is not scaled to 0 to 1: end data.dense.{wrong[0]}.transform with quantile"
            )
        super().__init__(features, dim, bins)
        self.bins = bins

    def encode(self, x: Tensor) -> Tensor:
        first = torch.arange(self.bins, device=x.device, dtype=x.dtype)
        return (x[:, :, None] * self.bins - first).clamp(0, 1)


class Periodic(NumericEmbedding):
    """Periodic encoding (section 3.3): sines and cosines of trained frequencies.

    Args:
        frequencies: number of frequencies of each feature.
        scale: standard deviation of the initial frequencies, in periods for a change of 1.
    """

    def __init__(
        self,
        features: FeatureSpec,
        *,
        dim: Width = 16,
        frequencies: Width = 16,
        scale: PositiveFloat = 1.0,
    ) -> None:
        super().__init__(features, dim, 2 * frequencies)
        self.frequencies = nn.Parameter(scale * torch.randn(len(self.numbers), frequencies))

    def encode(self, x: Tensor) -> Tensor:
        angles = 2 * math.pi * self.frequencies * x[:, :, None]
        return torch.cat([angles.sin(), angles.cos()], dim=2)


class WithNumericEmbedding(nn.Module):
    """A ranking model that reads embedded numbers. model: built for `numeric.features`"""

    def __init__(self, numeric: NumericEmbedding, model: nn.Module) -> None:
        super().__init__()
        self.numeric, self.model = numeric, model

    def forward(self, dense: Tensor, sparse: KeyedJaggedTensor) -> Tensor:
        """Return logits: dense (B, D), sparse with F keys of B bags -> (B, T)."""
        logits: Tensor = self.model(self.numeric(dense), sparse)
        return logits
