"""Look values up in dicts: ids of vocabularies and hashes, vectors, encodings, and results that polars computed before.

As in fast_numbers.py, unusual values raise KeyError, ValueError or TypeError, and the caller takes the path through
polars.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, zip_longest
from typing import Any

import numpy as np
import polars as pl

from recsys.data.features.arrays import Arrays
from recsys.data.features.encoders import Encoder
from recsys.data.features.resolved_data import ResolvedData
from recsys.data.features.value_index import ValueIndex, buckets_of_crcs
from recsys.online.raw_columns import Cells, RawColumn, text_cleaner
from recsys.online.raw_rows import RowFrames

LIMIT = 1 << 16  # results that a Memo keeps


class Memo(dict[Any, Any]):
    """Keeps the results of a function for at most LIMIT values, whose types are in `kinds`.

    Other values are computed each time: 1, 1.0 and True are one key of a dict, but three values of a column of text.
    """

    def __init__(self, compute: Callable[[Any], Any], kinds: tuple[type, ...]) -> None:
        super().__init__()
        self._compute, self._kinds = compute, kinds

    def __missing__(self, value: object) -> Any:
        result = self._compute(value)
        if type(value) in self._kinds:
            if len(self) >= LIMIT:
                self.clear()
            self[value] = result
        return result


def _text_reader(data: ResolvedData, column: RawColumn) -> Callable[[Any], str | None] | None:
    """Return the function from a raw value to the text that is looked up; None for a type that only polars converts."""
    if column.dtype == pl.String:
        clean = text_cleaner(data.source, column.name)
        if clean is None:
            return column.read

        def cleaned(value: object) -> str | None:
            text = column.read(value)
            return None if text is None else clean(text)

        return cleaned
    if not (column.dtype.is_integer() or column.dtype == pl.Boolean):
        return None

    def text(value: object) -> str | None:
        typed = column.read(value)
        return None if typed is None else str(typed).lower()  # true, as polars writes it

    return text


@dataclass(frozen=True)
class Lookup:
    """A column whose text is looked up in `index` or, without one, hashed.

    column: its place among the cells
    direct: whether text is looked up as it is
    buckets: of a hash
    """

    column: int
    index: ValueIndex | None
    direct: bool
    memo: Memo
    buckets: int = 1

    @classmethod
    def from_column(
        cls, data: ResolvedData, column: RawColumn, place: int, index: ValueIndex | None, encoder: Encoder | None = None
    ) -> Lookup | None:
        """Return the lookup of a column; None if only polars converts its type to text, or looks its text up.

        Args:
            data: the data's config, which says how text is cleaned.
            column: the raw column.
            place: its place among the cells.
            index: the ids of values; None hashes them.
            encoder: of a sparse feature; it says how many buckets a hash has.
        """
        read = _text_reader(data, column)
        if read is None or (index is None and encoder is not None and encoder.buckets_of_crc is None):
            return None
        compute = partial(_crc, read) if index is None else partial(_look_up, read, index)
        kinds = (str, type(None), int) if column.dtype.is_integer() else (str, type(None))
        direct = column.is_exact and text_cleaner(data.source, column.name) is None
        return cls(place, index, direct, Memo(compute, kinds), (encoder and encoder.buckets_of_crc) or 1)

    def results(self, cells: Cells) -> Iterator[int]:
        """Return ids, or CRC-32s if the column is hashed."""
        if self.direct and self.index is not None:
            return map(self.index.results.__getitem__, cells)
        return map(self.memo.__getitem__, cells)


def _look_up(read: Callable[[Any], str | None], index: ValueIndex, value: object) -> int:
    return index.results[read(value)]  # type: ignore[no-any-return]


def _crc(read: Callable[[Any], str | None], value: object) -> int:
    return zlib.crc32((read(value) or "").encode())


def _look_up_all(lookups: Sequence[Lookup], cells: Sequence[Cells], rows: int, dtype: type[np.generic]) -> np.ndarray:
    """Return the results of all lookups: (lookups, rows)."""
    size = len(lookups) * rows
    try:
        found = chain.from_iterable(x.results(cells[x.column]) for x in lookups)
        return np.fromiter(found, dtype, size).reshape(len(lookups), rows)
    except KeyError:  # a value is not text, such as the number 7 in a column of text
        found = chain.from_iterable(map(x.memo.__getitem__, cells[x.column]) for x in lookups)
        return np.fromiter(found, dtype, size).reshape(len(lookups), rows)


@dataclass
class LookupFeatures:
    """The single-valued features whose text is looked up.

    ids, hashes: features whose results are ids, with their places in `Arrays.ids`
    tables: features whose results are rows of a table, (rows of the table, width) float32, with their places in
        `Arrays.dense`
    """

    ids: list[tuple[int, Lookup]] = field(default_factory=list)
    hashes: list[tuple[int, Lookup]] = field(default_factory=list)
    tables: list[tuple[slice, Lookup, np.ndarray]] = field(default_factory=list)

    def add(self, place: int, lookup: Lookup) -> None:
        """Add a feature of ids. place: its place in `Arrays.ids`"""
        (self.hashes if lookup.index is None else self.ids).append((place, lookup))

    def write(self, cells: Sequence[Cells], arrays: Arrays) -> None:
        """Write all features."""
        if self.ids:
            targets, lookups = zip(*self.ids, strict=True)
            arrays.ids[:, targets] = _look_up_all(lookups, cells, arrays.rows, np.int32).T
        if self.hashes:
            targets, lookups = zip(*self.hashes, strict=True)
            crcs = _look_up_all(lookups, cells, arrays.rows, np.uint64)
            buckets = np.array([[x.buckets] for x in lookups], np.uint64)
            arrays.ids[:, targets] = buckets_of_crcs(crcs, buckets).T
        for place, lookup, table in self.tables:
            arrays.dense[:, place] = table[_look_up_all([lookup], cells, arrays.rows, np.int32)[0]]


class PolarsMemo:
    """The features made of one text column each that polars computes: lists of ids, and parts of times.

    Their results are kept by the column's text. One call to polars computes those that all rows of a call lack.
    """

    def __init__(self, frames: RowFrames, features: dict[str, list[str]], places: dict[str, int]) -> None:
        """features: the features of each raw column; places: the places of the raw columns among the cells."""
        self._frames, self._features, self._places = frames, features, places
        self._columns = {c.name: c for c in frames.columns}
        self._memos: dict[str, dict[Any, tuple[Any, ...]]] = {name: {} for name in features}

    def write(self, cells: Sequence[Cells], arrays: Arrays, dense: dict[str, slice]) -> None:
        """Write all features. dense: the places of dense features in `Arrays.dense`"""
        texts = {}
        for name, place in self._places.items():
            texts[name] = cells[place]
            if not set(map(type, cells[place])) <= {str, type(None)}:
                read = self._columns[name].read
                texts[name] = [c if type(c) is str else read(c) for c in cells[place]]
        memos = self._filled(texts)
        for name, features in self._features.items():
            results = list(map(memos[name].__getitem__, texts[name]))
            for i, feature in enumerate(features):
                values = [r[i] for r in results]
                if feature in dense:
                    arrays.dense[:, dense[feature].start] = values
                    continue
                arrays.values[feature] = np.fromiter(chain.from_iterable(values), np.int32)
                arrays.lengths[feature] = np.fromiter(map(len, values), np.int32, len(values))

    def _filled(self, texts: dict[str, Cells]) -> dict[str, dict[Any, tuple[Any, ...]]]:
        """Return the memos, which hold the results of these texts."""
        memos = dict(self._memos)  # another thread may replace one
        missing = {name: list(set(cells) - memos[name].keys()) for name, cells in texts.items()}
        if not any(missing.values()):
            return memos
        rows = zip_longest(*missing.values())
        keys = [self._columns[name].keys[0] for name in missing]
        frame = self._frames.frame([dict(zip(keys, row, strict=True)) for row in rows])
        for name, values in missing.items():
            if len(memos[name]) > LIMIT:
                self._memos[name] = memos[name] = {}
                return self._filled(texts)
            results = zip(*(frame[f].head(len(values)).to_list() for f in self._features[name]), strict=True)
            memos[name].update(zip(values, results, strict=True))
        return memos
