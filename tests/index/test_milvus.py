"""An index in a Milvus server: against an exact search, through changes, and when the server is not as it should be.

The tests run against Milvus Lite, which has the protocol of the server, in Python, and starts in a second. With
`-m slow`, they also run against the server itself.
"""

import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from milvus_servers import free_port, lite, whole

from recsys.base.errors import UserError
from recsys.index import Index, build
from recsys.index import load as load_index
from recsys.index.milvus import MilvusIndex, connect

pytest.importorskip("pymilvus", reason="pymilvus is not installed: pip install 'declarative-recsys[milvus]'")
N, DIM, K = 5000, 16, 20


@pytest.fixture(scope="module", params=["lite", pytest.param("server", marks=pytest.mark.slow)])
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    start = lite if request.param == "lite" else whole
    with start(tmp_path_factory.mktemp("milvus") / "data") as (address, _):
        yield address


def clusters(n: int, seed: int = 0) -> np.ndarray:
    """Vectors around centres, of different lengths."""
    rng = np.random.default_rng(seed)
    around = np.random.default_rng(99).normal(size=(30, DIM))[rng.integers(30, size=n)]
    vectors: np.ndarray = (around + 0.5 * rng.normal(size=(n, DIM))) * rng.uniform(0.5, 1.5, (n, 1))
    return vectors.astype(np.float32)


def built(url: str, vectors: np.ndarray, **more: Any) -> MilvusIndex:
    index = build(vectors, kind="milvus", url=url, k=K, **{"queries": clusters(100, seed=1), **more})
    assert isinstance(index, MilvusIndex)
    return index


def share_found(index: Index, reference: Index, queries: np.ndarray) -> float:
    pairs = zip(index.search(queries, K)[0], reference.search(queries, K)[0], strict=True)
    return float(np.mean([np.isin(b, f).mean() for f, b in pairs]))


