"""Find the meaning of columns of text from the values that the training files hold."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

import polars as pl

from recsys.data.features.blocks import HISTORY, TARGETS
from recsys.data.features.raw_types import RawBoolean, RawNumber, RawText, RawTime, RawType, RawWhole
from recsys.data.features.resolved_data import ResolvedData
from recsys.data.features.row_sources import JOINT, Cross, Pattern
from recsys.data.features.value_types import Text

SAMPLE = 10_000  # rows of a chunk in which the type of a column that is no value of a feature is looked for
MIN_TEXTS = 1_000  # values that show that most columns of text are text
Types = Mapping[str, RawType]
ReadValues = Callable[[Collection[str]], Mapping[str, pl.Series]]


def held_type(values: pl.Series, decimal: str = ".", thousands: str = "", *, numbers: bool = False) -> RawType | None:
    """Return the type of distinct values of a column, None if all are missing.

    Args:
        values: (n,) values; numbers and booleans if the file's reader has parsed them.
        decimal, thousands: the marks in the text of numbers.
        numbers: whether features read the column as numbers alone.
    """
    if values.dtype != pl.String:
        has_numbers = values.dtype.is_numeric() and values.null_count() < len(values)
        return RawNumber(pl.String(), decimal) if has_numbers else None
    texts = values.drop_nulls()
    texts = texts.filter(texts != "")
    if texts.is_empty():
        return None
    for some in (texts.head(MIN_TEXTS), texts):
        marked = decimal != "." and numbers  # 1.000 may be a thousand
        found: RawType | None = RawBoolean.held(some) or (None if marked else RawWhole.held(some))
        found = found or (RawNumber.held(some, decimal, thousands) if numbers else None) or RawTime.held(some)
        if found is None:
            return RawText(pl.String())
    return found


def merged(a: RawType | None, b: RawType | None) -> RawType | None:
    """Return the type of a column that has both types in two parts of the data."""
    if a is None or b is None or a == b:
        return b if a is None else a
    match a, b:
        case RawWhole(), RawWhole():
            return replace(a, point=False)
        case RawBoolean(), RawBoolean():
            return replace(a, style="lower")
        case RawTime(), RawTime():
            written = a.written if a.written == b.written else ""
            return replace(a, aware=a.aware or b.aware, written=written)
        case (RawWhole() | RawNumber(), RawNumber()) | (RawNumber(), RawWhole()):
            return a if isinstance(a, RawNumber) else b
    return RawText(pl.String())


def columns_of_values(data: ResolvedData) -> dict[str, list[tuple[str, int | None]]]:
    """Return the columns of parsed rows that hold the values of each raw column as text, and its place in crosses."""
    places: dict[str, list[tuple[str, int | None]]] = {}
    for name in data.text_columns:
        source = data.parsed_columns[name][0]
        if isinstance(source, Pattern):  # its matches are not the column's values
            continue
        for i, column in enumerate(source.columns):
            places.setdefault(column, []).append((name, i if isinstance(source, Cross) else None))
    return places


def find_types(
    data: ResolvedData, chunks: Iterable[ReadValues], samples: Iterable[Mapping[str, Any]]
) -> dict[str, RawType]:
    """Return the types of columns of text, by the columns' names in the YAML.

    Args:
        data: the data config.
        chunks: for each chunk of the rows, a function that reads the distinct values of columns of parsed rows.
        samples: what `sampled_types` returned for each chunk.
    """
    found: dict[str, RawType | None] = {}
    places_of = columns_of_values(data)
    for read in chunks:  # text stays text, so that its values need not be read
        coded = {c: p for c, p in places_of.items() if not isinstance(found.get(c), RawText)}
        values = read({name for places in coded.values() for name, _ in places})
        for column, (name, part) in ((c, place) for c, places in coded.items() for place in places):
            if name in values:
                texts = values[name] if part is None else _part(values[name], part).unique()
                found[column] = merged(found.get(column), held_type(texts))
    sampled: dict[str, RawType | None] = {}
    for sample in samples:
        for column, value in sample.items():
            sampled[column] = merged(sampled.get(column), RawType.from_json(value))
    return {column: t for column, t in (sampled | found).items() if t is not None}


def sampled_types(data: ResolvedData, columns: Iterable[str], frame: pl.DataFrame) -> dict[str, Any]:
    """Return the types, as JSON, of the raw columns that no feature takes values from, in the first rows of a chunk."""
    reads, coded, schema = data.column_reads, columns_of_values(data), frame.schema
    types, marks = {}, (data.source.decimal, data.source.thousands or "")
    for column in columns:
        if column in schema and column not in coded and not schema[column].is_nested():
            values = frame[column].head(SAMPLE).unique()
            numbers = column in reads and Text not in reads[column]
            if (found := held_type(values, *marks, numbers=numbers)) is not None:
                types[column] = found.to_json()
    return types


def canonical_values(data: ResolvedData, types: Types, values: Mapping[str, pl.Series]) -> dict[str, pl.Series]:
    """Return the text of each code, by column of parsed rows, in the one form that each value has."""
    columns = {}
    for name, texts in values.items():
        parsed = data.item_feature or "" if name in (TARGETS, HISTORY) else name
        source = data.parsed_columns[parsed][0]
        own = [types.get(column) for column in source.columns]
        if isinstance(source, Pattern) or not any(isinstance(t, RawWhole | RawBoolean) for t in own):
            columns[name] = texts
        elif isinstance(source, Cross):
            parts = [_part(texts, i) for i in range(len(own))]
            parts = [x if t is None else t.canonical(x) for x, t in zip(parts, own, strict=True)]
            frame = pl.DataFrame([x.alias(str(i)) for i, x in enumerate(parts)])
            joined = frame.select(pl.concat_str(pl.all(), separator=JOINT)).to_series()
            columns[name] = joined.fill_null(texts).alias(texts.name)  # the empty text has no parts
        else:
            columns[name] = texts if own[0] is None else own[0].canonical(texts)
    return columns


def _part(crosses: pl.Series, i: int) -> pl.Series:
    return crosses.str.split(JOINT).list.get(i, null_on_oob=True)
