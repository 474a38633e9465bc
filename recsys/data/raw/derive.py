"""Clean text, add joined and derived columns, and list the raw columns that a config's features read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from recsys.base.errors import UserError, did_you_mean
from recsys.data.features.blocks import BLANK, CONDITION, LINE, one_line
from recsys.data.features.resolved_data import ResolvedData
from recsys.data.features.value_types import as_value
from recsys.data.raw.row_sql import FAILURES, parse_sql
from recsys.interface.features import FeatureSpec
from recsys.schema.source_schema import JoinConfig, TextConfig


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


def steps(joins: Sequence[JoinConfig], derive: Iterable[str]) -> list[int | str]:
    """Return the order of joins (by their index) and derived columns.

    Joins come first, then the derived columns in order. A join whose key is a derived column follows that column at
    once, and so do the joins whose keys it brings.
    """
    after: dict[str, list[int | str]] = {column: [column] for column in derive}
    follows, first = {column: column for column in after}, list[int | str]()
    for i, join in enumerate(joins):
        if (column := follows.get(join.key)) is None:
            first.append(i)
        else:
            after[column].append(i)
            follows |= {name: column for name in join.columns if name != join.key}
    return first + [step for own in after.values() for step in own]


def complete_rows(
    frame: pl.DataFrame,
    sides: Sequence[tuple[JoinConfig, pl.DataFrame]],
    derive: Mapping[str, str],
    where: str | None = None,
) -> pl.DataFrame:
    """Join the side tables and add the derived columns (see `steps`), then keep the rows for which `where` is true.

    Args:
        sides: each side table, and how it is joined.
        derive: the SQL expression of each derived column, by name.
    """
    for step in steps([join for join, _ in sides], derive):
        if isinstance(step, str):
            frame = add_derived_column(step, derive[step], frame)
        else:
            frame = join_side_table(frame, *sides[step])
    return frame if where is None else filter_rows(where, frame)


def join_side_table(frame: pl.DataFrame, join: JoinConfig, side: pl.DataFrame) -> pl.DataFrame:
    """Add the side table's columns, null in rows whose key it lacks."""
    if frame.schema[join.key] == side.schema[join.key]:
        return frame.join(side, on=join.key, how="left", maintain_order="left")
    ours, theirs = frame.schema, side.schema
    left = key_text(ours, join.key, theirs[join.key]).alias("__key__")
    side = side.select(key_text(theirs, join.key, ours[join.key]).alias("__key__"), pl.exclude(join.key))
    return frame.with_columns(left).join(side, on="__key__", how="left", maintain_order="left").drop("__key__")


def key_text(schema: pl.Schema, column: str, other: pl.DataType) -> pl.Expr:
    """Return the keys of a join whose sides have different types as text: 7, 7.0 and "7.0"; true and "True".

    other: the type of the other side
    """
    text = as_value(schema, column)
    if schema[column] != pl.String:
        return text
    return text.str.to_lowercase() if other == pl.Boolean else text.str.replace(r"^(-?[0-9]+)\.0+$", "$1")


def add_derived_column(column: str, sql: str, frame: pl.DataFrame, key: str | None = None) -> pl.DataFrame:
    """Add the column that `sql` computes for each row. key: the config key of `sql`, for messages."""
    key = key or key_of(column)
    expr, reads = parse_sql(sql, key)
    for name in reads:
        if name not in frame.columns:
            columns = [c for c in frame.columns if not c.startswith("__")]
            raise UserError(f"{key}: {sql!r}: there is no column {name}{did_you_mean(name, columns)}")
    try:
        frame = frame.with_columns(expr.alias(column))
    except FAILURES as e:
        hint = "; TRY_CAST returns null for a value that cannot be converted" if "conversion" in str(e) else ""
        if "cannot compare string with numeric" in str(e):
            hint = "; the file's columns are text: write CAST(COLUMN AS DOUBLE), or compare with text, such as '1'"
        if "to date is not supported" in str(e) or "to datetime" in str(e):
            hint = "; write DATE(COLUMN) or TIMESTAMP(COLUMN)"
        raise UserError(f"{key}: {sql!r}: {one_line(e)}{hint}") from e
    if column.startswith(CONDITION) and (dtype := frame.schema[column]) != pl.Boolean:
        raise UserError(f"{key}: {sql!r}: is {dtype}, not a condition; write one such as rating >= 4")
    return frame


def key_of(column: str) -> str:
    """Return the config key of the SQL of a derived column."""
    return column.removeprefix(CONDITION) if column.startswith(CONDITION) else f"data.derive.{column}"


def filter_rows(sql: str, frame: pl.DataFrame) -> pl.DataFrame:
    """Return the rows for which `sql` is true."""
    return frame.filter(is_true(sql, frame, "data.where"))


def is_true(sql: str, frame: pl.DataFrame, key: str) -> pl.Series:
    """Return whether `sql` is true for each row, (rows,) Boolean. key: the config key of `sql`, for messages"""
    return add_derived_column(CONDITION, sql, frame, key)[CONDITION]


@dataclass(frozen=True)
class FeatureInputs:
    """The columns that features read, traced back to the raw files. Columns that only the label needs are left out.

    Histories that items are recommended to are filtered by data.where, so the columns that it reads belong to them.

    raw: columns of the files, as the YAML names them
    sides: for each join that is needed, its index in data.source.joins and the columns of its side table
    derive: the derived columns that are needed, with their SQL
    """

    raw: set[str]
    sides: dict[int, list[str]]
    derive: dict[str, str]

    @classmethod
    def from_config(cls, data: ResolvedData) -> FeatureInputs:
        columns = {column for _, column in data.raw_columns} | {*data.conditions}
        if data.group is not None:
            columns |= {data.group.by, *filter(None, [data.group.order])}
        if data.where is not None and data.item_feature is not None:
            columns |= set(parse_sql(data.where, "data.where")[1])
        return cls.of_columns(data, columns)

    @classmethod
    def of_columns(cls, data: ResolvedData, columns: set[str]) -> FeatureInputs:
        """Return what these columns, of the files, joined or derived, are made of."""
        derive: dict[str, str] = {}
        sides: dict[int, list[str]] = {}
        for step in reversed(steps(data.source.joins, data.derive)):
            if isinstance(step, str):
                if step in columns:
                    derive = {step: data.derive[step]} | derive
                    columns = columns - {step} | set(parse_sql(data.derive[step], key_of(step))[1])
                continue
            join = data.source.joins[step]
            if names := [c for c in join.columns if c in columns and c != join.key]:
                sides[step] = names
                columns = columns - set(names) | {join.key}
        return cls(columns, sides, derive)


def features_by_column(data: ResolvedData, features: FeatureSpec) -> dict[str, tuple[str, ...]]:
    """Return the features that are made of each raw column, also by way of a join or of data.derive."""
    reads: dict[str, tuple[str, ...]] = {n: (c.column,) for n, c in data.dense_columns.items()}
    reads |= {n: c.source.columns for n, c in data.sparse_columns.items()}
    found: dict[str, dict[str, None]] = {}
    for name in (*(f.name for f in features.dense), *(f.name for f in features.sparse)):
        for own in reads[name]:
            inputs = FeatureInputs.of_columns(data, {own})
            for column in (*(c for side in inputs.sides.values() for c in side), *sorted(inputs.raw)):
                found.setdefault(column, {})[name] = None
    return {column: tuple(names) for column, names in found.items()}
