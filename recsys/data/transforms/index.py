"""Look up values in a table: the one place that turns values into ids, counts or means."""

from collections.abc import Iterable
from functools import cached_property
from typing import Any

import polars as pl

from recsys.features import OUT_OF_VOCABULARY

SHORT = 256  # with at most this many rows a dict is faster, because polars hashes the whole table in every call


class TextResults(dict[str | None, Any]):
    """Maps text to results, and text that it lacks to `default`. The key None is a missing value.

    Raises KeyError for a key that is not text, and UnicodeEncodeError for unknown text that is not UTF-8.
    """

    def __init__(self, results: Iterable[tuple[str | None, Any]], default: Any) -> None:
        super().__init__(results)
        self.default = default
        self[None] = self.get("", default)

    def __missing__(self, text: Any) -> Any:
        if type(text) is not str:
            raise KeyError(text)
        if not text.isascii():
            text.encode()
        return self.default


class ValueIndex:
    """Maps `values` (distinct text) to `results`, and all other values to `default`.

    Short columns are looked up in a dict, which is built on first use and takes about 150 bytes a value; long ones are
    looked up by polars. Both give the same results.
    """

    def __init__(self, values: pl.Series, results: pl.Series, default: Any) -> None:
        self._values, self._results, self._default = values, results, default

    @classmethod
    def from_values(cls, values: pl.Series) -> "ValueIndex":
        """Map each value to 1 + its position in `values`, all others to 0."""
        return cls(values, pl.int_range(1, values.len() + 1, dtype=pl.Int32, eager=True), OUT_OF_VOCABULARY)

    @property
    def dtype(self) -> pl.DataType:
        return self._results.dtype

    def look_up(self, column: pl.Series) -> pl.Series:
        """Return the results for a String column, (rows,) -> (rows,). A missing value is the empty text."""
        if len(column) <= SHORT or self._values.is_empty():  # replace_strict rejects an empty table
            return pl.Series(column.name, self.look_up_list(column), dtype=self.dtype)
        return column.fill_null("").replace_strict(
            self._values, self._results, default=self._default, return_dtype=self.dtype
        )

    def look_up_list(self, column: pl.Series) -> list[Any]:
        """Return the results for a short column as a list."""
        results, default = self.results, self._default
        return [results.get(v, default) for v in column.to_list()]

    @cached_property
    def results(self) -> TextResults:
        """The table as a dict."""
        pairs = zip(self._values.to_list(), self._results.to_list(), strict=True)
        return TextResults(pairs, self._default)
