"""Look up values in a table: the one place that turns values into ids, counts or means."""

import hashlib
import zlib
from collections.abc import Iterable
from functools import cached_property
from threading import Lock
from typing import Any

import numpy as np
import polars as pl

from recsys.interface.features import OUT_OF_VOCABULARY

MAX_CHANGED = 0.25  # of the values: an index with more changes builds a dict of its own
MAX_DICT_ROWS = 256  # with at most this many rows a dict is faster, because polars hashes the whole table in every call


def bucket_ids(values: pl.Series, buckets: int) -> pl.Series:
    """Return Int32 ids from 1 to `buckets` for a String column without nulls."""
    texts = values.cast(pl.Binary).to_list()
    crcs = np.fromiter(map(zlib.crc32, texts), np.uint64, len(texts))
    return pl.Series(values.name, buckets_of_crcs(crcs, np.uint64(buckets)))


def buckets_of_crcs(crcs: np.ndarray, buckets: np.ndarray | np.uint64) -> np.ndarray:
    """Return int32 ids from 1 to `buckets` for CRC-32s: uint64, of any shape to which `buckets` broadcasts."""
    return (mix(crcs) % buckets).astype(np.int32) + np.int32(1)


def group_numbers(values: pl.Series) -> np.ndarray:
    """Hash a String column without nulls to (rows,) int64, so that different values hardly ever get the same number."""
    texts, place = np.unique(values.to_numpy(), return_inverse=True)
    digests = b"".join(hashlib.blake2b(text.encode(), digest_size=8).digest() for text in texts)
    return np.frombuffer(digests, np.int64)[place]


def shares(values: pl.Series, seed: int) -> np.ndarray:
    """Hash a String column without nulls to (rows,) uniform numbers in [0, 1); equal values get equal numbers."""
    texts = values.cast(pl.Binary).to_list()
    return shares_of_places(np.fromiter(map(zlib.crc32, texts), np.uint64, len(texts)), seed)


def shares_of_places(places: np.ndarray, seed: int) -> np.ndarray:
    """Hash (rows,) whole numbers to (rows,) uniform numbers in [0, 1); equal ones get equal numbers."""
    return mix(places.astype(np.uint64) + np.uint64(seed) * np.uint64(0x9E3779B97F4A7C15)) / 2.0**64


def mix(h: np.ndarray) -> np.ndarray:
    """Mix the bits of `h` (Appleby's MurmurHash3): every bit of the result depends on every bit of `h`."""
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        h = (h ^ (h >> np.uint64(33))) * np.uint64(factor)
    return h ^ (h >> np.uint64(33))


_building = Lock()


class TextResults(dict[str | None, Any]):
    """Maps text to numbers, and text that it lacks to OUT_OF_VOCABULARY. The key None is a missing value.

    Raises KeyError for a key that is not text, and UnicodeEncodeError for unknown text that is not UTF-8.
    """

    def __init__(self, results: Iterable[tuple[str | None, int]]) -> None:
        super().__init__(results)
        self[None] = self[""]

    def __missing__(self, text: object) -> Any:
        if type(text) is not str:
            raise KeyError(text)
        if not text.isascii():
            text.encode()
        return OUT_OF_VOCABULARY


class LayeredResults(TextResults):
    """Results that differ from others in `changes`; all other text is looked up in `below`.

    `__missing__` is a slot, so that a dict calls the lookup in `below` itself, without a Python function in between.
    """

    __slots__ = ("__missing__", "below", "changes")

    def __init__(self, below: TextResults, changes: dict[str | None, Any]) -> None:
        self.__missing__, self.below, self.changes = below.__getitem__, below, changes  # type: ignore[method-assign, assignment]
        super().__init__(changes.items())


class ValueIndex:
    """Maps each of `values` (distinct text) to 1 + its position, and all other values to OUT_OF_VOCABULARY.

    Short columns are looked up in a dict, long ones among the sorted hashes of all values. Both are built on first use
    and take about 150 and 12 bytes a value. Polars' `replace_strict` would hash all values in every call. Both give the
    same results.
    """

    def __init__(self, values: pl.Series) -> None:
        self._values = values

    def changed(self, values: pl.Series) -> "ValueIndex":
        """Return the index of other values, which shares this index's dict if it has one and few values differ.

        A dict of a million values takes half a second to build, in which no other thread runs.
        """
        index = ValueIndex(values)
        results = vars(self).get("results")
        if results is None:
            return index
        common = min(len(values), len(self._values))
        differ = (values[:common] != self._values[:common]).arg_true()
        gone = [*self._values.gather(differ), *self._values[common:]]
        changes = dict.fromkeys(gone, OUT_OF_VOCABULARY) | dict(zip(values.gather(differ), differ + 1, strict=True))
        changes |= dict(zip(values[common:], range(common + 1, len(values) + 1), strict=True))
        below = results
        if isinstance(results, LayeredResults):
            below, changes = results.below, results.changes | changes
        if len(changes) <= MAX_CHANGED * len(values):
            vars(index)["results"] = LayeredResults(below, changes)
        return index

    def look_up(self, column: pl.Series) -> pl.Series:
        """Return the results for a String column, (rows,) -> (rows,). A missing value is the empty text."""
        if len(column) <= MAX_DICT_ROWS:
            return pl.Series(column.name, self.look_up_list(column), dtype=pl.Int32)
        # find the rows that hold known values, and the places of these among the values
        text = column.fill_null("")
        with _building:  # threads that look up at the same time build them once
            hashes, order = self._by_hash
        wanted = text.hash().to_numpy()
        rows = np.argsort(wanted)  # neighbours are near each other among the hashes, too
        near = np.searchsorted(hashes, wanted[rows])
        found: list[tuple[np.ndarray, np.ndarray]] = []
        while True:  # more than once if two values have one hash
            inside = near < len(hashes)
            rows, near = rows[inside], near[inside]
            same_hash = hashes[near] == wanted[rows]
            rows, near = rows[same_hash], near[same_hash]
            same = (self._values.gather(order[near]) == text.gather(rows)).to_numpy()
            found.append((rows[same], order[near[same]]))
            if same.all():
                break
            rows, near = rows[~same], near[~same] + 1
        at, places = (np.concatenate(parts) for parts in zip(*found, strict=True))
        results = np.full(len(column), OUT_OF_VOCABULARY, np.int32)
        results[at] = places + 1
        return pl.Series(column.name, results)

    @cached_property
    def _by_hash(self) -> tuple[np.ndarray, np.ndarray]:
        """The hashes of all values in ascending order, and the places of their values."""
        hashes = self._values.hash().to_numpy()
        places = np.argsort(hashes)
        return hashes[places], places.astype(np.uint32)

    def look_up_list(self, column: pl.Series) -> list[Any]:
        """Return the results for a short column as a list."""
        return list(map(self.results.__getitem__, column.to_list()))

    @cached_property
    def results(self) -> TextResults:
        """The table as a dict."""
        return TextResults(zip(self._values.to_list(), range(1, len(self._values) + 1), strict=True))
