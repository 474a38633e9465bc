"""What a table says of each value: the one place that turns values into ids, counts or means."""

from functools import cached_property
from typing import Any

import polars as pl

from recsys.features import OUT_OF_VOCABULARY

SHORT = 256  # rows up to which a dict is quicker: polars hashes the whole table at every call


class Index:
    """`values` (distinct text) with what each of them stands for, and the `default` of all others.

    Short columns are looked up in a dict, which is made at the first of them and takes some 150 bytes a value; long
    ones by polars. Both give the same.
    """

    def __init__(self, values: pl.Series, results: pl.Series, default: Any) -> None:
        self._values, self._results, self._default = values, results, default

    @classmethod
    def rows_of(cls, values: pl.Series) -> "Index":
        """1 + the place in `values`; 0 of all others."""
        return cls(values, pl.int_range(1, values.len() + 1, dtype=pl.Int32, eager=True), OUT_OF_VOCABULARY)

    @property
    def dtype(self) -> pl.DataType:
        return self._results.dtype

    def of(self, column: pl.Series) -> pl.Series:
        """(rows,) what the values of a String column stand for; a missing value is the empty text."""
        if len(column) <= SHORT or self._values.is_empty():  # which replace_strict refuses
            return pl.Series(column.name, self.listed(column), dtype=self.dtype)
        return column.fill_null("").replace_strict(
            self._values, self._results, default=self._default, return_dtype=self.dtype
        )

    def listed(self, column: pl.Series) -> list[Any]:
        """`of` a short column, as Python's values."""
        found, default = self._found, self._default
        return [found.get(v, default) for v in column.to_list()]

    def expr(self, values: pl.Expr) -> pl.Expr:
        """`of`, as an expression."""
        return values.map_batches(self.of, return_dtype=self.dtype, is_elementwise=True)

    @cached_property
    def _found(self) -> dict[str | None, Any]:
        found: dict[str | None, Any] = dict(zip(self._values.to_list(), self._results.to_list(), strict=True))
        found[None] = found.get("", self._default)
        return found
