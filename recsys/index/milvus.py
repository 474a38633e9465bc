"""An index whose vectors are in a Milvus server, or in a cluster of them: more items than one machine's memory holds.

Each build has a collection of its own, whose name ends with a digest of the items and vectors:

    recsys_DIGEST     item INT64, the key; vector FLOAT_VECTOR, in cells around centroids as of the engine ivf
                      (Milvus's IVF_FLAT). The property recsys.digest is set once all items are there

The server has the items and the vectors, and so every process that uses the collection sees what one of them adds or
removes. The folder of such an index has a manifest only, with the server's URL and the digest. Milvus divides a
collection into segments, each with cells of its own, and spreads them over its machines.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import xxhash

from recsys.base.errors import UserError
from recsys.base.packages import check_extra
from recsys.base.secrets import mask_text
from recsys.files import manifest
from recsys.files.atomic import whole_folder
from recsys.index import protocol
from recsys.index.engines import BLOCK, cells_of, efforts_of

KIND = "milvus"
URL_VARIABLE = "RECSYS_INDEX_URL"  # the server that has the index
TOKEN_VARIABLE = "RECSYS_INDEX_TOKEN"  # nosec B105 # the name of a variable
EXAMPLE = "http://HOST:19530"
SERVER = "server"  # key in the manifest of an index
PREFIX, DIGEST = "recsys_", "recsys.digest"  # of a collection's name; a property of it
ITEM, VECTOR = "item", "vector"
METRIC = "IP"
CONNECT_SECONDS, ANSWER_SECONDS, WRITE_SECONDS = 5.0, 10.0, 120.0
INSERT_BYTES = 8 << 20  # of one request; servers take 64 MiB
SEGMENT_BYTES = 512 << 20  # of the vectors that share cells; larger collections have several segments
EVERY_CELL = 1 << 16  # the most cells that a segment can have
MAX_LISTED = 16_384  # items that Milvus lists for a query
LISTED = 1 << 20  # items of the answer to one request


class MilvusIndex(protocol.Index):
    """An index in a Milvus server. Threads may share it, and search while items are added or removed.

    Args:
        about: how the index was made.
        digest: identifies the items and vectors; the end of the collection's name.

    collection: the name of the collection
    """

    def __init__(self, about: protocol.About, client: Any, url: str, digest: str, dim: int) -> None:
        self.about, self.url, self.collection = about, url, PREFIX + digest
        self._client, self._digest, self._dim = client, digest, dim
        self._changes = threading.Lock()

    def __len__(self) -> int:
        with _failures(self.url):
            found = self._client.query(
                self.collection,
                filter="",
                output_fields=["count(*)"],
                consistency_level="Strong",
                timeout=WRITE_SECONDS,
            )
        return int(found[0]["count(*)"])

    @property
    def dim(self) -> int:
        return self._dim

    @property
    def efforts(self) -> tuple[int, ...]:
        with _failures(self.url):
            found = self._client.describe_index(self.collection, VECTOR, timeout=ANSWER_SECONDS)
        return efforts_of(int(found.get("nlist", EVERY_CELL)))

    def search(
        self, queries: np.ndarray, k: int, effort: int | None = None, *, exact: bool = False
    ) -> tuple[np.ndarray, np.ndarray]:
        queries = protocol.check_search(queries, k, self.dim)
        if k > MAX_LISTED and len(self) > MAX_LISTED:
            raise UserError(f"k={k}: Milvus lists at most {MAX_LISTED:,} items of a query; ask for fewer")
        listed = min(k, MAX_LISTED)
        cells = EVERY_CELL if exact else self.about.effort if effort is None else effort
        items = np.full((len(queries), listed), -1, np.int64)
        products = np.full((len(queries), listed), -np.inf, np.float32)
        at_once = max(1, LISTED // listed)
        for start in range(0, len(queries), at_once):
            with _failures(self.url):
                answer = self._client.search(
                    self.collection,
                    data=list(queries[start : start + at_once]),
                    anns_field=VECTOR,
                    limit=listed,
                    search_params={"metric_type": METRIC, "params": {"nprobe": cells}},
                    timeout=ANSWER_SECONDS,
                )
            for row, hits in enumerate(answer, start):
                items[row, : len(hits.ids)], products[row, : len(hits.ids)] = hits.ids, hits.distances
        return protocol.best(items, products, k)

    def add(self, items: np.ndarray, vectors: np.ndarray) -> None:
        protocol.check_added(items, vectors, self.dim)
        with self._changes, _failures(self.url):
            for rows in _requests(items, vectors):
                self._client.upsert(self.collection, rows, timeout=WRITE_SECONDS)
        len(self)  # a consistent read returns once the server's searches see the change

    def remove(self, items: np.ndarray) -> int:
        items, removed = np.unique(items), 0
        with self._changes, _failures(self.url):
            for start in range(0, len(items), protocol.ADDED):
                entities = self._client.query(
                    self.collection,
                    ids=items[start : start + protocol.ADDED].tolist(),
                    output_fields=[ITEM],
                    consistency_level="Strong",
                    timeout=WRITE_SECONDS,
                )
                if entities:
                    ids = [row[ITEM] for row in entities]
                    self._client.delete(self.collection, ids=ids, timeout=WRITE_SECONDS)
                    removed += len(ids)
        len(self)
        return removed

    def save(self, folder: Path, *, vectors: bool = True) -> None:
        with whole_folder(folder) as building:
            protocol.write_manifest(building, self, {SERVER: {"url": self.url, "digest": self._digest}})

    def drop(self, *, quietly: bool = False) -> None:
        """Remove the collection from the server. quietly: whether to ignore that the server fails"""
        with contextlib.suppress(*[ConnectionError] * quietly), _failures(self.url):
            self._client.drop_collection(self.collection, timeout=WRITE_SECONDS)

    @classmethod
    def build(cls, url: str, vectors: protocol.VectorRows, items: np.ndarray) -> tuple[MilvusIndex, bool]:
        """Write items (n,) and their vectors to a collection of their own.

        Returns:
            The index, and whether it is new: an earlier build of the same items and vectors is used again.

        Raises:
            UserError: the server cannot be reached, or its collection of these vectors was changed.
            ConnectionError: the server fails.
        """
        protocol.check_items(items)
        client, state = connect(url), xxhash.xxh3_128(np.ascontiguousarray(items, np.int64).data)
        for _, block in vectors.blocks(BLOCK):
            state.update(np.ascontiguousarray(block, np.float32).data)
        digest = state.hexdigest()
        index = cls(protocol.About(KIND, 1), client, url, digest, vectors.dim)
        with _failures(url):
            if client.has_collection(index.collection, timeout=ANSWER_SECONDS):
                if _digest_in(client.describe_collection(index.collection, timeout=ANSWER_SECONDS)) == digest:
                    index._open(len(items), "it was changed since it was built; drop it, and export again")
                    return index, False
                index.drop()  # an export that was interrupted has left it
            try:
                index._write(vectors, items)
                index._open(len(items), "another program writes to it; export again")
            except BaseException:
                index.drop(quietly=True)
                raise
        return index, True

    def _write(self, vectors: protocol.VectorRows, items: np.ndarray) -> None:
        from pymilvus import DataType

        cells = cells_of(min(len(items), max(1, SEGMENT_BYTES // (4 * vectors.dim))))
        client, name = self._client, self.collection
        schema = client.create_schema(auto_id=False, enable_dynamic_field=False)
        schema.add_field(ITEM, DataType.INT64, is_primary=True)
        schema.add_field(VECTOR, DataType.FLOAT_VECTOR, dim=self.dim)
        client.create_collection(name, schema=schema, consistency_level="Session", timeout=WRITE_SECONDS)
        for start, block in vectors.blocks(BLOCK):
            for rows in _requests(items[start : start + len(block)], block):
                client.insert(name, rows, timeout=WRITE_SECONDS)
        client.flush(name)  # without a limit of time, as the next: they take as long as there are items
        params = client.prepare_index_params()
        params.add_index(VECTOR, index_type="IVF_FLAT", metric_type=METRIC, params={"nlist": cells})
        client.create_index(name, params)
        client.alter_collection_properties(name, {DIGEST: self._digest}, timeout=WRITE_SECONDS)

    @classmethod
    def load(cls, folder: Path, *, digests: bool = True) -> MilvusIndex:
        """Open the collection of an index from the folder that `save` wrote.

        The environment variable RECSYS_INDEX_URL names the server, and RECSYS_INDEX_TOKEN has the token, or
        USER:PASSWORD, of a server that wants one.

        Args:
            folder: a folder that `save` wrote.
            digests: as for `ItemIndex.load`.

        Raises:
            UserError: the folder is not an index of this version, the server cannot be reached, or its collection is
                not the one that the index was saved with.
            DamagedFile: a file is missing or is not as it was written.
        """
        saved = protocol.read_manifest(folder)
        manifest.check(folder, size_only=not digests)
        try:
            digest, its_url = str(saved[SERVER]["digest"]), str(saved[SERVER]["url"])
        except (KeyError, TypeError):
            raise manifest.DamagedFile(folder / manifest.FILE, manifest.UNREADABLE) from None
        given = os.environ.get(URL_VARIABLE)
        if not given:  # a folder from elsewhere must not choose where this machine connects to
            built = check_url(its_url, f"{folder / manifest.FILE}: {SERVER}.url")
            raise UserError(f"{folder}: is an index in a Milvus server; name the server: set {URL_VARIABLE}={built}")
        url = check_url(given, URL_VARIABLE)
        index = cls(protocol.about_of(saved), connect(url), url, digest, int(saved["dim"]))
        with as_user_errors():
            index._check()
            index._open(int(saved["items"]), "it was changed since the index was saved; export the run again")
        return index

    def _check(self) -> None:
        """Raise UserError if the server does not have the vectors that the index was built from."""
        where, elsewhere = f"{self.url}: collection {self.collection}", f"set {URL_VARIABLE} to the server that has it"
        with _failures(self.url):
            if not self._client.has_collection(self.collection, timeout=ANSWER_SECONDS):
                raise UserError(f"{where} of this index is not there; {elsewhere}, or export the run again")
            about = self._client.describe_collection(self.collection, timeout=ANSWER_SECONDS)
        dim = next((int(f["params"]["dim"]) for f in about["fields"] if f["name"] == VECTOR), None)
        for what, its, ours in (("digest", _digest_in(about), self._digest), ("dim", dim, self.dim)):
            if its != ours:
                raise UserError(
                    f"{where} has {what} {its}, not {ours}: it holds other vectors, or its export was interrupted; "
                    f"{elsewhere}, or export the run again"
                )

    def _open(self, items: int, advice: str) -> None:
        """Let the server load the collection. Raises UserError if it does not have so many items."""
        with _failures(self.url):
            self._client.load_collection(self.collection)
        if (count := len(self)) != items:
            raise UserError(f"{self.url}: collection {self.collection} has {count:,} items, not {items:,}; {advice}")


def connect(url: str) -> Any:
    """Return a client of a server, with the token of the environment.

    Raises:
        UserError: pymilvus is not installed, or the server does not answer within five seconds.
    """
    check_extra("milvus", f"index={KIND}")
    from pymilvus import MilvusClient
    from pymilvus.exceptions import MilvusException

    logging.getLogger("pymilvus").setLevel(logging.CRITICAL)  # it logs the errors that it raises, with tracebacks
    try:
        return MilvusClient(url, token=os.environ.get(TOKEN_VARIABLE, ""), timeout=CONNECT_SECONDS)
    except MilvusException as e:
        raise UserError(
            f"{url}: no Milvus server can be reached there ({_reason(e)}); start it, name another "
            f"(index_url= of an export, {URL_VARIABLE} elsewhere), or set {TOKEN_VARIABLE} if it wants a token"
        ) from e


def check_url(url: str, key: str) -> str:
    """Return the address of a server. Raises UserError if the text is not an address, or holds a password.

    key: where the address comes from
    """
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid:
        raise UserError(f"{key}={mask_text(url)}: must be the address of a Milvus server, such as {EXAMPLE}")
    if parts.username is not None:
        raise UserError(f"{key}={mask_text(url)}: leave the user out, and set {TOKEN_VARIABLE}=USER:PASSWORD")
    return url


def _requests(items: np.ndarray, vectors: np.ndarray) -> Iterator[list[dict[str, Any]]]:
    """Yield the rows of requests that insert items."""
    step = max(1, min(protocol.ADDED, INSERT_BYTES // (4 * vectors.shape[1])))
    for start in range(0, len(items), step):
        ids, rows = items[start : start + step].tolist(), vectors[start : start + step].astype(np.float32)
        yield [{ITEM: item, VECTOR: vector} for item, vector in zip(ids, rows, strict=True)]


def _digest_in(about: Mapping[str, Any]) -> str | None:
    """Return the digest among what the server says about a collection, None if its build has not ended."""
    return (about.get("properties") or {}).get(DIGEST)


@contextlib.contextmanager
def _failures(url: str) -> Iterator[None]:
    """Raise an error of the server as ConnectionError: whoever searches has not made it."""
    from grpc import RpcError
    from pymilvus.exceptions import MilvusException

    try:
        yield
    except (MilvusException, RpcError) as e:
        raise ConnectionError(
            f"{url}: the Milvus server has failed, or cannot be reached any more ({_reason(e)}); see its log, start it "
            f"again, or set {URL_VARIABLE} to another that has the items"
        ) from e


@contextlib.contextmanager
def as_user_errors() -> Iterator[None]:
    """Raise an error of the server as UserError: whoever builds or loads an index has named the server."""
    try:
        yield
    except ConnectionError as e:
        raise UserError(str(e)) from e


def _reason(error: Any) -> str:
    """Return why a request failed, in one line."""
    for e in (error.__cause__, error):
        if hasattr(e, "details"):  # of gRPC, which says more
            return " ".join(str(e.details()).split())
    return " ".join(str(error.message or error).split())
