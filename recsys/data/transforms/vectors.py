"""Pretrained vectors, one for each value."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from recsys.files.manifest import inside

EPS = 1e-5  # torch.nn.LayerNorm's


@dataclass
class Vectors:
    """Pretrained vectors.

    values: (n,) distinct text
    matrix: (1 + n, width) float32; row 0 is 0 and belongs to all other values
    """

    values: pl.Series
    matrix: np.ndarray

    @classmethod
    def from_matrix(cls, values: pl.Series, matrix: np.ndarray, ways: Sequence[str]) -> "Vectors":
        """Normalise the vectors of the values: (n, width) in the order of `values`."""
        x = normalise(matrix, ways)
        return cls(values, np.concatenate([np.zeros((1, x.shape[1]), np.float32), x]))

    def save(self, folder: Path, name: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.values.alias("value").to_frame().write_parquet(folder / f"{name}.parquet")
        np.save(folder / f"{name}.npy", self.matrix)

    @classmethod
    def load(cls, folder: Path, name: str) -> "Vectors":
        """Read what `save` wrote. The matrix is memory-mapped: rows are read when they are looked up."""
        values = pl.read_parquet(inside(folder, f"{name}.parquet"), glob=False)["value"]
        return cls(values, np.load(inside(folder, f"{name}.npy"), mmap_mode="r"))


def normalise(matrix: np.ndarray, ways: Sequence[str]) -> np.ndarray:
    """Normalise vectors (n, width) in these ways, l2 or layer, in order."""
    x = matrix.astype(np.float32)
    for name in ways:
        x = {"l2": _l2, "layer": _layer}[name](x)
    return x


def _l2(x: np.ndarray) -> np.ndarray:
    """Scale vectors to length 1; vectors of zeros stay."""
    lengths = np.linalg.norm(x, axis=1, keepdims=True)
    scaled: np.ndarray = x / np.where(lengths > 0, lengths, 1)
    return scaled


def _layer(x: np.ndarray) -> np.ndarray:
    """Apply layer normalisation without weights (Ba et al. 2016, eq. 4): mean 0 and variance 1 over each vector."""
    centred = x - x.mean(axis=1, keepdims=True)
    normalised: np.ndarray = centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + EPS)
    return normalised
