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
from pathlib import Path

import numpy as np

from recsys.base.errors import UserError
from recsys.files import manifest
from recsys.files.atomic import whole_folder
from recsys.index import engines, protocol
from recsys.index.engines import SearchEngine

VECTORS, ITEMS = "vectors.npy", "items.npy"


class ItemIndex(protocol.Index):
    """An index in this process. Searches wait for one another, and for at most 4,096 rows of an update.

    Args:
        about: how the index was made.
        engine: finds rows of vectors.
        items: (n,) the number of the item of each row, -1 for a removed row.
    """

    def __init__(
        self, about: protocol.About, engine: SearchEngine, vectors: protocol.VectorRows, items: np.ndarray
    ) -> None:
        self.about = about
        self._engine, self._vectors, self._items = engine, vectors, items.astype(np.int64)
        self._row_of = np.full(int(items.max(initial=-1)) + 1, -1, np.int64)
        rows = np.flatnonzero(items >= 0)
        self._row_of[items[rows]] = rows
        self._count = len(rows)
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return self._count

    def __contains__(self, item: int) -> bool:
        return 0 <= item < len(self._row_of) and bool(self._row_of[item] >= 0)

    @property
    def dim(self) -> int:
        return self._vectors.dim

    @property
    def efforts(self) -> tuple[int, ...]:
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
        queries = protocol.check_search(queries, k, self.dim)
        effort = self.about.effort if effort is None else effort
        engine = engines.Exact(self._vectors) if exact else self._engine
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
            vectors = self._vectors.take(np.maximum(rows, 0).ravel()).reshape(*rows.shape, self.dim)
            products: np.ndarray = np.einsum("qkd,qd->qk", vectors, queries)
        return protocol.best(items, np.where(items >= 0, products, -np.inf), k)

    def add(self, items: np.ndarray, vectors: np.ndarray) -> None:
        protocol.check_added(items, vectors, self.dim)
        for start in range(0, len(items), protocol.ADDED):
            rows = slice(start, start + protocol.ADDED)
            ids, added = items[rows], vectors[rows].astype(np.float32)
            with self._lock:
                self._forget(ids)
                first = len(self._items)
                self._vectors.append(added)
                self._engine.add(added)
                self._items = np.concatenate([self._items, ids.astype(np.int64)])
                most = int(ids.max()) + 1
                if most > len(self._row_of):
                    grown = np.full(max(most, 2 * len(self._row_of)), -1, np.int64)
                    grown[: len(self._row_of)] = self._row_of
                    self._row_of = grown
                self._row_of[ids] = np.arange(first, first + len(ids))
                self._count += len(ids)

    def remove(self, items: np.ndarray) -> int:
        with self._lock:
            return self._forget(np.unique(items))

    def save(self, folder: Path, *, vectors: bool = True) -> None:
        with self._lock, whole_folder(folder) as building:
            if vectors:
                kept = np.lib.format.open_memmap(building / VECTORS, "w+", np.float32, (len(self._vectors), self.dim))
                for start, block in self._vectors.blocks(engines.BLOCK):
                    kept[start : start + len(block)] = block
                kept.flush()
            np.save(building / ITEMS, self._items)
            self._engine.save(building)
            protocol.write_manifest(building, self)

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
            UserError: the folder is not an index of this version.
            DamagedFile: a file is missing or is not as it was written.
        """
        with manifest.from_elsewhere(folder):
            about = protocol.about_of(protocol.read_manifest(folder))
            manifest.check(folder, size_only=not digests)
            if vectors is None:
                vectors = np.load(folder / VECTORS, mmap_mode="r", allow_pickle=False)
            stored, items = protocol.VectorRows(vectors), np.load(folder / ITEMS, allow_pickle=False)
            engine = engines.engine_class(about.kind).load(folder, stored, threads)
            protocol.check_items(items[items >= 0])
            if not len(engine) == len(items) == len(stored):
                raise ValueError(f"{len(engine)} rows, {len(items)} items and {len(stored)} vectors")
            if stored.dim != protocol.read_manifest(folder)["dim"]:
                raise ValueError(f"vectors of {stored.dim} numbers")
            return cls(about, engine, stored, items)

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
