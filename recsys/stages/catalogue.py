"""The items that the stages of a pipeline speak of: a number for each, its name, its columns and its vectors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import polars as pl

from recsys.base.errors import UserError, did_you_mean
from recsys.data.features.arrays import places_of_ranges
from recsys.data.features.value_index import ValueIndex

ABSENT = -1


@dataclass(frozen=True)
class Categories:
    """The values of a column that may hold several: the categories of item i are values[starts[i]:starts[i + 1]]."""

    names: pl.Series
    values: np.ndarray
    starts: np.ndarray

    def shares(self, items: np.ndarray) -> np.ndarray:
        """Return each item's share of each category, (n,) -> (n, C) float64; zeros for an item without one."""
        lengths = self.starts[items + 1] - self.starts[items]
        rows = np.repeat(np.arange(len(items)), lengths)
        places = places_of_ranges(self.starts[items], lengths)
        found = np.zeros((len(items), len(self.names)))
        np.add.at(found, (rows, self.values[places]), 1 / lengths[rows])
        return found


@dataclass(frozen=True)
class Catalogue:
    """n items, numbered from 0.

    names: (n,) String, distinct
    columns: n rows; an item that the table of items lacks has nulls
    embeddings: the vectors (n, d) of the models that have some, by the name of their source
    """

    names: pl.Series
    columns: pl.DataFrame
    embeddings: dict[str, np.ndarray] = field(default_factory=dict)
    _categories: dict[tuple[str, str | None], Categories] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def _index(self) -> ValueIndex:
        return ValueIndex(self.names)

    def numbers(self, names: pl.Series | Sequence[str]) -> np.ndarray:
        """Return the number of each item (P,) int64, -1 for a name that is not an item."""
        series = names if isinstance(names, pl.Series) else pl.Series(names, dtype=pl.String)
        return self._index.look_up(series.cast(pl.String)).to_numpy().astype(np.int64) - 1

    def column(self, name: str, where: str) -> pl.Series:
        """Return a column of the items (n,). where: the key that names it. Raises UserError for an unknown column."""
        if name not in self.columns.columns:
            hint = did_you_mean(name, self.columns.columns)
            raise UserError(f"{where}: the table of items has no column {name}{hint}")
        return self.columns[name]

    def categories(self, name: str, separator: str | None, where: str) -> Categories:
        """Return the categories of a column. separator: divides text into several; null: each value is one"""
        key = (name, separator)
        if key not in self._categories:
            values = self.column(name, where)
            if not isinstance(values.dtype, pl.List):
                text = values.cast(pl.String)
                values = text.str.split(separator) if separator else text.reshape((-1, 1)).arr.to_list()
            lists = values.cast(pl.List(pl.String)).list.drop_nulls().fill_null([])
            flat = lists.explode(empty_as_null=False, keep_nulls=False)
            names = flat.unique(maintain_order=True)
            codes = ValueIndex(names).look_up(flat).to_numpy().astype(np.int64) - 1
            starts = np.concatenate([[0], np.cumsum(lists.list.len().to_numpy())]).astype(np.int64)
            self._categories[key] = Categories(names, codes, starts)
        return self._categories[key]

    def vectors(self, source: str, where: str) -> np.ndarray:
        """Return the vectors (n, d) of a source's model, of length 1 or 0. Raises UserError if it has none."""
        if source not in self.embeddings:
            known = ", ".join(self.embeddings) or "no source has any"
            raise UserError(f"{where}={source}: is not a source whose model has item vectors ({known})")
        return self.embeddings[source]


def unit(vectors: np.ndarray) -> np.ndarray:
    """Return the vectors (n, d) with length 1; vectors of zeros stay as they are."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    scaled: np.ndarray = vectors / np.where(lengths > 0, lengths, 1)
    return scaled
