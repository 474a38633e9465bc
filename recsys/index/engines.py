"""Engines: they find the rows of vectors that have the largest inner products with a query.

exact      all products; the reference, and the default for few items
ivf        faiss: cells around centroids, of which a search reads some (Jégou et al., Product Quantization for Nearest
           Neighbor Search, 2011)
ivf_pq     the same with vectors of 4-bit codes, whose best rows are compared again exactly: less memory bandwidth
hnsw       faiss: a graph of neighbours (Malkov & Yashunin, Efficient and Robust Approximate Nearest Neighbor Search
           Using Hierarchical Navigable Small World Graphs, 2016)
usearch    the same graph in a package of 2 MB without BLAS or OpenMP
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from recsys.base.packages import check_extra
from recsys.index.protocol import VectorRows, highest

PRODUCTS = 1 << 22  # of one block of the exact engine
SPARE = 16  # rows that it finds beside the k best: products that differ by rounding may be equal
BLOCK = 1 << 17  # rows that are added at a time
SAMPLE = 64  # rows for each cell, from which cells are fitted
GRAPH_NEIGHBOURS = 32
BUILD_EFFORT = 128  # rows that a graph looks at to place a new one
Found = tuple[np.ndarray, np.ndarray]  # rows (Q, k) int64, -1 where there is none; their products (Q, k) float32


class SearchEngine(ABC):
    """Finds rows by inner product. Rows are numbered in the order in which they were added.

    kind: its name in YAML
    package: the package that it needs; None if it needs none
    efforts: the values of `effort` that tuning tries, ascending; more effort finds more of the best rows
    """

    kind: ClassVar[str]
    package: ClassVar[str | None] = None
    efforts: tuple[int, ...]

    @classmethod
    @abstractmethod
    def build(cls, vectors: VectorRows, threads: int, seed: int) -> SearchEngine:
        """Return an engine with all rows of `vectors`.

        Args:
            seed: seed of samples.
        """

    @classmethod
    @abstractmethod
    def load(cls, folder: Path, vectors: VectorRows, threads: int) -> SearchEngine:
        """Read the engine that `save` wrote."""

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of rows."""

    @abstractmethod
    def add(self, vectors: np.ndarray) -> None:
        """Add rows (n, dim)."""

    @abstractmethod
    def search(self, queries: np.ndarray, k: int, effort: int) -> Found:
        """Return the best rows of queries (Q, dim), in any order. Their products may be approximate."""

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write the engine's own file."""

    def with_rows(self, vectors: VectorRows) -> SearchEngine:
        """Add rows of `vectors`, a block at a time, and return the engine."""
        for _, block in vectors.blocks(BLOCK):
            self.add(block)
        return self


