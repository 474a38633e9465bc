"""Nested values as flat columns that are named by their path, and lists as one row an element (data.source.explode)."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import polars as pl
import polars.selectors as cs

from recsys.base.errors import UserError, did_you_mean
from recsys.data.features.blocks import ELEMENT, LINE, LIST, BadRow, Block
from recsys.data.raw.byte_ranges import FileRange, Projection
from recsys.schema.source_schema import SourceConfig

MAX_ELEMENTS = 1 << 18  # rows of a block, if no single row has more elements
BRACKETS, MARKS = "[](){} \t", " \t'\""  # around a list that is written as text, and around its elements

Leaf = tuple[str, pl.DataType, pl.Expr]


def leaves(name: str, dtype: pl.DataType, x: pl.Expr) -> Iterator[Leaf]:
    """Yield the name, type and expression of each flat column in the nested column `x`.

    A struct gives a column for each field, and a list of structs a column of lists for each field.
    """
    if isinstance(dtype, pl.Struct):
        for field in dtype.fields:
            inner = field.dtype if isinstance(field.dtype, pl.DataType) else field.dtype()
            yield from leaves(f"{name}.{field.name}" if name else field.name, inner, x.struct.field(field.name))
    elif isinstance(dtype, pl.List) and dtype.inner.is_nested():
        element = dtype.inner if isinstance(dtype.inner, pl.DataType) else dtype.inner()
        for path, inner, y in leaves(name, element, pl.element()):
            yield path, pl.List(inner), x.list.eval(y)
    else:
        yield name, dtype, x


def plain(frame: pl.DataFrame, file: Path) -> pl.DataFrame:
    """Return the frame with structs as columns that are named by their path, and categories and bytes as text."""
    if any(dtype.is_nested() for dtype in frame.dtypes):
        own = [leaf for n, dtype in frame.schema.items() for leaf in leaves(n, dtype, pl.col(n))]
        if len({path for path, _, _ in own}) < len(own):
            twice = next(path for i, (path, _, _) in enumerate(own) if path in {p for p, _, _ in own[:i]})
            raise UserError(f"{file}: two columns are named {twice}, one of them within a struct; rename one")
        frame = frame.select(x.alias(path) for path, _, x in own)
    coded = cs.categorical() | cs.enum() | cs.binary()
    try:
        return frame.with_columns(coded.cast(pl.String))
    except pl.exceptions.PolarsError as e:
        names = ", ".join(frame.select(cs.binary()).columns)
        raise UserError(f"{file}: {names}: bytes that are not UTF-8 text") from e


def exploded_paths(source: SourceConfig) -> dict[str, str | None]:
    """Return the columns of data.source.explode, each with the separator of its elements, None if it holds lists."""
    given = source.explode
    if given is None:
        return {}
    if isinstance(given, str):
        return {given: None}
    return dict(given) if isinstance(given, dict) else dict.fromkeys(given)


def _columns_at(path: str, names: Sequence[str]) -> list[str]:
    """Return the column `path`, or the columns of the fields below it."""
    return [n for n in names if n == path or n.startswith(f"{path}.")]


def check_explode(source: SourceConfig, file: Path, frame: pl.DataFrame, optional: Sequence[str]) -> None:
    """Check that the columns to explode exist and hold lists. Raises UserError if not.

    Args:
        frame: its columns and types, before they are exploded.
        optional: columns that the file may lack.
    """
    for path, separator in exploded_paths(source).items():
        names = _columns_at(path, frame.columns)
        if not names and path not in optional:
            near = did_you_mean(path, frame.columns)
            raise UserError(f"data.source.explode: {file.name} has no column {path}{near}")
        for name in names:
            dtype = frame.schema[name]
            if dtype != pl.String if separator is not None else not isinstance(dtype, pl.List | pl.Array):
                why = f'is {dtype}; a list needs no separator (explode: [{path}]), and text needs one ({{{path}: " "}})'
                raise UserError(f"data.source.explode: {file.name}: column {name} {why}")


def explode_types(source: SourceConfig, frame: pl.DataFrame) -> pl.DataFrame:
    """Return a frame without rows that has the columns and types of the exploded rows."""
    for path in exploded_paths(source):
        for name in _columns_at(path, frame.columns):
            dtype = frame.schema[name]
            if isinstance(dtype, pl.List | pl.Array):
                frame = frame.with_columns(pl.lit(None, dtype.inner).alias(name))
    return frame if LIST in frame.columns else frame.with_columns(pl.lit(None, pl.String).alias(LIST))


def with_exploded(source: SourceConfig, projection: Projection, names: Sequence[str]) -> Projection:
    """Return the projection with the columns to explode, at least one for each path, all read as text or lists."""
    if projection.columns is None:
        return Projection()
    wanted = set(projection.columns)
    for path in exploded_paths(source):
        own = _columns_at(path, names)
        if not wanted & set(own) or path in own:
            wanted |= set(own[:1])
    return Projection(frozenset(wanted))


def explode_blocks(
    source: SourceConfig, blocks: Iterator[Block], file_range: FileRange, projection: Projection
) -> Iterator[Block]:
    """Yield blocks with one row for each element, in order, whose LINE is that of the raw row.

    An empty list has no rows. Rows whose lists differ in length are bad rows.

    Args:
        file_range: the part of the file that the blocks are from, whose start makes the names of lists unique.
        projection: the columns to read; LIST, a name for each raw row, is added if it is among them.
    """
    paths = exploded_paths(source)
    for block in blocks:
        schema = block.frame.schema  # polars makes another one at each call
        separators = {n: sep for path, sep in paths.items() for n in _columns_at(path, list(schema))}
        whole = block.frame.with_columns(
            pl.col(n).arr.to_list() if isinstance(schema[n], pl.Array) else pl.col(n) for n in separators
        ).with_columns(_parts(n, sep, alone=len(separators) == 1) for n, sep in separators.items() if sep is not None)
        if LIST not in whole.columns and (projection.columns is None or LIST in projection.columns):
            place = pl.lit(f"{block.file}:{file_range.start}:")
            whole = whole.with_columns(pl.concat_str(place, pl.col(LINE)).alias(LIST))
        whole, bad = _without_unequal(block.file, whole, list(separators))
        bad = sorted([*block.bad, *bad], key=lambda b: b.line)
        first = next(iter(separators))
        lengths = whole.select(_length(first)).to_series().to_numpy().astype(np.int64)
        part = (np.cumsum(lengths) - lengths) // MAX_ELEMENTS
        cuts = [0, *(np.flatnonzero(np.diff(part)) + 1).tolist(), whole.height]  # at least one slice
        for start, stop in pairwise(cuts):
            frame = whole.slice(start, stop - start).filter(_length(first) > 0)
            places = pl.int_ranges(1, _length(first) + 1, dtype=pl.Int64)
            exploded = frame.with_columns(places.alias(ELEMENT)).explode(*separators, ELEMENT)
            yield replace(block, frame=plain(exploded, block.file), bad=bad)
            bad = []


def _parts(name: str, separator: str, *, alone: bool) -> pl.Expr:
    """Return a text as the list of its elements. alone: leave out empty elements; otherwise they become null"""
    bare = pl.col(name).str.strip_chars(BRACKETS)
    parts = bare.str.split(separator).list.eval(pl.element().str.strip_chars(MARKS))
    if alone:
        parts = parts.list.eval(pl.element().filter(pl.element() != ""))
    else:
        parts = parts.list.eval(pl.when(pl.element() != "").then(pl.element()))
    return pl.when(bare != "").then(parts).alias(name)


def _without_unequal(file: Path, frame: pl.DataFrame, names: list[str]) -> tuple[pl.DataFrame, list[BadRow]]:
    """Return the rows whose lists have the same length, and the others as bad rows."""
    first, *others = names
    unequal = pl.any_horizontal(pl.lit(value=False), *(_length(name) != _length(first) for name in others))
    wrong = frame.select(unequal).to_series()
    if not wrong.any():
        return frame, []
    bad = []
    for row in frame.filter(wrong).iter_rows(named=True):
        lengths = {n: len(row[n] or ()) for n in names}
        other = next(n for n in others if lengths[n] != lengths[first])
        why = f"data.source.explode: {first} and {other} differ in their number of elements"
        text = f"{first}: {lengths[first]}, {other}: {lengths[other]}"
        bad.append(BadRow(str(file), row[LINE], why, text))
    return frame.filter(~wrong), bad


def _length(name: str) -> pl.Expr:
    return pl.col(name).list.len().fill_null(0)
