"""Build an index, and choose how much of it a search must read to find what an exact search finds."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from recsys.base.errors import UserError, did_you_mean
from recsys.base.packages import check_extra
from recsys.base.secrets import mask_text
from recsys.index import engines, milvus
from recsys.index.item_index import ItemIndex
from recsys.index.milvus import MilvusIndex
from recsys.index.protocol import About, Index, VectorRows

MAX_EXACT_ITEMS, MIN_CODED_ITEMS = 20_000, 2_000_000  # items; exact below, codes of 4 bits above
QUERIES = 1000  # of a measurement, at most
AT_ONCE = 64  # of these, in one search
INDEX_KINDS = (*engines.ENGINES, milvus.KIND)
AnyIndex = TypeVar("AnyIndex", bound=Index)


@dataclass(frozen=True)
class MeasuredSearch:
    """Result of searches with an effort: the mean share of the exact best k found, and queries per CPU second."""

    effort: int
    recall: float
    per_cpu_second: float


def build(
    vectors: np.ndarray,
    items: np.ndarray | None = None,
    *,
    kind: str = "auto",
    queries: np.ndarray | None = None,
    k: int = 100,
    recall_target: float = 0.98,
    threads: int = 1,
    seed: int = 0,
    url: str | None = None,
) -> Index:
    """Build an index of items, and tune it if it is not exact.

    Args:
        vectors: (n, dim) float32; may be memory-mapped.
        items: (n,) the items' numbers; by default 0 ... n - 1.
        kind: the engine; auto is exact below 20,000 items, ivf below two million, and ivf_pq above.
        queries: (Q, dim) queries that are like those to come; without any, item vectors stand for them.
        k: the length of lists for which recall is measured.
        recall_target: the least mean share of the exact k best that a search shall find.
        threads: number of threads of a search in this process.
        seed: of the samples.
        url: the server of an index of the kind milvus.

    Raises:
        UserError: no effort reaches the target, the kind is not known or not installed, or the server cannot be
            reached.
    """
    if vectors.ndim != 2 or not len(vectors):
        raise UserError(f"vectors: have shape {list(vectors.shape)}; an index needs at least one row of numbers")
    if not 0 < recall_target <= 1:
        raise UserError(f"index.recall_target={recall_target}: must be above 0 and at most 1")
    if kind not in ("auto", *INDEX_KINDS):
        raise UserError(f"index.kind={kind}: must be auto, {', '.join(INDEX_KINDS)}{did_you_mean(kind, INDEX_KINDS)}")
    check_index_server(kind, url)
    items = np.arange(len(vectors)) if items is None else items
    if kind == "auto":
        kind = "exact" if len(vectors) < MAX_EXACT_ITEMS else "ivf" if len(vectors) < MIN_CODED_ITEMS else "ivf_pq"
    stored = VectorRows(vectors)
    if queries is None:
        rng = np.random.default_rng(seed)
        queries = stored.take(np.sort(rng.choice(len(vectors), min(QUERIES, len(vectors)), replace=False)))
    queries = queries[:QUERIES]
    if url is not None:
        return _build_in_server(url, stored, items, queries, k, recall_target)
    engine = engines.engine_class(kind).build(stored, threads, seed)
    index = ItemIndex(About(engine.kind, engine.efforts[-1]), engine, stored, items)
    if isinstance(engine, engines.Exact):
        return index.with_about(effort=1, recall=1.0, recall_at=k, queries=0)
    return _tune(index, queries, least_products(index, queries, k), k, recall_target)


def check_index_server(kind: str, url: str | None) -> None:
    """Raise UserError unless a kind of index that has a server, and only such a kind, comes with its address.

    Also raise it if the package of the kind is not installed.
    """
    if kind == milvus.KIND:
        check_extra("milvus", f"index={kind}")
    elif kind != "auto":
        engines.engine_class(kind)
    if url is None:
        if kind == milvus.KIND:
            raise UserError(f"index={kind}: also name the server, index_url={milvus.EXAMPLE}")
        return
    if kind != milvus.KIND:
        raise UserError(f"index_url={mask_text(url)}: an index of kind {kind} has no server; write index={milvus.KIND}")
    milvus.check_url(url, "index_url")


def _build_in_server(
    url: str, vectors: VectorRows, items: np.ndarray, queries: np.ndarray, k: int, target: float
) -> MilvusIndex:
    exact = ItemIndex(About("exact", 1), engines.Exact(vectors), vectors, items)
    with milvus.as_user_errors():
        index, new = MilvusIndex.build(url, vectors, items)
        try:
            return _tune(index, queries, least_products(exact, queries, k), k, target)
        except BaseException:
            if new:
                index.drop(quietly=True)
            raise


def _tune(index: AnyIndex, queries: np.ndarray, least: np.ndarray, k: int, target: float) -> AnyIndex:
    """Set the least effort whose searches find the share `target` of the exact best k.

    least: what `least_products` returns for the queries and k

    Raises UserError if none does.
    """
    for effort in index.efforts:
        found = measure(index, queries, least, k, effort, AT_ONCE)
        if found.recall >= target:
            return index.with_about(effort=effort, recall=round(found.recall, 5), recall_at=k, queries=len(queries))
    raise UserError(
        f"index.recall_target={target}: a search of {index.about.kind} finds {found.recall:.4f} of the best {k} at "
        "most; choose a lower target or another index.kind"
    )


def least_products(index: Index, queries: np.ndarray, k: int) -> np.ndarray:
    """Return the inner product (Q,) of each query with the last of its exact best k items."""
    _, products = index.search(queries, min(k, len(index)), exact=True)
    return products[:, -1]


def measure(
    index: Index, queries: np.ndarray, least: np.ndarray, k: int, effort: int, at_once: int = 1
) -> MeasuredSearch:
    """Search, and count the items that are as good as the exact best k.

    Args:
        queries: (Q, dim).
        least: what `least_products` returns for the queries and k.
        k: number of items to find for each query.
        effort: how much of the index a search reads, in the engine's own unit.
        at_once: number of queries of a search; a server mostly searches for one.
    """
    k = min(k, len(index))
    least = (least - 1e-5 * np.abs(least))[:, None]  # sums in another order
    hits, begun = 0, time.process_time()
    for start in range(0, len(queries), at_once):
        _, products = index.search(queries[start : start + at_once], k, effort)
        hits += int((products >= least[start : start + at_once]).sum())
    seconds = time.process_time() - begun
    return MeasuredSearch(effort, hits / (k * len(queries)), len(queries) / max(seconds, 1e-9))
