"""Indexes of item vectors: against sorted products, through additions and removals, and what can go wrong."""

import threading
from pathlib import Path

import numpy as np
import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from recsys.base.errors import UserError
from recsys.files.manifest import DamagedFile
from recsys.index import ItemIndex, build
from recsys.index.engines import ENGINES as KINDS

APPROXIMATE = [kind for kind in KINDS if kind != "exact"]


def clusters(n: int, dim: int = 16, seed: int = 0, centres: int = 30) -> np.ndarray:
    """Vectors around centres, of different lengths."""
    rng = np.random.default_rng(seed)
    around = np.random.default_rng(99).normal(size=(centres, dim))[rng.integers(centres, size=n)]
    vectors: np.ndarray = (around + 0.5 * rng.normal(size=(n, dim))) * rng.uniform(0.5, 1.5, (n, 1))
    return vectors.astype(np.float32)


def by_sorting(queries: np.ndarray, vectors: dict[int, np.ndarray], k: int) -> tuple[np.ndarray, np.ndarray]:
    """The reference: the k best items by product, equal ones by item."""
    items = np.array(sorted(vectors))
    products = queries @ np.stack([vectors[i] for i in items]).T if len(items) else np.zeros((len(queries), 0))
    order = np.argsort(-products, axis=1, kind="stable")[:, :k]
    return items[order] if len(items) else order, np.take_along_axis(products, order, 1)


def test_equal_products_come_in_the_order_of_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also at the end of a list, across blocks, and where a product's rounding depends on the place of the vector."""
    rng = np.random.default_rng(0)
    for dim, n in ((3, 50), (33, 131), (64, 70)):
        few = rng.normal(size=(12, dim)).astype(np.float32)
        copies = rng.integers(12, size=n)
        vectors = few[copies]
        index = build(vectors, kind="exact")
        for products in (1 << 22, 64):
            monkeypatch.setattr("recsys.index.engines.PRODUCTS", products)
            for query in rng.normal(size=(20, 1, dim)).astype(np.float32):
                exact = (few.astype(np.float64) @ query[0].astype(np.float64))[copies]
                expected = np.argsort(-exact, kind="stable")[:15]
                assert index.search(query, 15)[0][0].tolist() == expected.tolist()


def share_found(index: ItemIndex, queries: np.ndarray, k: int) -> float:
    """The share of the exact best k items that a search returns."""
    found, best = index.search(queries, k)[0], index.search(queries, k, exact=True)[0]
    return float(np.mean([np.isin(b, f).mean() for b, f in zip(best, found, strict=True)]))


@settings(max_examples=examples(40), deadline=None)
@given(st.data())
def test_exact_through_any_changes(data: st.DataObject) -> None:
    """Additions, replacements and removals; whole numbers make equal products."""
    rng = np.random.default_rng(data.draw(st.integers(0, 2**31)))
    n, dim = data.draw(st.integers(1, 40)), data.draw(st.integers(1, 5))
    first = rng.integers(-2, 3, (n, dim)).astype(np.float32)
    items = rng.permutation(60)[:n]
    index, there = build(first, items, kind="exact"), dict(zip(items.tolist(), first, strict=True))
    for _ in range(data.draw(st.integers(0, 5))):
        some = rng.permutation(80)[: data.draw(st.integers(1, 30))]
        if data.draw(st.booleans()):
            vectors = rng.integers(-2, 3, (len(some), dim)).astype(np.float32)
            index.add(some, vectors)
            there |= dict(zip(some.tolist(), vectors, strict=True))
        else:
            assert index.remove(some) == len(set(some.tolist()) & set(there))
            there = {i: v for i, v in there.items() if i not in some}
        queries, k = rng.integers(-2, 3, (3, dim)).astype(np.float32), data.draw(st.integers(1, 50))
        found, products = index.search(queries, k)
        expected, theirs = by_sorting(queries, there, k)
        assert len(index) == len(there) and all((i in index) == (i in there) for i in range(-1, 90))
        assert np.array_equal(products[:, : len(there)], theirs) and (products[:, len(there) :] == -np.inf).all()
        assert (found[:, len(there) :] == -1).all()
        above = theirs > theirs[:, -1:] if there else theirs > 0  # which of equal ones end a list is not defined
        assert np.array_equal(found[:, : len(there)][above], expected[above])
        for query, row, their in zip(queries, found, products, strict=True):
            listed = row[row >= 0].tolist()
            assert len(set(listed)) == len(listed) and [query @ there[i] for i in listed] == their[row >= 0].tolist()