class Exact(SearchEngine):
    """Compares a query with all rows, a block at a time."""

    kind = "exact"
    efforts = (1,)

    def __init__(self, vectors: VectorRows) -> None:
        self._vectors = vectors

    @classmethod
    def build(cls, vectors: VectorRows, threads: int, seed: int) -> SearchEngine:
        return cls(vectors)

    @classmethod
    def load(cls, folder: Path, vectors: VectorRows, threads: int) -> SearchEngine:
        return cls(vectors)

    def __len__(self) -> int:
        return len(self._vectors)

    def add(self, vectors: np.ndarray) -> None:
        """Do nothing: the vectors that this engine reads have the rows already."""

    def search(self, queries: np.ndarray, k: int, effort: int) -> Found:
        k += SPARE
        rows = np.empty((len(queries), 0), np.int64)
        products = np.empty((len(queries), 0), np.float32)
        for start, block in self._vectors.blocks(max(1, PRODUCTS // max(1, len(queries)))):
            scores = queries @ block.T
            best = highest(scores, k)
            rows = np.concatenate([rows, best + start], axis=1)
            products = np.concatenate([products, np.take_along_axis(scores, best, 1)], axis=1)
            kept = highest(products, k)
            rows, products = np.take_along_axis(rows, kept, 1), np.take_along_axis(products, kept, 1)
        return rows, products

    def save(self, folder: Path) -> None:
        """Write nothing: the index keeps the vectors."""


def cells_of(rows: int) -> int:
    """Return the number of cells for so many rows: comparing a query with their centroids costs less than with rows.

    >>> cells_of(1_000_000)
    2048
    """
    return int(1 << max(0, round(np.log2(2 * np.sqrt(rows)))))


def efforts_of(cells: int) -> tuple[int, ...]:
    """Return the numbers of cells that tuning tries."""
    return tuple(2**i for i in range(cells.bit_length()))


class _Faiss:
    """An index of faiss, and the number of threads with which it adds and searches."""

    def __init__(self, index: Any, threads: int) -> None:
        self._faiss, self._index, self._threads = _faiss(), index, threads

    def __len__(self) -> int:
        return int(self._index.ntotal)

    def add(self, vectors: np.ndarray) -> None:
        self._faiss.omp_set_num_threads(self._threads)
        self._index.add(np.ascontiguousarray(vectors, np.float32))

    def _found(self, queries: np.ndarray, k: int, parameters: object) -> Found:
        """Return rows (Q, k), and their products or squared distances."""
        self._faiss.omp_set_num_threads(self._threads)
        values, rows = self._index.search(queries, k, params=parameters)
        return rows, values

    def _write(self, file: Path) -> None:
        self._faiss.write_index(self._index, str(file))


class Cells(_Faiss, SearchEngine):
    """Cells of faiss, whose rows are the vectors themselves."""

    kind, package = "ivf", "faiss"
    FILE = "engine.faiss"

    def __init__(self, index: Any, threads: int) -> None:
        super().__init__(index, threads)
        self.efforts = efforts_of(self._faiss.extract_index_ivf(index).nlist)

    @classmethod
    def build(cls, vectors: VectorRows, threads: int, seed: int) -> SearchEngine:
        """Return an engine whose cells and codes are fitted to a sample of the vectors."""
        faiss = _faiss()
        faiss.omp_set_num_threads(threads)
        n, cells = len(vectors), cells_of(len(vectors))
        how = f"IVF{cells},{cls._codes(vectors.dim)}"
        index = faiss.index_factory(vectors.dim, how, faiss.METRIC_INNER_PRODUCT)
        clustering = faiss.extract_index_ivf(index).cp
        clustering.seed, clustering.max_points_per_centroid, clustering.min_points_per_centroid = seed, SAMPLE, 1
        sample = np.random.default_rng(seed).choice(n, min(n, SAMPLE * max(cells, 256)), replace=False)
        index.train(vectors.take(np.sort(sample)))
        return cls(index, threads).with_rows(vectors)

    @staticmethod
    def _codes(dim: int) -> str:
        """Return the part of faiss's index factory that says how rows are stored."""
        return "Flat"

    def _parameters(self, k: int, effort: int) -> object:
        return self._faiss.SearchParametersIVF(nprobe=effort)

    def search(self, queries: np.ndarray, k: int, effort: int) -> Found:
        return self._found(queries, k, self._parameters(k, effort))

    def save(self, folder: Path) -> None:
        self._write(folder / self.FILE)

    @classmethod
    def load(cls, folder: Path, vectors: VectorRows, threads: int) -> SearchEngine:
        """Raises ValueError if the cells are in other files, which could be any of this machine."""
        faiss = _faiss()
        index = _read(folder / cls.FILE)
        cells = faiss.downcast_InvertedLists(faiss.extract_index_ivf(index).invlists)
        if not isinstance(cells, faiss.ArrayInvertedLists | faiss.BlockInvertedLists):
            raise ValueError(f"the cells are {type(cells).__name__}")
        return cls(index, threads)


class CodedCells(Cells):
    """Cells of faiss, whose rows are codes; the best ones are compared again exactly."""

    kind = "ivf_pq"

    @staticmethod
    def _codes(dim: int) -> str:
        return f"PQ{dim // 2 if dim % 2 == 0 else dim}x4fs,RFlat"

    def _parameters(self, k: int, effort: int) -> object:
        compared = max(4.0, 256 / k)  # rows that are compared exactly, for each row that is returned
        cells = super()._parameters(k, effort)
        return self._faiss.IndexRefineSearchParameters(k_factor=compared, base_index_params=cells)


class Graph(SearchEngine):
    """A graph of neighbours.

    A graph needs distances, so vectors get one more component, with which all have the norm of the longest, and
    queries get a 0: the nearest vectors are then those with the largest inner products (Bachrach et al., Speeding Up
    the Xbox Recommender System Using a Euclidean Transformation for Inner-Product Spaces, 2014). Vectors that are
    added later and are longer than that are compared one by one, beside the graph.

    Args:
        longest: the largest norm of the vectors.
        threads: threads of adding and of searches.
        file: the graph to read; None begins an empty one.
    """

    efforts = tuple(2**i for i in range(7, 14))
    FILE, NORMS = "engine.graph", "norms.npz"
    NEIGHBOURS: ClassVar[type[_FaissGraph | _UsearchGraph]]

    def __init__(self, vectors: VectorRows, longest: float, threads: int, file: Path | None = None) -> None:
        self._vectors, self._longest = vectors, longest
        self._graph = self.NEIGHBOURS(vectors.dim + 1, threads, file)
        self._longer = np.empty(0, np.int64)  # rows

    @classmethod
    def build(cls, vectors: VectorRows, threads: int, seed: int) -> SearchEngine:
        longest = max(float(np.linalg.norm(block, axis=1).max()) for _, block in vectors.blocks(BLOCK))
        return cls(vectors, longest, threads).with_rows(vectors)

    def __len__(self) -> int:
        return len(self._graph)

    def add(self, vectors: np.ndarray) -> None:
        rest = self._longest**2 - (vectors**2).sum(1, keepdims=True)
        longer = len(self._graph) + np.flatnonzero(rest < -1e-4 * self._longest**2)
        self._longer = np.concatenate([self._longer, longer])
        self._graph.add(np.hstack([vectors, np.sqrt(np.maximum(rest, 0))]).astype(np.float32))

    def search(self, queries: np.ndarray, k: int, effort: int) -> Found:
        rows, distances = self._graph.search(np.pad(queries, ((0, 0), (0, 1))), k, max(effort, k))
        products = 0.5 * ((queries**2).sum(1, keepdims=True) + self._longest**2 - distances)
        if not len(self._longer):
            return rows, products
        rows[np.isin(rows, self._longer)] = -1
        beside = np.broadcast_to(self._longer, (len(queries), len(self._longer)))
        theirs = queries @ self._vectors.take(self._longer).T
        return np.concatenate([rows, beside], axis=1), np.concatenate([products, theirs], axis=1)

    def save(self, folder: Path) -> None:
        np.savez(folder / self.NORMS, longest=self._longest, longer=self._longer)
        self._graph.save(folder / self.FILE)

    @classmethod
    def load(cls, folder: Path, vectors: VectorRows, threads: int) -> SearchEngine:
        with np.load(folder / cls.NORMS, allow_pickle=False) as norms:
            engine = cls(vectors, float(norms["longest"]), threads, folder / cls.FILE)
            engine._longer = norms["longer"]
        return engine


class _FaissGraph(_Faiss):
    """Searches return rows (Q, k) and squared distances."""

    def __init__(self, dim: int, threads: int, file: Path | None) -> None:
        faiss = _faiss()
        super().__init__(faiss.IndexHNSWFlat(dim, GRAPH_NEIGHBOURS) if file is None else _read(file), threads)
        if file is None:
            self._index.hnsw.efConstruction = BUILD_EFFORT
        elif not isinstance(faiss.downcast_index(self._index), faiss.IndexHNSWFlat):
            raise ValueError(f"the graph is {type(self._index).__name__}")

    def search(self, queries: np.ndarray, k: int, effort: int) -> Found:
        return self._found(queries, k, self._faiss.SearchParametersHNSW(efSearch=effort))

    def save(self, file: Path) -> None:
        self._write(file)


class _UsearchGraph:
    """Searches return rows (Q, k) and squared distances."""

    def __init__(self, dim: int, threads: int, file: Path | None) -> None:
        from usearch.index import Index

        self._threads = threads
        self._index: Any = Index(
            ndim=dim,
            metric="l2sq",
            dtype="f32",
            connectivity=GRAPH_NEIGHBOURS // 2,
            expansion_add=BUILD_EFFORT,
            enable_key_lookups=False,
        )
        if file is not None:
            self._index.load(str(file))

    def __len__(self) -> int:
        return len(self._index)

    def add(self, vectors: np.ndarray) -> None:
        rows = np.arange(len(self), len(self) + len(vectors), dtype=np.uint64)
        self._index.add(rows, vectors, threads=self._threads)

    def search(self, queries: np.ndarray, k: int, effort: int) -> Found:
        self._index.expansion_search = effort
        rows = np.full((len(queries), k), -1, np.int64)
        distances = np.full((len(queries), k), np.inf, np.float32)
        for i, query in enumerate(queries):
            found = self._index.search(query, k, threads=1)
            rows[i, : len(found.keys)], distances[i, : len(found.keys)] = found.keys, found.distances
        return rows, distances

    def save(self, file: Path) -> None:
        self._index.save(str(file))


class Hnsw(Graph):
    """The graph of faiss."""

    kind, package = "hnsw", "faiss"
    NEIGHBOURS = _FaissGraph


class Usearch(Graph):
    """The graph of usearch."""

    kind, package = "usearch", "usearch"
    NEIGHBOURS = _UsearchGraph


ENGINES: dict[str, type[SearchEngine]] = {e.kind: e for e in (Exact, Cells, CodedCells, Hnsw, Usearch)}


def engine_class(kind: str) -> type[SearchEngine]:
    """Return the class of an engine. Raises UserError if its package is not installed."""
    engine = ENGINES[kind]
    if engine.package is not None:
        check_extra("index", f"index.kind={kind}", engine.package)
    return engine


def _read(file: Path) -> Any:
    """Read an index of faiss."""
    faiss = _faiss()
    return faiss.read_index(str(file), faiss.IO_FLAG_ONDISK_SAME_DIR | faiss.IO_FLAG_READ_ONLY)


def _faiss() -> Any:
    import faiss

    return faiss
