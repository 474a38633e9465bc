"""Items and their vectors, found by inner product; items can be added, replaced and removed without a rebuild.

A folder of an index:

    manifest.json     the description (kind, effort, recall), and the digests of all other files
    vectors.npy       (n, dim) float32, a row for each version of an item's vector; memory-mapped. Left out if the
                      vectors are in another file, such as that of an artefact
    items.npy         (n,) int64, the item of each row, -1 for rows that have been replaced or removed
    engine.*          the engine's own file, if it has one
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from recsys import manifest
from recsys.atomic import whole_folder
from recsys.errors import UserError
from recsys.serving.index import engines
from recsys.serving.index.engines import Engine, Kind
from recsys.serving.index.vectors import Vectors

VERSION = 1
KEY = "index"  # in manifest.json
VECTORS, ITEMS = "vectors.npy", "items.npy"
ADDED = 4096  # rows that are added while searches wait


@dataclass(frozen=True)
class About:
    """How an index was built.

    kind: the engine
    effort: how much of the index a search reads, in the engine's own unit (cells, or rows of a graph's search)
    recall: the share of the exact best `recall_at` items that searches found when the index was tuned, None if it
        was not
    queries: number of queries of that measurement
    """

    kind: Kind
    effort: int
    recall: float | None = None
    recall_at: int | None = None
    queries: int | None = None


class ItemIndex:
    """Finds the items whose vectors have the largest inner products with a query.

    Threads may share an index: searches wait for one another, and for at most 4,096 rows of an update.
    """

    def __init__(self, about: About, engine: Engine, vectors: Vectors, items: np.ndarray) -> None:
        self.about = about
        self._engine, self._vectors, self._items = engine, vectors, items.astype(np.int64)
        self._row_of = np.full(int(items.max(initial=-1)) + 1, -1, np.int64)
        rows = np.flatnonzero(items >= 0)
        self._row_of[items[rows]] = rows
        self._count = len(rows)
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """Return the number of items."""
        return self._count

    def __contains__(self, item: int) -> bool:
        return 0 <= item < len(self._row_of) and bool(self._row_of[item] >= 0)

    @property
    def dim(self) -> int:
        return self._vectors.dim

    @property
    def efforts(self) -> tuple[int, ...]:
        """The values of `effort` that this index can search with, ascending."""
        return self._engine.efforts

    @property
    def stale(self) -> float:
        """The share of rows that are searched in vain, because their items were replaced or removed since the build."""
        return 1 - len(self) / max(1, len(self._items))

    def vectors(self, items: np.ndarray) -> np.ndarray:
        """Return the vectors of items (n,) -> (n, dim). Raises UserError for an item that is not in the index."""
        rows = self._rows(items)
        if (rows < 0).any():
            raise UserError(f"index: has no item {items[rows < 0][0]}")
        return self._vectors.take(rows)

    def search(
        self, queries: np.ndarray, k: int, effort: int | None = None, *, exact: bool = False
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the k best items of each query and their inner products, best first; equal products by item.

        Which of several items with equal products end a list is not defined.

        Args:
            queries: (Q, dim)
            k: length of the lists.
            effort: by default, the one that the index was tuned to.
            exact: whether to compare the queries with all items.

        Returns:
            Items (Q, k) int64, -1 where there is none, and products (Q, k) float32, -inf there.
        """
        if queries.ndim != 2 or queries.shape[1] != self.dim:
            raise UserError(f"queries: have shape {list(queries.shape)}, and the index takes [queries, {self.dim}]")
        if k < 1:
            raise UserError(f"k={k}: must be at least 1")
        effort = self.about.effort if effort is None else effort
        engine = engines.Exact(self._vectors) if exact else self._engine
        queries = np.ascontiguousarray(queries, np.float32)
        with self._lock:
            total = len(self._items)
            gone = total - len(self)
            wanted = min(k + min(gone, 16 + int(2 * k * self.stale)), total)
            while True:
                rows, _ = engine.search(queries, wanted, effort)
                items = np.where(rows >= 0, self._items[rows], -1)
                short = gone and wanted < total and ((items >= 0).sum(1) < k).any()
                if not short or (rows < 0).any():  # a search of more rows would read no more of the index
                    break
                wanted = min(4 * wanted, total)
            products = self._products(queries, rows)
        return _best(items, np.where(items >= 0, products, -np.inf), k)

    def add(self, items: np.ndarray, vectors: np.ndarray) -> None:
        """Add items (n,) with their vectors (n, dim), or replace the vectors of those that are there."""
        if vectors.shape != (len(items), self.dim):
            raise UserError(f"vectors: have shape {list(vectors.shape)}, not [{len(items)}, {self.dim}]")
        _check_items(items)
        if not np.isfinite(vectors).all():
            raise UserError("vectors: hold NaN or infinite numbers")
        for start in range(0, len(items), ADDED):
            some, their = items[start : start + ADDED], vectors[start : start + ADDED].astype(np.float32)
            with self._lock:
                self._forget(some)
                first = len(self._items)
                self._vectors.append(their)
                self._engine.add(their)
                self._items = np.concatenate([self._items, some.astype(np.int64)])
                most = int(some.max()) + 1
                if most > len(self._row_of):
                    grown = np.full(max(most, 2 * len(self._row_of)), -1, np.int64)
                    grown[: len(self._row_of)] = self._row_of
                    self._row_of = grown
                self._row_of[some] = np.arange(first, first + len(some))
                self._count += len(some)

    def remove(self, items: np.ndarray) -> int:
        """Remove items (n,) and return the number of those that were there."""
        with self._lock:
            return self._forget(np.unique(items))

    def save(self, folder: Path, *, vectors: bool = True) -> None:
        """Write the index to a folder, which is replaced as a whole.

        vectors: whether to write the vectors, too; otherwise `load` must get them
        """
        with self._lock, whole_folder(folder) as building:
            if vectors:
                self._save_vectors(building / VECTORS)
            np.save(building / ITEMS, self._items)
            self._engine.save(building)
            about = {KEY: {"format": VERSION, "items": len(self), "dim": self.dim, **vars(self.about)}}
            manifest.write(building, manifest.entries_of(building), about)

    def _save_vectors(self, file: Path) -> None:
        kept = np.lib.format.open_memmap(file, "w+", np.float32, (len(self._vectors), self.dim))
        for start, block in self._vectors.blocks(engines.BLOCK):
            kept[start : start + len(block)] = block
        kept.flush()

    @classmethod
    def load(
        cls, folder: Path, *, vectors: np.ndarray | None = None, threads: int = 1, digests: bool = True
    ) -> ItemIndex:
        """Read an index from a folder.

        Args:
            folder: a folder that `save` wrote.
            vectors: (n, dim) the vectors of all rows; by default, those in the folder.
            threads: number of threads of a search.
            digests: whether to read every file and compare its digest; otherwise only sizes are compared.

        Raises:
            UserError: the folder is no index of this version.
            DamagedFile: a file is missing or is not as it was written.
        """
        about = read_about(folder)
        manifest.check(folder, size_only=not digests)
        if vectors is None:
            vectors = np.load(folder / VECTORS, mmap_mode="r", allow_pickle=False)
        stored = Vectors(vectors)
        engine = engines.load(about.kind, folder, stored, threads)
        return cls(about, engine, stored, np.load(folder / ITEMS, allow_pickle=False))

    def with_about(self, **changes: Any) -> ItemIndex:
        """Return this index with another description, such as the effort that it was tuned to."""
        self.about = replace(self.about, **changes)
        return self

    def _rows(self, items: np.ndarray) -> np.ndarray:
        inside = (items >= 0) & (items < len(self._row_of))
        return np.where(inside, self._row_of[np.where(inside, items, 0)], -1) if len(self._row_of) else items * 0 - 1

    def _forget(self, items: np.ndarray) -> int:
        rows = self._rows(items)
        rows = rows[rows >= 0]
        self._row_of[self._items[rows]] = -1
        self._items[rows] = -1
        self._count -= len(rows)
        return len(rows)

    def _products(self, queries: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Return the exact inner products of (Q, dim) queries with their rows (Q, k)."""
        vectors = self._vectors.take(np.maximum(rows, 0).ravel()).reshape(*rows.shape, self.dim)
        products: np.ndarray = np.einsum("qkd,qd->qk", vectors, queries)
        return products


def read_about(folder: Path) -> About:
    """Read the description of an index. Raises UserError if the folder is no index of this version."""
    file = folder / manifest.FILE
    found: Mapping[str, Any] | None = manifest.read_json(file).get(KEY) if file.is_file() else None
    if found is None:
        raise UserError(f"{folder}: is no index; ItemIndex.save writes one")
    if found.get("format") != VERSION:
        raise UserError(f"{folder}: has format {found.get('format')} of indexes, not {VERSION}; build it again")
    return About(**{k: v for k, v in found.items() if k in About.__dataclass_fields__})


def _best(items: np.ndarray, products: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the k best of (Q, n) items by product, padded with -1 and -inf if there are fewer."""
    order = np.lexsort((items, -products), axis=1)[:, :k]
    best, their = np.take_along_axis(items, order, 1), np.take_along_axis(products, order, 1)
    missing = ((0, 0), (0, k - best.shape[1]))
    return np.pad(best, missing, constant_values=-1), np.pad(their.astype(np.float32), missing, constant_values=-np.inf)


def _check_items(items: np.ndarray) -> None:
    if items.ndim != 1 or not np.issubdtype(items.dtype, np.integer):
        raise UserError("items: must be whole numbers (n,)")
    if len(items) and items.min() < 0:
        raise UserError(f"items: {items.min()} is negative")
    if len(np.unique(items)) != len(items):
        values, counts = np.unique(items, return_counts=True)
        raise UserError(f"items: {values[counts > 1][0]} appears twice")