@pytest.mark.parametrize("kind", APPROXIMATE)
def test_finds_what_an_exact_search_finds(kind: str, tmp_path: Path) -> None:
    """After it is built, after a tenth of the items have changed, and after it has been read again."""
    vectors, queries = clusters(6000), clusters(200, seed=1)
    index = build(vectors, kind=kind, queries=queries, k=20, recall_target=0.98)
    assert index.about.kind == kind and index.about.recall is not None and index.about.recall >= 0.98
    assert share_found(index, queries, 20) >= 0.98
    items, products = index.search(queries, 20)
    np.testing.assert_allclose(products, np.einsum("qkd,qd->qk", vectors[items], queries), rtol=1e-5)
    best = np.unique(index.search(queries, 3, exact=True)[0])
    assert index.remove(best) == len(best)
    index.add(np.arange(6000, 6600), clusters(600, seed=2) * 3)  # longer than all before
    index.add(np.arange(0, 300), clusters(300, seed=3))
    again = np.intersect1d(best, np.arange(300))
    gone = np.setdiff1d(best, again)
    items, _ = index.search(queries, 20)
    assert not np.isin(items, gone).any() and (items >= 6000).any() and (items >= 0).all()
    assert share_found(index, queries, 20) >= 0.85
    assert len(index) == 6600 - len(gone)
    index.save(tmp_path / "index")
    other = ItemIndex.load(tmp_path / "index")
    assert other.about == index.about and len(other) == len(index)
    assert np.array_equal(other.search(queries, 20)[0], items)
    other.add(np.array([9000]), queries[:1] * 50)
    assert other.search(queries[:1], 1)[0].tolist() == [[9000]]


def test_lists_are_full_while_most_items_are_gone() -> None:
    vectors, queries = clusters(4000), clusters(50, seed=1)
    index = build(vectors, kind="ivf", queries=queries, k=10)
    index.remove(np.arange(0, 3900))
    items, _ = index.search(queries, 50, effort=index.efforts[-1])
    assert (items >= 3900).all() and index.stale == pytest.approx(0.975)
    assert share_found(index.with_about(effort=index.efforts[-1]), queries, 50) == 1


def test_searches_while_items_change() -> None:
    """A search sees an item with its old vector or its new one, and never another item's."""
    vectors = clusters(5000)
    index = build(vectors, kind="ivf", queries=vectors[:50], k=5)
    wrong: list[str] = []
    done = threading.Event()

    def search() -> None:
        while not done.is_set():
            items, products = index.search(vectors[:8], 5)
            fresh = np.isin(items, np.arange(5000, 7000))
            if not np.allclose(products[fresh], 0, atol=1e-6) or (items < 0).any():
                wrong.append(str(items))

    threads = [threading.Thread(target=search) for _ in range(3)]
    for thread in threads:
        thread.start()
    for start in range(5000, 7000, 100):
        index.add(np.arange(start, start + 100), np.zeros((100, 16), np.float32))
        index.remove(np.arange(start - 5000, start - 4900))
    done.set()
    for thread in threads:
        thread.join()
    assert not wrong and len(index) == 5000


def test_the_default_goes_by_size() -> None:
    assert build(clusters(100)).about.kind == "exact"
    assert build(clusters(20_000, dim=4), k=5).about.kind == "ivf"


def test_mistakes(tmp_path: Path) -> None:
    vectors = clusters(300)
    index = build(vectors, kind="exact")
    for call, message in [
        (lambda: build(vectors[:0]), r"vectors: have shape \[0, 16\]; an index needs at least one row"),
        (lambda: build(vectors, kind="inf"), r"index.kind=inf: must be auto, exact, .*; did you mean ivf\?"),
        (lambda: build(vectors, recall_target=1.2), r"index.recall_target=1.2: must be above 0 and at most 1"),
        (lambda: index.search(vectors[0], 3), r"queries: have shape \[16\], and the index takes \[queries, 16\]"),
        (lambda: index.search(vectors, 0), "k=0: must be at least 1"),
        (lambda: index.add(np.array([1, 1]), vectors[:2]), "items: 1 appears twice"),
        (lambda: index.add(np.array([-4]), vectors[:1]), "items: -4 is negative"),
        (lambda: index.add(np.array([4]), vectors[:2]), r"vectors: have shape \[2, 16\], not \[1, 16\]"),
        (lambda: index.add(np.array([4]), vectors[:1] * np.nan), "vectors: hold NaN"),
        (lambda: index.vectors(np.array([3, 300])), "index: has no item 300"),
        (lambda: ItemIndex.load(tmp_path), f"{tmp_path}: is not an index"),
    ]:
        with pytest.raises(UserError, match=message):
            call()
    assert len(index) == 300
    index.save(tmp_path / "index")
    with (tmp_path / "index" / "items.npy").open("r+b") as f:
        f.seek(-1, 2)
        f.write(b"\x01")
    with pytest.raises(DamagedFile, match=r"items\.npy: is damaged"):
        ItemIndex.load(tmp_path / "index")


def test_a_target_that_cannot_be_reached() -> None:
    """Codes of 4 bits lose too much if no vector is near another."""
    rng = np.random.default_rng(0)
    vectors, queries = (rng.normal(size=(n, 64)).astype(np.float32) for n in (3000, 50))
    with pytest.raises(UserError, match=r"index.recall_target=1.0: a search of ivf_pq finds 0\.9\d+ of the best 100"):
        build(vectors, kind="ivf_pq", queries=queries, k=100, recall_target=1.0)
