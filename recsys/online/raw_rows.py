"""Compute features from raw rows in memory: rename, join, derive, parse, add group features, transform.

`RowTransforms` (rows as dicts), `Predictor` and `Recommender` (data frames) use this; data preparation runs the same
steps chunk by chunk.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl

from recsys.base.console import say, say_once
from recsys.base.errors import UserError, did_you_mean
from recsys.data.features import Fitted, parse_rows
from recsys.data.features.blocks import GROUP, LINE, ORDER, BadRow, Block, one_line
from recsys.data.features.fitted import RAW_SCHEMA
from recsys.data.features.group_features import add_group_features
from recsys.data.features.parse import RowParser
from recsys.data.features.plain_values import texts_of
from recsys.data.features.raw_types import RawText, RawTime, UntypedText
from recsys.data.features.value_index import ValueIndex
from recsys.data.features.value_types import Text, Time, Vector
from recsys.data.raw.derive import (
    FeatureInputs,
    add_derived_column,
    clean,
    filter_rows,
    is_true,
    join_side_table,
    key_text,
    steps,
)
from recsys.data.raw.raw_schema import RawSchema
from recsys.data.raw.row_sql import parse_sql
from recsys.files import manifest
from recsys.online.queries import lacks_item, with_users_alone, without_item
from recsys.online.raw_columns import Row, column_of, raw_type
from recsys.online.row_error import RowError
from recsys.schema.source_schema import JoinConfig

# column -> its values, and a mask of the rows that have a value of their own
Given = Mapping[str, tuple[pl.Series, pl.Series]]


@dataclass(frozen=True)
class SideTable:
    """A joined table with the columns that features need, and an index from key to row.

    key: the type of the key in the rows that it is joined to, for which the index is made
    """

    join: JoinConfig
    table: pl.DataFrame
    rows: ValueIndex
    key: pl.DataType

    @classmethod
    def from_table(cls, join: JoinConfig, table: pl.DataFrame, key: pl.DataType | None) -> SideTable:
        """Index a table by join.key. key: the type of the key in the rows; None if it is not known"""
        key = key or table.schema[join.key]
        keys = table.select(key_text(table.schema, join.key, key)).to_series()
        return cls(join, table, ValueIndex(keys), key)

    def joined(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Join the table to `frame`, using only the rows that `frame` needs: a join hashes its whole right side."""
        table, name = self.table, self.join.key
        # equal floats may have different text, so they cannot be looked up by text
        if frame.schema[name] == self.key and not (self.key.is_float() or table.schema[name].is_float()):
            keys = frame.select(key_text(frame.schema, name, table.schema[name])).to_series()
            places = (self.rows.look_up(keys) - 1).to_list()
            table = table[sorted({place for place in places if place >= 0})]
        return join_side_table(frame, self.join, table)


