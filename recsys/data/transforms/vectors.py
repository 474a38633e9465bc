"""Vectors that were learnt elsewhere, one a value."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

EPS = 1e-5  # torch.nn.LayerNorm's


@dataclass
class Vectors:
    """values (n,) distinct text; matrix (1 + n, width) float32: row 0, of all other values, is 0."""

    values: pl.Series
    matrix: np.ndarray

    @classmethod
    def of(cls, values: pl.Series, matrix: np.ndarray, normalise: list[str]) -> "Vectors":
        """matrix: (n, width), of the values in order."""
        x = matrix.astype(np.float32)
        for way in normalise:
            x = {"l2": _l2, "layer": _layer}[way](x)
        return cls(values, np.concatenate([np.zeros((1, x.shape[1]), np.float32), x]))

    def save(self, folder: Path, name: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.values.alias("value").to_frame().write_parquet(folder / f"{name}.parquet")
        np.save(folder / f"{name}.npy", self.matrix)

    @classmethod
    def load(cls, folder: Path, name: str) -> "Vectors":
        """The matrix stays on disk: what is asked for is read."""
        return cls(pl.read_parquet(folder / f"{name}.parquet")["value"], np.load(folder / f"{name}.npy", mmap_mode="r"))


def _l2(x: np.ndarray) -> np.ndarray:
    """Of length 1; a vector of zeros stays."""
    lengths = np.linalg.norm(x, axis=1, keepdims=True)
    found: np.ndarray = x / np.where(lengths > 0, lengths, 1)
    return found


def _layer(x: np.ndarray) -> np.ndarray:
    """Layer normalisation without weights (Ba et al. 2016, eq. 4): mean 0 and variance 1 over the vector's numbers."""
    centred = x - x.mean(axis=1, keepdims=True)
    found: np.ndarray = centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + EPS)
    return found