def test_finds_what_an_exact_search_finds_through_changes(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After it is built, after items were added, replaced and removed, and after it has been read again."""
    monkeypatch.setenv("RECSYS_INDEX_URL", url)
    vectors, queries, items = clusters(N), clusters(100, seed=1), np.random.default_rng(0).permutation(2 * N)[:N]
    index, exact = built(url, vectors, items=items), build(vectors, items, kind="exact")
    about = index.about
    assert about.kind == "milvus" and about.recall is not None and about.recall >= 0.98 and about.recall_at == K
    assert len(index) == N and index.dim == DIM and index.efforts[0] == 1 and about.effort in index.efforts
    assert share_found(index, exact, queries) >= 0.98
    found, products = index.search(queries, K)
    expected = np.einsum("qkd,qd->qk", exact.vectors(found.ravel()).reshape(*found.shape, DIM), queries)
    np.testing.assert_allclose(products, expected, rtol=1e-5)
    assert (np.diff(products, axis=1) <= 0).all()
    assert np.array_equal(index.search(queries, K, exact=True)[0], exact.search(queries, K)[0])

    best = np.unique(found[:, :2])
    new, replaced = np.arange(2 * N, 2 * N + 300), np.setdiff1d(items, best)[:200]
    for one in (index, exact):
        assert one.remove(np.append(best, [10**12, best[0]])) == len(best)
        one.add(new, clusters(300, seed=2) * 3)
        one.add(replaced, clusters(200, seed=3))
        assert len(one) == N - len(best) + 300
    found = index.search(queries, K)[0]
    assert not np.isin(found, best).any() and np.isin(found, new).any() and (found >= 0).all()
    assert share_found(index, exact, queries) >= 0.95
    assert np.array_equal(index.search(queries, K, exact=True)[0], exact.search(queries, K)[0])

    index.save(tmp_path / "index")
    other = load_index(tmp_path / "index")
    assert other.about == index.about and len(other) == len(index)
    assert np.array_equal(other.search(queries, K)[0], found)
    other.add(np.array([3 * N]), queries[:1] * 50)
    assert index.search(queries[:1], 1)[0].tolist() == [[3 * N]]  # the collection is one
    with pytest.raises(UserError, match=rf"{index.collection} has {len(index):,} items, not .*; it was changed"):
        load_index(tmp_path / "index")
    with pytest.raises(UserError, match="it was changed since it was built; drop it, and export again"):
        built(url, vectors, items=items)
    index.drop()


@pytest.mark.slow
def test_small_ones_long_lists_and_mistakes(url: str, tmp_path: Path) -> None:
    vectors = clusters(3, seed=5)
    index = built(url, vectors, queries=vectors)
    items, products = index.search(vectors[:1], 20_000)
    assert sorted(items[0, :3]) == [0, 1, 2] and (items[0, 3:] == -1).all() and (products[0, 3:] == -np.inf).all()
    for call, message in [
        (lambda: index.search(vectors[0], 3), r"queries: have shape \[16\]"),
        (lambda: index.add(np.array([1, 1]), vectors[:2]), "items: 1 appears twice"),
        (lambda: build(vectors, kind="milvus"), r"index=milvus: also name the server"),
        (lambda: build(vectors, kind="milvus", url="localhost:19530"), "index_url=localhost:19530: must be the addr"),
        (lambda: build(vectors, kind="milvus", url="http://me:secret@host:1"), r"index_url=http://\*\*\*@host:1: "),
    ]:
        with pytest.raises(UserError, match=message):
            call()
    assert len(index) == 3
    index.remove(np.arange(3))
    assert len(index) == 0 and index.search(vectors, 2)[0].tolist() == [[-1, -1]] * 3
    index.drop()


def test_only_the_vectors_of_its_build_are_searched(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other vectors have another collection; one that is not what the index was built from is refused."""
    index, other = built(url, clusters(50)), built(url, clusters(50, seed=1))
    assert index.collection != other.collection and built(url, clusters(50)).collection == index.collection
    index.save(tmp_path / "index")
    with pytest.raises(
        UserError, match=f"is an index in a Milvus server; name the server: set RECSYS_INDEX_URL={url}$"
    ):
        load_index(tmp_path / "index")  # a folder does not choose where this machine connects to
    monkeypatch.setenv("RECSYS_INDEX_URL", url)
    assert "token" not in (tmp_path / "index" / "manifest.json").read_text()
    client = connect(url)
    client.alter_collection_properties(index.collection, {"recsys.digest": "00ff"})
    with pytest.raises(UserError, match=f"collection {index.collection} has digest 00ff, not .*: it holds other vect"):
        load_index(tmp_path / "index")
    index = built(url, clusters(50))  # what an interrupted build left has no digest, or another, and is written again
    assert len(load_index(tmp_path / "index")) == 50
    index.drop()
    with pytest.raises(UserError, match=f"{url}: collection {index.collection} of this index is not there; set RECSYS"):
        load_index(tmp_path / "index")
    with pytest.raises(UserError, match="a search of milvus finds"):
        built(url, clusters(50, seed=2), queries=clusters(3) * np.nan)  # no effort finds anything
    names = client.list_collections()
    assert names == [other.collection]  # what could not be tuned is not left
    other.drop()
    monkeypatch.setenv("RECSYS_INDEX_URL", "nonsense")
    with pytest.raises(UserError, match=r"^RECSYS_INDEX_URL=nonsense: must be the address of a Milvus server, such as"):
        load_index(tmp_path / "index")


@pytest.mark.slow
def test_searches_while_items_change(url: str) -> None:
    """A search sees an item with its old vector or its new one, and never another item's."""
    vectors = clusters(2000)
    index = built(url, vectors)
    wrong: list[str] = []
    done = threading.Event()

    def search() -> None:
        try:
            while not done.is_set():
                items, products = index.search(vectors[:4], 5)
                if not np.allclose(products[items >= N], 0, atol=1e-6) or (items < 0).any():
                    wrong.append(str(items))
        except Exception as e:
            wrong.append(repr(e))

    threads = [threading.Thread(target=search) for _ in range(2)]
    for thread in threads:
        thread.start()
    for start in range(0, 500, 100):
        index.add(np.arange(N + start, N + start + 100), np.zeros((100, DIM), np.float32))
        assert index.remove(np.arange(start, start + 100)) == 100
    done.set()
    for thread in threads:
        thread.join()
    assert not wrong and len(index) == 2000
    index.drop()


@pytest.mark.slow
def test_a_server_that_cannot_be_reached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No server, one that does not answer, and one that ends while it is used: one line each, within seconds."""
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        for address in (f"http://127.0.0.1:{free_port()}", f"http://127.0.0.1:{mute.getsockname()[1]}"):
            begun = time.monotonic()
            with pytest.raises(
                UserError, match=f"^{address}: no Milvus server can be reached there .*; start it, "
            ) as e:
                build(clusters(10), kind="milvus", url=address)
            assert time.monotonic() - begun < 8 and "\n" not in str(e.value)
    with lite(tmp_path / "data") as (address, stop):
        index = built(address, clusters(100))
        index.save(tmp_path / "index")
        monkeypatch.setenv("RECSYS_INDEX_URL", address)
        stop()
        begun = time.monotonic()
        with pytest.raises(
            ConnectionError, match=f"^{address}: the Milvus server has failed, or cannot be reached"
        ) as failed:
            index.search(clusters(1), 5)
        assert time.monotonic() - begun < 15 and "\n" not in str(failed.value)
        with pytest.raises(UserError, match=r"cannot be reached any more .* set RECSYS_INDEX_URL to another"):
            load_index(tmp_path / "index")
