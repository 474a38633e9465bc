"""Parse numbers bit for bit as polars does, and transform them for all features at once.

This is for the values that services usually pass: numbers, plain text such as "3" and "1.5e3", and missing values. For
others the functions raise ValueError, TypeError or OverflowError; the caller then takes the path through polars, which
reads them or says what is wrong.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
import polars as pl

from recsys.base.ranges import FLOAT32_MAX
from recsys.data.features import steps
from recsys.data.features.arrays import Arrays
from recsys.data.features.blocks import BLANK
from recsys.data.features.dense_columns import DenseColumn
from recsys.data.features.encoders import IdsOfNumbers
from recsys.data.features.steps import Columns, FillMean, Params, Transform, stacked
from recsys.data.raw.derive import null_texts
from recsys.online.raw_columns import Cells
from recsys.schema.source_schema import SourceConfig

PLAIN = b"0123456789+-.eE"  # Python and polars read text of these characters as the same numbers
MISSING = ("", "nan")  # text that counts as a missing number
EXACT = 2**62  # whole numbers beyond it may be out of the range of Int64
Chain = list[tuple[Transform, Params]]
Kinds = tuple[type[Transform], ...]


@dataclass(frozen=True)
class NumberParser:
    """Parses columns of one type to float64, NaN if missing.

    dtype: type of the columns: text, integers or floats
    thousands, decimal: the marks in text
    missing: text that stands for a missing value
    exact: whether text with spaces or marks, and missing text, is unusual
    """

    dtype: pl.DataType
    thousands: str | None
    decimal: str
    missing: frozenset[str] = frozenset()
    exact: bool = False

    @classmethod
    def from_column(cls, source: SourceConfig, name: str, dtype: pl.DataType) -> NumberParser:
        text = dtype == pl.String
        missing = null_texts(source, name) if text else frozenset[str]()
        return cls(dtype, source.thousands, source.decimal, missing)

    def __call__(self, cells: list[Any]) -> np.ndarray:
        """Parse values: (N,) -> (N,). Raises ValueError, TypeError or OverflowError for unusual values."""
        kinds = set(map(type, cells))
        if kinds <= {int, float, type(None)} and not self.missing:
            x = _as_floats(cells)
        elif kinds <= {int, float, str, type(None)}:
            x = self._from_text(cells, kinds)
        else:
            raise TypeError
        if (np.abs(x) > FLOAT32_MAX).any():
            raise OverflowError
        if self.dtype.is_integer():
            bounds = np.iinfo(str(self.dtype).lower())
            low, high = max(bounds.min, -EXACT), min(bounds.max, EXACT)
            if ((x != np.floor(x)) & ~np.isnan(x) | (x < low) | (x > high)).any():
                raise ValueError
            x = x + 0.0  # there is no negative zero among integers
        return x.astype(np.float32).astype(np.float64) if self.dtype == pl.Float32 else x

    def _from_text(self, cells: list[Any], kinds: set[type]) -> np.ndarray:
        if kinds <= {str, type(None)} and not self.missing:
            with suppress(ValueError):
                return _text_as_floats(cells)
        own = self.decimal  # as RawNumber writes numbers
        texts = [x if x is None or type(x) is str else repr(x).removesuffix(".0").replace(".", own) for x in cells]
        return _text_as_floats([None if x is None else self._plain(x) for x in texts])

    def _plain(self, text: str) -> str | None:
        """Return the text of a number without spaces and marks, None if it is missing."""
        if self.exact:
            if text in self.missing:
                raise ValueError
            return text
        text = text.strip(BLANK) if self.dtype == pl.String else text
        if text in self.missing or text.lower() in MISSING:
            return None
        if self.dtype == pl.String and self.thousands is not None:
            text = text.replace(self.thousands, "")
        if not text:
            raise ValueError
        return text.replace(self.decimal, ".", 1) if self.dtype == pl.String else text


def _as_floats(cells: list[Any]) -> np.ndarray:
    """Convert numbers, NaN for None."""
    if len(cells) > steps.POLARS_FROM:
        return pl.Series(cells, dtype=pl.Float64).to_numpy()
    return np.array(cells, np.float64)


def _text_as_floats(cells: list[str | None]) -> np.ndarray:
    """Parse plain text, NaN for None and the empty text. Raises ValueError for other text."""
    if len(cells) <= steps.POLARS_FROM:
        text = "".join(filter(None, cells))
        if not text.isascii() or text.encode().translate(None, PLAIN):
            raise ValueError
        return np.array([float(c) if c else math.nan for c in cells], np.float64)
    x = pl.Series(cells, dtype=pl.String).cast(pl.Float64, strict=False)
    if x.null_count() != cells.count(None) + cells.count("") or x.is_nan().any():
        raise ValueError
    return x.to_numpy()


class NumberFeatures:
    """The features that are made of one column of numbers each.

    Features with the same transforms are computed together, as one matrix: most time of a call for one row is numpy's
    overhead per operation.
    """

    def __init__(self) -> None:
        self._rows: dict[NumberParser, dict[int, int]] = {}  # parser -> column -> row of its matrix of numbers
        self._dense: dict[tuple[NumberParser, Kinds], list[tuple[int, int, Chain]]] = defaultdict(list)
        self._ids: list[tuple[NumberParser, int, int, IdsOfNumbers]] = []

    def add_dense(self, parser: NumberParser, column: int, target: int, steps: Chain) -> None:
        """Add a feature.

        Args:
            parser: reads numbers from the column's cells.
            column: place of its column among the cells.
            target: place of its numbers in `Arrays.dense`.
            steps: its transforms, in order.
        """
        kinds = tuple(type(step) for step, _ in steps)
        self._dense[parser, kinds].append((self._row(parser, column), target, steps))

    def add_ids(self, parser: NumberParser, column: int, target: int, ids: IdsOfNumbers) -> None:
        """Add a feature: the place of its column among the cells, and that of its ids in `Arrays.ids`."""
        self._ids.append((parser, self._row(parser, column), target, ids))

    def _row(self, parser: NumberParser, column: int) -> int:
        rows = self._rows.setdefault(parser, {})
        return rows.setdefault(column, len(rows))

    @cached_property
    def _groups(self) -> list[_Group]:
        return [_Group.from_features(parser, kinds, features) for (parser, kinds), features in self._dense.items()]

    def write(self, cells: Sequence[Cells], arrays: Arrays) -> None:
        """Write all features. Raises ValueError, TypeError or OverflowError for unusual values."""
        numbers = {
            parser: parser(list(chain.from_iterable(cells[c] for c in rows))).reshape(len(rows), arrays.rows)
            for parser, rows in self._rows.items()
        }
        with np.errstate(over="ignore"):
            for group in self._groups:
                arrays.dense[:, group.targets] = group(numbers[group.parser]).T
        for parser, row, target, ids in self._ids:
            arrays.ids[:, target] = ids(numbers[parser][row])


@dataclass(frozen=True)
class _Group:
    """Dense features with the same transforms."""

    parser: NumberParser
    rows: np.ndarray
    targets: np.ndarray
    steps: Sequence[tuple[type[Transform], Columns]]

    @classmethod
    def from_features(cls, parser: NumberParser, kinds: Kinds, features: list[tuple[int, int, Chain]]) -> _Group:
        rows, targets = (np.array([f[i] for f in features]) for i in (0, 1))
        steps = []
        for i, kind in enumerate(kinds):
            numbers = [step.numbers(p) for step, p in (f[2][i] for f in features)]
            steps.append((kind, stacked(numbers)))
        return cls(parser, rows, targets, steps)

    def __call__(self, numbers: np.ndarray) -> np.ndarray:
        """Transform the numbers of all columns: (columns, rows) -> (features, rows)."""
        x = numbers[self.rows]
        for kind, columns in self.steps:
            x = kind.apply_array(x, columns)
        return x


def chain_of(c: DenseColumn, params: list[Params]) -> Chain:
    """Return all steps of a dense feature, the filling of missing values among them."""
    fill: Chain = [] if c.fill is None else [(FillMean(), {"value": c.fill})]
    return fill + list(zip(c.steps, params, strict=False))


def is_fast(steps: Chain) -> bool:
    """Return whether all steps transform numbers, so that they need no expression."""
    return all(type(step).apply_array is not Transform.apply_array for step, _ in steps)
