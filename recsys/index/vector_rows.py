"""Vectors in rows: the rows of a memory-mapped file, and the rows that were appended since."""

from collections.abc import Iterator

import numpy as np


class VectorRows:
    """Rows of float32 vectors, numbered from 0. Appending never moves the rows of the file."""

    def __init__(self, first: np.ndarray) -> None:
        self._first = first
        self._tail = np.empty((0, first.shape[1]), np.float32)
        self._appended = 0

    def __len__(self) -> int:
        return len(self._first) + self._appended

    @property
    def dim(self) -> int:
        return int(self._first.shape[1])

    def append(self, vectors: np.ndarray) -> None:
        """Append rows (n, dim)."""
        stop = self._appended + len(vectors)
        if stop > len(self._tail):
            grown = np.empty((max(stop, 2 * len(self._tail), 1024), self.dim), np.float32)
            grown[: self._appended] = self._tail[: self._appended]
            self._tail = grown
        self._tail[self._appended : stop] = vectors
        self._appended = stop

    def take(self, rows: np.ndarray) -> np.ndarray:
        """Return the vectors of rows (n,) -> (n, dim)."""
        if not self._appended:
            return np.asarray(self._first[rows])
        taken = np.empty((len(rows), self.dim), np.float32)
        late = rows >= len(self._first)
        taken[~late] = self._first[rows[~late]]
        taken[late] = self._tail[rows[late] - len(self._first)]
        return taken

    def blocks(self, rows: int) -> Iterator[tuple[int, np.ndarray]]:
        """Yield the number of the first row of each block and its vectors, `rows` rows or fewer."""
        for offset, part in ((0, self._first), (len(self._first), self._tail[: self._appended])):
            for start in range(0, len(part), rows):
                yield offset + start, part[start : start + rows]
