"""Text of typed rows as codes, so that what is known of a value is looked up once, not in every row it stands in."""

import uuid
from collections.abc import Iterable

import polars as pl


class TextCoder:
    """Codes of the values of some rows, by typed column: from 0, in the order in which they came.

    Safe to use from several threads; their order then is not one that can be relied on.
    """

    def __init__(self, columns: Iterable[str]) -> None:
        space = uuid.uuid4().hex
        self._kinds = {c: pl.Categorical(pl.Categories(c, namespace=space)) for c in columns}
        # polars forgets the values of a kind that no series is of
        self._alive = [pl.Series([""], dtype=kind) for kind in self._kinds.values()]
        self._sizes: dict[str, list[int]] = {c: [0] for c in self._kinds}

    def encode(self, frame: pl.DataFrame) -> pl.DataFrame:
        """With UInt32 (or lists of it) for text: a missing value is the empty text, a missing list an empty one."""
        columns = []
        for name, kind in self._kinds.items():
            x = pl.col(name)
            if frame.schema[name] == pl.List:
                columns.append(x.fill_null([]).cast(pl.List(kind)).to_physical())
            else:
                columns.append(x.fill_null("").cast(kind).to_physical())
        coded = frame.with_columns(columns)
        for name, sizes in self._sizes.items():
            codes = coded[name]
            last = codes.list.max().max() if codes.dtype == pl.List else codes.max()
            sizes.append(0 if last is None else int(last) + 1)  # type: ignore[arg-type]
        return coded

    def values(self) -> dict[str, pl.Series]:
        """By column, the text of each code."""
        return {
            name: pl.int_range(max(sizes), dtype=pl.UInt32, eager=True).cat.to(self._kinds[name]).cast(pl.String)
            for name, sizes in self._sizes.items()
        }
