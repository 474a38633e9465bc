"""Remove the spaces around text, and turn text that stands for missing values into nulls."""

import polars as pl

from recsys.data.features.blocks import BLANK, LINE
from recsys.schema.source_schema import TextConfig


def clean(source: TextConfig, frame: pl.DataFrame) -> pl.DataFrame:
    """Return the rows with the spaces around text removed if the config asks for it, and with missing values as null.

    Both readers of text and callers with rows in memory use this. Other columns than text are unchanged.
    """
    if not (source.strip or source.null_values or source.column_null_values):
        return frame
    changed = []
    for name, dtype in frame.schema.items():
        if dtype != pl.String or name == LINE:
            continue
        value, bare = pl.col(name), pl.col(name).str.strip_chars(BLANK)
        if source.strip:
            value = pl.when(bare != "").then(bare)
        if missing := sorted(null_texts(source, name)):
            value = pl.when(~bare.is_in(missing)).then(value)
        changed.append(value.alias(name))
    return frame.with_columns(changed)


def null_texts(source: TextConfig, column: str) -> frozenset[str]:
    """Return the text that stands for a missing value in a column of text."""
    return frozenset(source.null_values) | frozenset(source.column_null_values.get(column, []))
