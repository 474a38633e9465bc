"""The items most like an item, by the cosine of their vectors."""

import numpy as np


class Cosines:
    """The cosines of one vector with all (N, d); of a vector of zeros 0, and of equal vectors the same.

    equal: what `equal_rows` returns for the vectors
    """

    def __init__(self, vectors: np.ndarray, equal: tuple[np.ndarray, np.ndarray]) -> None:
        self._vectors, self._lengths = vectors, np.linalg.norm(vectors, axis=1)
        self._later, self._first = equal

    def __call__(self, row: int) -> np.ndarray:
        """Return the cosines (N,) with the vector of a row."""
        lengths = self._lengths * self._lengths[row]
        products: np.ndarray = self._vectors @ self._vectors[row]
        found = np.divide(products, lengths, out=np.zeros_like(products), where=lengths > 0)
        found[self._later] = found[self._first]
        return found