class RawRows:
    """Turns raw rows into features with fitted transforms. An instance holds no state, so threads may share it.

    Args:
        fitted: the fitted transforms.
        raw: the types of the raw columns, and the side tables.
        indexed: the same side tables with at least the same columns, if they are indexed already.
    """

    def __init__(self, fitted: Fitted, raw: RawSchema, indexed: Mapping[int, SideTable] | None = None) -> None:
        self.fitted, self.raw, data = fitted, raw, fitted.data
        needs = FeatureInputs.from_config(data)
        self.derive = needs.derive
        own = raw.columns.select(sorted(needs.raw)).schema
        self.meanings = {name: raw_type(fitted, name, dtype) for name, dtype in own.items()}
        sql = self._read_by_sql(needs)
        self.meanings |= {
            n: replace(t, read_by_sql=True) for n, t in self.meanings.items() if n in sql and isinstance(t, RawTime)
        }
        self.types = pl.Schema({name: t.dtype for name, t in self.meanings.items()})
        self.sides: dict[int, tuple[SideTable, list[str]]] = {}
        for i, names in sorted(needs.sides.items()):
            join, table = data.source.joins[i], raw.sides[i]
            side_table = table.select(join.key, *names)
            side = replace(indexed[i], table=side_table) if indexed is not None else None
            side = side or SideTable.from_table(join, side_table, self.types.get(join.key))
            self.sides[i] = side, names
        self.joined = {n: raw_type(fitted, n, s.table.schema[n]) for s, names in self.sides.values() for n in names}
        self._numbers = self._only_numbers(sql)
        self._steps = [s for s in steps(data.source.joins, data.derive) if s in self.sides or s in self.derive]
        no_rows = pl.DataFrame(schema={LINE: pl.Int64, **self.types})
        here = {ours: name for name, ours in data.source.rename.items()}
        self._optional = {here.get(n, n) for n in data.source.optional_columns}
        # by which features choose earlier rows (`where`), which must have them
        self.chosen_by = FeatureInputs.of_columns(data, {*data.conditions}).raw - self._optional
        self._parser = RowParser(data, self.complete(no_rows), labelled=False)

    @classmethod
    def load(cls, folder: Path) -> RawRows:
        """Load from a folder of prepared data, a run's folder, or a folder that `save` wrote.

        Raises UserError for any other folder.
        """
        if not (folder / RAW_SCHEMA).is_file():
            hint = "name a folder of prepared data, a run's folder, or a folder that Pipeline.save wrote"
            raise UserError(f"{folder}: has no {RAW_SCHEMA}; {hint}")
        with manifest.from_elsewhere(folder):
            fitted = Fitted.load(folder)
            return cls(fitted, RawSchema.load(folder, fitted.data))

    def save(self, folder: Path) -> None:
        """Write all that `load` needs into one folder, which may be copied anywhere."""
        self.fitted.save(folder)
        self.raw.save(folder)

    def restricted(self, dense: Container[str], sparse: Container[str], *, grouped: bool = True) -> RawRows:
        """Return `RawRows` of some of the features; see `Fitted.restricted`."""
        fitted = self.fitted.restricted(dense, sparse, grouped=grouped)
        return RawRows(fitted, self.raw, {i: side for i, (side, _) in self.sides.items()})

    def complete(self, frame: pl.DataFrame, given: Given | None = None) -> pl.DataFrame:
        """Add joined and derived columns to raw rows whose columns have the names of the YAML.

        given: values of joined columns that some rows already have; they replace the side table's values in these rows
        """
        frame = clean(self.fitted.data.source, frame)
        for step in self._steps:
            if isinstance(step, str):
                frame = add_derived_column(step, self.derive[step], frame)
                continue
            side, names = self.sides[step]
            frame = side.joined(frame)
            for name in names:
                if given is not None and name in given:
                    values, present = given[name]
                    values = clean(side.join, values.alias(name).to_frame())[name]
                    frame = frame.with_columns(pl.when(present).then(values).otherwise(pl.col(name)).alias(name))
        return frame

    def _read_by_sql(self, needs: FeatureInputs) -> set[str]:
        where = self.fitted.data.where
        expressions = [*needs.derive.values(), *([where] if where else [])]
        return {column for sql in expressions for column in parse_sql(sql, "data.derive")[1]}

    def _only_numbers(self, sql: set[str]) -> set[str]:
        """Return the columns of text that features alone read, as numbers: numbers need not become text for them."""
        data, reads = self.fitted.data, self.fitted.data.column_reads
        as_text = sql | {side.join.key for side, _ in self.sides.values()}
        numbers = {n for n, types in reads.items() if not types & {Text, Vector, Time}} - as_text
        numbers -= {*(numbers if data.source.null_values else data.source.column_null_values)}  # may be missing
        return {n for n in numbers if self.types.get(n) == pl.String and (data.group is None or n != data.group.by)}

    def converted(self, frame: pl.DataFrame, where: str) -> tuple[pl.DataFrame, list[BadRow]]:
        """Convert raw columns of any type to the values that the training files would have held.

        Returns the rows, and those with a value that means nothing in its column, such as 'x' among whole numbers.

        Args:
            frame: raw rows with LINE, whose columns have the names of the YAML.
            where: the file, or what else the rows are.

        Raises:
            UserError: a column has a type that cannot be converted.
        """
        bad: dict[int, BadRow] = {}
        new, columns = list[pl.Series](), {x.name: x for x in frame.get_columns()}
        for name, meaning in {**self.joined, **self.meanings}.items():
            if (given := columns.get(name)) is None:
                continue
            exact = given.dtype == meaning.dtype and isinstance(meaning, RawText)
            if exact or (name in self._numbers and given.dtype.is_numeric()):
                continue
            if isinstance(meaning, UntypedText) and given.dtype not in (pl.String, pl.Null):
                say_once(
                    f"{where}: column {name} is {given.dtype}, and text in this older run; train again for its type"
                )
            try:
                values = meaning.convert(given)
            except TypeError as e:
                raise UserError(f"{where}: column {name} {e}") from None
            if isinstance(meaning, RawTime) and meaning.mixes_zones(given):
                say_once(f"{where}: column {name} has times with a zone and times without one, which are read as UTC")
            new.append(values.alias(name))
            for place in meaning.refused(given, values).arg_true().to_list():
                line, shown = frame[LINE][place], str(given[place])
                why = meaning.why(given[place : place + 1])
                bad.setdefault(line, BadRow(where, line, f"{name} {why}", shown, name, why, shown))
        frame = frame.with_columns(new)
        if bad:
            frame = frame.filter(~pl.col(LINE).is_in([*bad]))
        return frame, [*bad.values()]

    def key_of(self, column: str, value: object) -> str:
        """Return a value of a column as parsed rows have it as a key: 7, 7.0 and "7" are one key of whole numbers."""
        if (meaning := self.meanings.get(column)) is not None:
            with suppress(ValueError):
                value = meaning.read(value)
        return str(texts_of(pl.Series([value])).item())

    def complete_file(self, frame: pl.DataFrame, file: Path, bad: list[BadRow]) -> pl.DataFrame:
        """Convert and complete rows of a file, whose format need not be that of the run's files.

        bad: rows that cannot be read are appended to it, and left out
        """
        frame, wrong = self.converted(frame, str(file))
        bad += wrong
        return self.complete(frame)

    def from_frame(self, raw: pl.DataFrame) -> tuple[pl.DataFrame, list[BadRow]]:
        """Return the rows of a data frame with joined and derived columns, and their row numbers in the column LINE.

        The second are the rows that cannot be read, which are left out.

        Columns are named as in the files or as in the YAML; other columns are ignored; joined columns may already be
        present. The values of a column that the frame lacks are missing, which is said once. Raises UserError if the
        frame lacks all columns, the key of a group, its order or the item, or if it has a column with a similar name.
        """
        source = self.fitted.data.source
        names = {ours: theirs for theirs, ours in source.rename.items() if ours in raw.columns and theirs in self.types}
        raw = raw.drop([n for n in names.values() if n in raw.columns and n not in names]).rename(names)
        brought = [n for _, columns in self.sides.values() for n in columns if n in raw.columns]
        present = {*raw.columns, *self._optional}
        missing = [n for n in self.types if n not in present and not self._only_joins(n, brought)]
        data, others = self.fitted.data, [c for c in raw.columns if c not in self.types]
        keys = self.chosen_by | (set() if data.group is None else {data.group.by, data.group.order or data.group.by})
        keys |= {data.sparse_columns[data.item_feature].column} if data.item_feature else set()
        for name in missing:
            near = did_you_mean(name, others)
            if name in keys or "did you mean" in near or len(others) == len(raw.columns):
                raise UserError(f"the data frame has no column {name}{near or did_you_mean(name, raw.columns)}")
        if missing:
            say_once(f"the data frame lacks columns, whose values are missing: {', '.join(missing)}")
        lacking = [pl.lit(None, self.types[n]).alias(n) for n in self.types if n not in raw.columns]
        frame = raw.select(*(n for n in self.types if n in raw.columns), *brought, *lacking).with_row_index(LINE)
        frame, bad = self.converted(frame.cast({LINE: pl.Int64}), "the data frame")
        every = pl.repeat(True, frame.height, eager=True)
        return self.complete(frame.drop(brought), {n: (frame[n], every) for n in brought}), bad

    def _only_joins(self, name: str, brought: list[str]) -> bool:
        """Return whether `name` is needed only as the key of joins whose columns the rows already have."""
        data = self.fitted.data
        needed = {column for _, column in data.raw_columns}
        needed |= set() if data.group is None else {data.group.by, data.group.order or data.group.by}
        joins = [own for side, own in self.sides.values() if side.join.key == name]
        return name not in needed and bool(joins) and all(n in brought for own in joins for n in own)

    def keep_history(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Return the rows for which data.where is true. frame: rows that `complete` returned"""
        where = self.fitted.data.where
        return frame if where is None else filter_rows(where, frame)

    def parse_frame(self, raw: pl.DataFrame, *, past: bool = False) -> tuple[pl.DataFrame, list[BadRow]]:
        """Return the parsed rows of a data frame with their row numbers in the column LINE; see `from_frame`.

        The second are the rows that cannot be read, which are left out; a line says how many there are.

        past: whether to leave out rows for which data.where is not true
        """
        frame, refused = self.from_frame(raw)
        if past:
            if (where := self.fitted.data.where) is not None:  # of a row without an item, it may say nothing
                is_kept = is_true(where, frame, "data.where")
                frame = frame.filter(is_kept.fill_null(frame.select(lacks_item(self.fitted.data, frame)).to_series()))
            frame, alone = with_users_alone(self.fitted.data, frame)
        parsed, bad = parse_rows(self.fitted.data, Block(Path("rows"), frame), labelled=False)
        if past:
            parsed = without_item(self.fitted.data, parsed, alone)
        if bad := sorted(refused + bad, key=lambda b: b.line):
            shown = f"row {bad[0].line}: column {bad[0].column}: {bad[0].value!r} {bad[0].problem}"
            say(f"{len(bad):,} of {raw.height:,} rows of the data frame cannot be read, and are left out; {shown}")
        return parsed, bad

    def parse_known_types(self, frame: pl.DataFrame) -> tuple[pl.DataFrame, list[BadRow]]:
        """Parse rows whose raw columns have the types of `self.types`: faster, for one row at a time."""
        return self._parser(Block(Path("rows"), frame))

    def in_context(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Add the features that depend on earlier rows of the same group (data.group) to parsed rows."""
        return add_group_features(self.fitted.data, rows)


class RowFrames:
    """Transforms rows into a data frame. An instance holds no state between calls, so threads may share it."""

    def __init__(self, rows: RawRows) -> None:
        self.rows, self.fitted, self.features = rows, rows.fitted, rows.fitted.features
        data = self.fitted.data
        self.columns = [column_of(data, name, meaning) for name, meaning in rows.meanings.items()]
        self._schema: dict[str, Any] = {LINE: pl.Int64, **rows.types}
        self._joined = [column_of(data, name, meaning) for name, meaning in rows.joined.items()]

    @property
    def names(self) -> frozenset[str]:
        """The keys of rows that are read: raw columns, and joined ones, named as in the files or the YAML."""
        return frozenset(key for c in (*self.columns, *self._joined) for key in c.keys)

    def frame(self, rows: Row | Sequence[Row], history: Sequence[Row] = ()) -> pl.DataFrame:
        """Return one column for each feature: Float32, Int32 or List(Int32).

        Raises RowError for the first row that cannot be read.
        """
        alone = isinstance(rows, Mapping)
        given: Sequence[Row] = [rows] if alone else rows  # type: ignore[list-item, assignment]
        first = len(history)
        try:
            parsed = self.parsed([*history, *given], alone and not history)
        except RowError as e:
            if not history or e.row is None:
                raise
            earlier_row, row = e.row < first, e.row if e.row < first else e.row - first
            where = None if alone and not earlier_row else row
            raise RowError(e.column, e.value, e.why, where, "history" if earlier_row else "rows") from e
        if self.rows.chosen_by:
            seen = parsed.filter(pl.col(ORDER) < pl.col(ORDER).max().over(GROUP))[LINE].to_list()
            earlier = {f"history[{i}]": row for i, row in enumerate(history)}
            self._check_chosen(earlier | {f"rows[{i - first}]": given[i - first] for i in seen if i >= first})
        return self.fitted.apply(self.rows.in_context(parsed).tail(len(given)))

    def parsed(self, rows: Sequence[Row], alone: bool = False, *, past: bool = False) -> pl.DataFrame:
        """Return parsed rows with their row numbers in the column LINE.

        Args:
            alone: whether to leave the row's number out of errors.
            past: whether to leave out rows for which data.where is not true.

        Raises:
            RowError: for the first row that cannot be read.
        """
        places = [None] if alone else range(len(rows))
        for place, row in zip(places, rows, strict=True):
            if not isinstance(row, Mapping):
                where = "" if place is None else f"rows[{place}]: "
                raise UserError(f"{where}a row is a dict of columns and values, not {type(row).__name__}")
        if past:
            self._check_chosen({f"history[{i}]": row for i, row in enumerate(rows)})
        values = [
            (i, *(c.value(row, p) for c in self.columns)) for i, (p, row) in enumerate(zip(places, rows, strict=True))
        ]
        try:
            frame = pl.DataFrame(values, schema=self._schema, orient="row")
        except (pl.exceptions.PolarsError, TypeError, ValueError, OverflowError) as e:
            raise UserError(f"a value does not have the type of its column: {one_line(e)}") from e
        given = {}
        for c in self._joined:
            present = [any(key in row for key in c.keys) for row in rows]
            if any(present):
                column_values = pl.Series([c.value(row, p) for p, row in zip(places, rows, strict=True)], dtype=c.dtype)
                given[c.name] = (column_values, pl.Series(present, dtype=pl.Boolean))
        raw = self.rows.complete(frame, given)
        parsed, bad = self.rows.parse_known_types(self.rows.keep_history(raw) if past else raw)
        if bad:
            first = bad[0]
            raise RowError(first.column, raw[first.column][first.line], first.problem, None if alone else first.line)
        return parsed

    def _check_chosen(self, earlier: Mapping[str, Row]) -> None:
        """Raise UserError if a row that others look back to lacks a column by which features choose (where)."""
        for c in (c for c in self.columns if c.name in self.rows.chosen_by):
            if lack := next((place for place, row in earlier.items() if not {*c.keys} & {*row}), None):
                raise UserError(f"{lack}: has no column {c.keys[0]}, which `where` of a feature reads")
