"""Items of equal vectors: their scores are made equal, since products of matrices round them by their places."""

from __future__ import annotations

from typing import Any

import numpy as np

BLOCK = 1 << 16  # vectors that are hashed at a time


class EqualVectors:
    """The items whose vectors equal that of an item before.

    Args:
        vectors: (n, d) float32 of all items.

    later: (m,) these items, ascending
    first: (m,) the first item with the same vector
    """

    def __init__(self, vectors: np.ndarray) -> None:
        hashes = _hashes(vectors)
        ordered = np.sort(hashes)
        self.later = self.first = np.zeros(0, np.int64)
        if (ordered[1:] == ordered[:-1]).any():  # few catalogues have some
            _, firsts, place = np.unique(hashes, return_index=True, return_inverse=True)
            later = np.flatnonzero(firsts[place] < np.arange(len(hashes)))
            first = firsts[place[later]]
            same = (vectors[later] == vectors[first]).all(axis=1)
            self.later, self.first = later[same], first[same]

    def equalise(self, scores: Any) -> Any:
        """Give these items the scores of the first ones, in place, and return the scores: (Q, n), array or tensor."""
        if len(self.later):
            scores[:, self.later] = scores[:, self.first]
        return scores


def _hashes(vectors: np.ndarray) -> np.ndarray:
    """Return a hash of each vector, (n, d) -> (n,) uint64."""
    factors = np.random.default_rng(0).integers(1 << 63, size=vectors.shape[1], dtype=np.uint64) * 2 + 1
    parts = [np.zeros(0, np.uint64)]
    for start in range(0, len(vectors), BLOCK):
        bits = (vectors[start : start + BLOCK] + np.float32(0)).view(np.uint32)  # + 0: -0.0 equals 0.0
        parts.append(bits.astype(np.uint64) @ factors)
    return np.concatenate(parts)
