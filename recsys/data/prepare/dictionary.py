"""Encode the text of parsed rows as integer codes, so that each value is looked up once, not in every row."""

import uuid
from collections.abc import Iterable

import polars as pl


class TextCoder:
    """Assigns codes to the values of each column: 0, 1, ... in the order of first appearance.

    It is thread-safe, but with several threads the order of the codes is arbitrary.
    """

    def __init__(self, columns: Iterable[str]) -> None:
        space = uuid.uuid4().hex
        self._kinds = {c: pl.Categorical(pl.Categories(c, namespace=space)) for c in columns}
        # polars drops the values of a category type that no series uses; the code of "" is 0
        self._alive = [pl.Series([""], dtype=kind) for kind in self._kinds.values()]
        self._sizes: dict[str, list[int]] = {c: [0] for c in self._kinds}

    def encode(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Replace text by UInt32 codes, and lists of text by lists of codes. Missing values and lists become empty."""
        columns, schema = [], frame.schema
        for name, kind in self._kinds.items():
            x = pl.col(name)
            if schema[name] == pl.List:
                columns.append(x.fill_null([]).cast(pl.List(kind)).to_physical())
            else:
                columns.append(x.cast(kind).to_physical().fill_null(0))
        coded = frame.with_columns(columns)
        for name, sizes in self._sizes.items():
            codes = coded[name]
            last = codes.list.max().max() if codes.dtype == pl.List else codes.max()
            sizes.append(0 if last is None else int(last) + 1)  # type: ignore[arg-type]
        return coded

    def values(self) -> dict[str, pl.Series]:
        """Return the text of each code, by column."""
        return {
            name: pl.int_range(max(sizes), dtype=pl.UInt32, eager=True).cat.to(self._kinds[name]).cast(pl.String)
            for name, sizes in self._sizes.items()
        }
