"""Build an index, and choose how much of it a search must read to find what an exact search finds."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from recsys.errors import UserError
from recsys.serving.index import engines
from recsys.serving.index.engines import Kind
from recsys.serving.index.item_index import About, ItemIndex
from recsys.serving.index.vectors import Vectors

SMALL, LARGE = 20_000, 2_000_000  # items; exact below, codes of 4 bits above
QUERIES = 1000  # of a measurement, at most


@dataclass(frozen=True)
class Measured:
    """Result of searches with an effort: the mean share of the exact best k found, and queries per CPU second."""

    effort: int
    recall: float
    per_cpu_second: float


def build(
    vectors: np.ndarray,
    items: np.ndarray | None = None,
    *,
    kind: Kind | str = "auto",
    queries: np.ndarray | None = None,
    k: int = 100,
    recall_target: float = 0.98,
    threads: int = 1,
    seed: int = 0,
) -> ItemIndex:
    """Build an index of items, and tune it if it is not exact.

    Args:
        vectors: (n, dim) float32; may be memory-mapped.
        items: (n,) the items' numbers; by default 0 ... n - 1.
        kind: the engine; auto is exact below 20,000 items, ivf below two million, and ivf_pq above.
        queries: (Q, dim) queries that are like those to come; without any, item vectors stand for them.
        k: the length of lists for which recall is measured.
        recall_target: the least mean share of the exact k best that a search shall find.

    Raises UserError if no effort reaches the target.
    """
    if vectors.ndim != 2 or not len(vectors):
        raise UserError(f"vectors: have shape {list(vectors.shape)}; an index needs at least one row of numbers")
    if not 0 < recall_target <= 1:
        raise UserError(f"index.recall_target={recall_target}: must be above 0 and at most 1")
    items = np.arange(len(vectors)) if items is None else items
    if kind == "auto":
        kind = "exact" if len(vectors) < SMALL else "ivf" if len(vectors) < LARGE else "ivf_pq"
    stored = Vectors(vectors)
    engine = engines.make(kind, stored, threads=threads, seed=seed)  # type: ignore[arg-type]
    index = ItemIndex(About(engine.kind, engine.efforts[-1]), engine, stored, items)
    if engine.kind == "exact":
        return index.with_about(effort=1, recall=1.0, recall_at=k, queries=0)
    if queries is None:
        rng = np.random.default_rng(seed)
        queries = stored.take(np.sort(rng.choice(len(vectors), min(QUERIES, len(vectors)), replace=False)))
    return tune(index, queries[:QUERIES], k, recall_target)


def tune(index: ItemIndex, queries: np.ndarray, k: int, target: float) -> ItemIndex:
    """Set the least effort whose searches find the share `target` of the exact best k.

    Raises UserError if none does.
    """
    least = least_products(index, queries, k)
    for effort in index.efforts:
        found = measure(index, queries, least, k, effort)
        if found.recall >= target:
            return index.with_about(effort=effort, recall=round(found.recall, 5), recall_at=k, queries=len(queries))
    raise UserError(
        f"index.recall_target={target}: a search of {index.about.kind} finds {found.recall:.4f} of the best {k} at "
        "most; choose a lower target or another index.kind"
    )


def least_products(index: ItemIndex, queries: np.ndarray, k: int) -> np.ndarray:
    """Return the inner product (Q,) of each query with the last of its exact best k items."""
    _, products = index.search(queries, min(k, len(index)), exact=True)
    return products[:, -1]


def measure(index: ItemIndex, queries: np.ndarray, least: np.ndarray, k: int, effort: int) -> Measured:
    """Search for each query alone, as a server does, and count the items that are as good as the exact best k.

    least: what `least_products` returns for the queries and k
    """
    k = min(k, len(index))
    slack = 1e-5 * np.abs(least)  # sums in another order
    found, begun = 0, time.process_time()
    for query, last, tolerance in zip(queries, least, slack, strict=True):
        _, products = index.search(query[None], k, effort)
        found += int((products[0] >= last - tolerance).sum())
    seconds = time.process_time() - begun
    return Measured(effort, found / (k * len(queries)), len(queries) / max(seconds, 1e-9))
