"""Pretrained vectors, one for each value."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import polars as pl

from recsys.base.errors import UserError, did_you_mean
from recsys.files.manifest import inside
from recsys.schema.data_schema import VectorsConfig

EPS = 1e-5  # torch.nn.LayerNorm's
MIN_VARIANCE = 1e-7  # relative to the largest; directions with less are noise of rounding, and become 0
FITTED = ("pca", "whiten")  # ways that are fitted; the others treat each vector on its own
NORMALISE = ("l2", "layer", *FITTED)


Way = tuple[str, int]  # l2 | layer | pca | whiten, and the number of components: 0 for all


def parse_way(entry: object) -> Way:
    """Return a way of `normalise`: l2, layer, whiten, {pca: n} or {whiten: n}. Raises ValueError for anything else."""
    name, count = next(iter(entry.items())) if isinstance(entry, dict) and len(entry) == 1 else (entry, None)
    if not isinstance(name, str) or name not in NORMALISE:
        raise ValueError(f"{name} is unknown")
    if count is None and name != "pca":
        return name, 0
    if name not in FITTED:
        raise ValueError(f"{name} takes no number")
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise ValueError(f"{name} needs the number of components, such as {{{name}: 64}}")
    return name, count


def check_vectors_config(vectors: VectorsConfig, where: str) -> None:
    """Check the config of a file of vectors. Raises UserError if it has a mistake."""
    for way in vectors.normalise:
        try:
            parse_way(way)
        except ValueError as e:
            raise UserError(f"{where}.normalise: {e}{did_you_mean(str(way), NORMALISE)}") from e
    suffix = vectors.file.rpartition(".")[2]
    if suffix not in ("parquet", "npz", "npy"):
        raise UserError(f"{where}.file={vectors.file}: must be a .parquet, a .npz or a .npy file")
    other, other_suffix = ("key", "parquet") if suffix == "npy" else ("keys", "npy")
    if getattr(vectors, other):
        raise UserError(f"{where}.{other}: applies only to a .{other_suffix} file; this is a .{suffix} file")


@dataclass(frozen=True)
class Affine:
    """The fitted map x -> (x - mean) @ matrix. mean: (w,); matrix: (w, n)."""

    mean: np.ndarray
    matrix: np.ndarray

    @classmethod
    def fit(cls, x: np.ndarray, count: int, *, whiten: bool) -> "Affine":
        """Fit the first `count` principal components of x (rows, w), all if it is 0.

        Args:
            whiten: scale each component to variance 1.

        Raises:
            ValueError: there are fewer numbers or vectors than components.
        """
        rows, width = x.shape
        if count > min(rows, width):
            few = f"the vectors have {width} numbers" if width < count else f"only {rows} of them are of training rows"
            raise ValueError(f"{count} components are too many: {few}; take {min(rows, width)} or fewer")
        mean = x.mean(axis=0, dtype=np.float64)
        centred = x - mean
        variances, components = np.linalg.eigh(centred.T @ centred / max(rows, 1))
        order = np.argsort(-variances, kind="stable")[: count or width]
        variances, components = variances[order], components[:, order]
        largest = np.abs(components).argmax(axis=0)  # the sign of a component is arbitrary: fix it
        components = components * np.where(components[largest, np.arange(len(order))] < 0, -1, 1)
        if whiten:
            kept = variances > MIN_VARIANCE * max(variances[0], 0)
            components = components * np.where(kept, 1 / np.sqrt(np.where(kept, variances, 1)), 0)
        return cls(mean.astype(np.float32), components.astype(np.float32))

    def __call__(self, x: np.ndarray) -> np.ndarray:
        mapped: np.ndarray = (x - self.mean) @ self.matrix
        return mapped


@dataclass
class Vectors:
    """Pretrained vectors.

    values: (n,) distinct text
    matrix: (1 + n, width) float32; row 0 is 0 and belongs to all other values
    steps: what normalised them, in order: l2, layer, or a fitted map
    """

    values: pl.Series
    matrix: np.ndarray
    steps: "list[str | Affine]" = field(default_factory=list)

    @classmethod
    def from_matrix(
        cls, values: pl.Series, matrix: np.ndarray, ways: Sequence[Way | str], training: np.ndarray | None = None
    ) -> "Vectors":
        """Normalise the vectors of the values.

        Args:
            matrix: (n, width) their vectors, in the same order.
            ways: the ways to normalise them, applied in this order.
            training: (n,) mask of the vectors that pca and whiten are fitted on; all if None.

        Raises:
            ValueError: there are fewer numbers or vectors than components.
        """
        x, steps = matrix.astype(np.float32), []
        for name, count in [(way, 0) if isinstance(way, str) else way for way in ways]:
            fitted = x if training is None else x[training]
            step = Affine.fit(fitted, count, whiten=name == "whiten") if name in FITTED else name
            steps.append(step)
            x = _apply(step, x)
        return cls(values, np.concatenate([np.zeros((1, x.shape[1]), np.float32), x]), steps)

    def normalise(self, matrix: np.ndarray) -> np.ndarray:
        """Normalise the vectors of new values as these were: (m, width of the file) -> (m, width)."""
        return normalise(matrix, self.steps)

    def save(self, folder: Path, name: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.values.alias("value").to_frame().write_parquet(folder / f"{name}.parquet")
        np.save(folder / f"{name}.npy", self.matrix)
        if self.steps:
            names = [step if isinstance(step, str) else "affine" for step in self.steps]
            maps = {
                f"{i}_{k}": v for i, s in enumerate(self.steps) if isinstance(s, Affine) for k, v in vars(s).items()
            }
            np.savez(folder / f"{name}.npz", steps=np.array(names), **maps)

    @classmethod
    def load(cls, folder: Path, name: str) -> "Vectors":
        """Read what `save` wrote. The matrix is memory-mapped: rows are read when they are looked up."""
        values = pl.read_parquet(inside(folder, f"{name}.parquet"), glob=False)["value"]
        matrix = np.load(inside(folder, f"{name}.npy"), mmap_mode="r")
        if not (folder / f"{name}.npz").exists():
            return cls(values, matrix)
        with np.load(inside(folder, f"{name}.npz")) as stored:
            steps = [
                Affine(stored[f"{i}_mean"], stored[f"{i}_matrix"]) if step == "affine" else str(step)
                for i, step in enumerate(stored["steps"])
            ]
        return cls(values, matrix, steps)


def normalise(matrix: np.ndarray, steps: Sequence[str | Affine]) -> np.ndarray:
    """Normalise vectors (n, width) by these steps in order: l2, layer, or a fitted map."""
    x = matrix.astype(np.float32)
    for step in steps:
        x = _apply(step, x)
    return x


def _apply(step: str | Affine, x: np.ndarray) -> np.ndarray:
    """Apply a fitted map, scale vectors to length 1 (l2; vectors of zeros stay), or normalise them (layer).

    Layer normalisation without weights (Ba et al. 2016, eq. 4): mean 0 and variance 1 over each vector.
    """
    if isinstance(step, Affine):
        return step(x)
    if step == "l2":
        lengths = np.linalg.norm(x, axis=1, keepdims=True)
        scaled: np.ndarray = x / np.where(lengths > 0, lengths, 1)
        return scaled
    centred = x - x.mean(axis=1, keepdims=True)
    normalised: np.ndarray = centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + EPS)
    return normalised
