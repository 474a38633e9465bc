"""Draws that several samples share."""

from collections.abc import Callable

import numpy as np
import polars as pl
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Progress = Callable[[int], object]  # called with the number of rows written so far


def zipf(rng: np.random.Generator, n: int, exponent: float) -> Floats:
    """Return the shares of n values whose k-th largest is proportional to k ** -exponent, in random order."""
    p = np.arange(1, n + 1) ** -exponent
    return rng.permutation(p / p.sum())


def sigmoid(x: Floats) -> Floats:
    """Return the probabilities of logits."""
    return np.asarray(1 / (1 + np.exp(-x)))


def names(*columns: str) -> list[pl.Expr]:
    """Return columns of numbers as names with the column's first letter, such as u17 of user."""
    return [pl.format(f"{c[0]}{{}}", c).alias(c) for c in columns]
