"""The interface and the description that all indexes share, the checks of their arguments, and the rows of vectors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np
from pydantic import TypeAdapter

from recsys.base.errors import UserError
from recsys.files import manifest

VERSION = 1
KEY = "index"  # in manifest.json
ADDED = 4096  # items that are added at a time


@dataclass(frozen=True)
class About:
    """How an index was built.

    kind: the engine
    effort: how much of the index a search reads, in the engine's own unit (cells, or rows of a graph's search)
    recall: the share of the exact best `recall_at` items that searches found when the index was tuned, None if it
        was not
    queries: number of queries of that measurement
    """

    kind: str
    effort: int
    recall: float | None = None
    recall_at: int | None = None
    queries: int | None = None


class Index(Protocol):
    """Finds the items whose vectors have the largest inner products with a query. Threads may share an index."""

    about: About

    def __len__(self) -> int:
        """Return the number of items."""

    @property
    def dim(self) -> int:
        """The length of a vector."""

    @property
    def efforts(self) -> tuple[int, ...]:
        """The values of `effort` that tuning tries, ascending; more effort finds more of the best items."""

    def search(
        self, queries: np.ndarray, k: int, effort: int | None = None, *, exact: bool = False
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the k best items of each query and their inner products, best first; equal products by item.

        Of several items with equal products, an exact search ends a list with those that were added first. For other
        searches, this is not defined.

        Args:
            queries: (Q, dim)
            k: length of the lists.
            effort: by default, the one that the index was tuned to.
            exact: whether to compare the queries with all items.

        Returns:
            Items (Q, k) int64, -1 where there is none, and products (Q, k) float32, -inf there.
        """

    def add(self, items: np.ndarray, vectors: np.ndarray) -> None:
        """Add items (n,) with their vectors (n, dim), or replace the vectors of those that are there."""

    def remove(self, items: np.ndarray) -> int:
        """Remove items (n,) and return the number of those that were there."""

    def save(self, folder: Path, *, vectors: bool = True) -> None:
        """Write the index to a folder, which is replaced as a whole.

        vectors: whether to write the vectors, too, if the index has them; otherwise `load` must get them
        """

    def with_about(self, **changes: Any) -> Self:
        """Return this index with another description, such as the effort that it was tuned to."""
        self.about = replace(self.about, **changes)
        return self


def write_manifest(folder: Path, index: Index, more: Mapping[str, Any] | None = None) -> None:
    """Write the description of an index, and the digests of the files that its folder has.

    more: what only an index of this kind has
    """
    about = {"format": VERSION, "items": len(index), "dim": index.dim, **vars(index.about), **(more or {})}
    manifest.write(folder, manifest.entries_of(folder), {KEY: about})


def read_manifest(folder: Path) -> Mapping[str, Any]:
    """Read the entry that `write_manifest` wrote. Raises UserError if the folder is not an index of this version."""
    file = folder / manifest.FILE
    found: Mapping[str, Any] | None = manifest.read_json(file).get(KEY) if file.is_file() else None
    if found is None:
        raise UserError(f"{folder}: is not an index; ItemIndex.save writes one")
    if found.get("format") != VERSION:
        raise UserError(f"{folder}: has format {found.get('format')} of indexes, not {VERSION}; build it again")
    return found


def about_of(found: Mapping[str, Any]) -> About:
    """Return the description among what `read_manifest` has read."""
    return TypeAdapter(About).validate_python({k: v for k, v in found.items() if k in About.__dataclass_fields__})


def best(items: np.ndarray, products: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the k best of (Q, n) items by product, padded with -1 and -inf if there are fewer.

    >>> best(np.array([[7, 8, 9]]), np.array([[0.1, 0.9, 0.5]]), k=2)
    (array([[8, 9]]), array([[0.9, 0.5]], dtype=float32))
    """
    order = np.lexsort((items, -products), axis=1)[:, :k]
    ids, scores = np.take_along_axis(items, order, 1), np.take_along_axis(products, order, 1)
    missing = ((0, 0), (0, k - ids.shape[1]))
    return np.pad(ids, missing, constant_values=-1), np.pad(scores.astype(np.float32), missing, constant_values=-np.inf)


def highest(scores: np.ndarray, k: int) -> np.ndarray:
    """Return the columns of the k highest of (Q, n) scores, or of all, in ascending order; of equal ones the first.

    NaN is below all others.

    >>> highest(np.array([[0.5, 0.1, 0.5, 0.9, 0.5]]), 3)
    array([[0, 2, 3]])
    """
    n = scores.shape[1]
    if n <= k:
        return np.broadcast_to(np.arange(n), scores.shape)
    if np.isnan(scores).any():
        scores = np.nan_to_num(scores, nan=-np.inf, posinf=np.inf, neginf=-np.inf)
    least = np.partition(scores, n - k, axis=1)[:, n - k, None]
    kept = scores >= least
    if (more := kept.sum(1) > k).any():  # several have the lowest of these scores
        some, lowest = scores[more], least[more]
        equal, above = some == lowest, some > lowest
        kept[more] = above | (equal & (equal.cumsum(1) <= k - above.sum(1, keepdims=True)))
    return np.nonzero(kept)[1].reshape(len(scores), k)


def equal_rows(vectors: np.ndarray, block: int = 1 << 16) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows whose vector an earlier row has, ascending, and the first row that has it.

    Products of matrices round equal vectors by their places, so their scores must be made equal.

    >>> equal_rows(np.array([[1, 2], [3, 4], [1, 2]], np.float32))
    (array([2]), array([0]))
    """
    factors = np.random.default_rng(0).integers(1 << 63, size=vectors.shape[1], dtype=np.uint64) * 2 + 1
    hashes = np.zeros(len(vectors), np.uint64)
    for start in range(0, len(vectors), block):
        bits = (vectors[start : start + block] + np.float32(0)).view(np.uint32)  # + 0: -0.0 equals 0.0
        hashes[start : start + block] = bits.astype(np.uint64) @ factors
    _, firsts, place = np.unique(hashes, return_index=True, return_inverse=True)
    later = np.flatnonzero(firsts[place] < np.arange(len(hashes)))
    same = (vectors[later] == vectors[firsts[place[later]]]).all(axis=1)
    return later[same], firsts[place[later[same]]]


def check_search(queries: np.ndarray, k: int, dim: int) -> np.ndarray:
    """Return queries as an engine takes them. Raises UserError for queries or a k that no index can answer."""
    if queries.ndim != 2 or queries.shape[1] != dim:
        raise UserError(f"queries: have shape {list(queries.shape)}, and the index takes [queries, {dim}]")
    if k < 1:
        raise UserError(f"k={k}: must be at least 1")
    return np.ascontiguousarray(queries, np.float32)


def check_added(items: np.ndarray, vectors: np.ndarray, dim: int) -> None:
    """Raise UserError for items that no index can take."""
    if vectors.shape != (len(items), dim):
        raise UserError(f"vectors: have shape {list(vectors.shape)}, not [{len(items)}, {dim}]")
    check_items(items)
    if not np.isfinite(vectors).all():
        raise UserError("vectors: hold NaN or infinite numbers")


def check_items(items: np.ndarray) -> None:
    """Raise UserError for numbers of items that no index can have."""
    if items.ndim != 1 or not np.issubdtype(items.dtype, np.integer):
        raise UserError("items: must be whole numbers (n,)")
    if len(items) and items.min() < 0:
        raise UserError(f"items: {items.min()} is negative")
    if len(np.unique(items)) != len(items):
        values, counts = np.unique(items, return_counts=True)
        raise UserError(f"items: {values[counts > 1][0]} appears twice")


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
