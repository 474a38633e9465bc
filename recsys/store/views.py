"""Feature views: the features of one kind of entity, by one definition for the online store and training sets."""

from __future__ import annotations

import hashlib
import json
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import polars as pl

from recsys.base.console import say
from recsys.base.durations import is_number
from recsys.base.errors import UserError, did_you_mean
from recsys.files.data_files import named_by
from recsys.files.text_values import as_text
from recsys.files.user_files import copies_of, problem_of
from recsys.store import fitting
from recsys.store.aggregates import (
    EVENTS,
    KEY,
    TICK,
    Aggregate,
    at_times,
    common_time,
    ticks,
    ticks_per_second,
)

TIME, PLACE = "__time__", "__place__"
FORMAT = 4  # of the events in a store; events of another format are read again from the files


@dataclass(frozen=True)
class View:
    """The features of one kind of entity.

    name: its name in the definition
    files: globs of Parquet files with a row for each change or event
    key: the column that names the entity
    time: the column that sorts its rows: a time, a date or a number
    columns: features whose last value counts
    aggregates: features that are computed from all rows of an entity in a window of time
    max_age: the longest time that a value is used: numbers with units of UNITS (30d, 1d12h); for times that are
        numbers, a number
    stream: a file of JSON lines, or kafka://HOST:PORT/TOPIC, with events that may not be in the files yet
    """

    name: str
    files: tuple[str, ...]
    key: str
    time: str
    columns: tuple[str, ...] = ()
    max_age: str | None = None
    aggregates: tuple[Aggregate, ...] = ()
    stream: str | None = None

    @property
    def digest(self) -> str:
        """The format in which a store keeps it, and a digest of what the definition computes, from whatever files."""
        defined = {k: v for k, v in asdict(self).items() if k not in ("files", "stream")}
        return f"{FORMAT}-{hashlib.sha256(repr(sorted(defined.items())).encode()).hexdigest()}"

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all features."""
        return (*self.columns, *(a.name for a in self.aggregates))

    @property
    def event_columns(self) -> tuple[str, ...]:
        """The columns of events that aggregates read."""
        return tuple(dict.fromkeys(a.column for a in self.aggregates if a.column != EVENTS))

    def paths(self) -> list[str]:
        """Return the files, without copies and links. Raises UserError if there are none, or one cannot be read."""
        paths = self._matches()
        copies = copies_of(paths)
        return [p for p in paths if p not in copies]

    def copies(self) -> dict[str, str]:
        """Return the files that are left out, as another one has the same content: path -> path of that one."""
        return copies_of(self._matches())

    def _matches(self) -> list[str]:
        found = {str(p) for f in self.files for p in named_by(f) if os.path.lexists(p)}
        if not found:
            raise UserError(f"{self.name}.files={', '.join(self.files)}: no file matches")
        paths = sorted(found)
        for path in paths:
            if problem := problem_of(path):
                raise UserError(f"{self.name}.files: {path} {problem}")
        return paths

    def scan(self, paths: Sequence[str] | None = None) -> pl.LazyFrame:
        """Return the rows with a key and a time, as text and as they are. Raises UserError for files that lack some.

        paths: the files to read; by default, all
        """
        paths = self.paths() if paths is None else list(paths)
        wanted = list(dict.fromkeys([self.key, self.time, *self.columns, *self.event_columns]))
        origin = self.paths()[0]
        first = columns_of(origin, self.name)
        for path in paths:
            columns = columns_of(path, self.name)
            if missing := next((c for c in wanted if c not in columns), None):
                raise UserError(f"{self.name}: {path} has no column {missing}{did_you_mean(missing, columns)}")
            self.age(columns[self.time])
            self._check_types(columns, path, first.get(self.time, columns[self.time]))
            for name, dtype in ((c, columns[c]) for c in wanted):
                if dtype != first.get(name, dtype) and pl.Null not in (dtype, first[name]):
                    kinds = f"{dtype} in {path} and {first[name]} in {origin}"
                    raise UserError(f"{self.name}: column {name} is {kinds}; write all files with the same types")
        types = {c: columns[c] for c in wanted}
        frame = pl.scan_parquet(paths, glob=False).select(wanted)  # their names are not globs
        if unfit := self.unfit(types):
            frame = frame.filter(~pl.any_horizontal(*unfit.values()).fill_null(False))
        frame = frame.with_columns(fitting.without_nan(types)).filter(~self._incomplete)
        return frame.with_columns(as_text(pl.col(self.key), types[self.key]))

    @property
    def _incomplete(self) -> pl.Expr:
        return pl.col(self.key).is_null() | pl.col(self.time).is_null()

    def unfit(self, types: Mapping[str, pl.DataType]) -> dict[str, pl.Expr]:
        """Return, for each time, and column with floats or summed integers, whether its value makes a bad event."""
        limits = {**dict.fromkeys(self.summed, fitting.MAX_SUMMED), self.time: fitting.MAX_TIME}
        flags = {
            name: fitting.too_large(pl.col(name), dtype, limits.get(name, sys.float_info.max))
            for name, dtype in types.items()
            if fitting.has_floats(dtype)
        }
        whole = [n for n in self.summed if n in types and types[n].is_integer()]
        dated = [self.time] if isinstance(types.get(self.time), pl.Date | pl.Datetime) else []
        flags |= {n: fitting.later_than_now(pl.col(n), types[n]) for n in dated}
        return flags | {n: fitting.too_large(pl.col(n), types[n], fitting.MAX_INTEGER) for n in whole}

    def why_unfit(self, name: str, value: object, dtype: pl.DataType) -> str:
        """Return the reason for which `unfit` names a value of a column."""
        if name == self.time and dtype.is_temporal():
            return f"{name}={value}: is later than now"
        return f"{name}={value}: is infinite, or too large for a {'time' if name == self.time else 'sum'}"

    def check_values(self, paths: Sequence[str] | None = None, rejected: Path | None = None) -> None:
        """Append the rows with a value that does not fit to a file; by default, raise UserError for the first of them.

        Says how many rows are left out as they have no key or no time.
        """
        wanted = {self.key, self.time, *self.columns, *self.event_columns}
        for path in self.paths() if paths is None else paths:
            types = {c: t for c, t in columns_of(path, self.name).items() if c in wanted}
            if {self.key, self.time} <= types.keys():
                needed = {c: types[c] for c in (self.key, self.time)}
                named = pl.scan_parquet(path, glob=False).select(*needed).with_columns(fitting.without_nan(needed))
                with readable(f"{self.name}: {path}"):
                    total, number = named.select(pl.len(), n=self._incomplete.sum()).collect(engine="streaming").row(0)
                if number:
                    what = f"{number:,} of {total:,} rows have no {self.key} or no {self.time}"
                    say(f"{self.name}: {path}: {what}; they are left out")
            unfit = self.unfit(types)
            if not unfit:
                continue
            rows = pl.scan_parquet(path, glob=False).with_row_index("__row__")
            with readable(f"{self.name}: {path}"):
                bad = rows.filter(pl.any_horizontal(*unfit.values())).collect(engine="streaming")
            which = bad.select(flag.alias(name) for name, flag in unfit.items())
            for row, flags in zip(bad.iter_rows(named=True), which.iter_rows(named=True), strict=True):
                name = next(n for n, flag in flags.items() if flag)
                why = self.why_unfit(name, row[name], types[name])
                where = f"{self.name}: {path}, row {row.pop('__row__')}"
                fitting.reject(rejected, self.name, where, why, json.dumps(row, default=str))

    def until(self, frame: pl.LazyFrame, until: Any) -> pl.LazyFrame:
        """Leave out the rows of `scan` that are later than a time; None keeps all. Raises UserError for no time."""
        if until is None:
            return frame
        dtype = frame.collect_schema()[self.time]
        try:
            last = pl.Series([until])
            if dtype.is_temporal() and last.dtype == pl.String:
                last = last.str.to_datetime()
            return frame.filter(pl.col(self.time) <= last.cast(dtype).item())
        except pl.exceptions.PolarsError:
            raise UserError(f"until={until}: is not a {dtype}, the type of {self.name}.time") from None

    def latest(self, until: Any = None, paths: Sequence[str] | None = None) -> pl.DataFrame:
        """Return each entity's last row: key, time and columns. Of rows of one time, the last in the files counts.

        Args:
            until: a time; later rows are left out.
            paths: the files to read; by default, all.
        """
        frame = self.until(self.scan(paths), until).select(self.key, self.time, *self.columns)
        return self.last_rows(frame).collect(engine="streaming")

    def last_rows(self, frame: pl.LazyFrame) -> pl.LazyFrame:
        """Return the last row of each entity; of equal times, the last one of the frame."""
        last = pl.all().exclude(self.key).sort_by(self.time, maintain_order=True).last()
        return frame.group_by(self.key).agg(last)

    def join(self, rows: pl.DataFrame, time: str) -> pl.DataFrame:
        """Add the features with the values that they had at the time of each row: (n, ...) -> (n, ...).

        A value counts from its own time on, and an event for later rows only. Raises UserError if the rows lack a
        column, or already have one.
        """
        self.check_rows(rows.columns, time)
        with readable(self.name):
            values = self.scan().collect(engine="streaming")
        dtype = self.compared(time, rows.schema[time], values.schema[self.time])
        values = values.with_columns(pl.col(self.time).cast(dtype))
        key = as_text(pl.col(self.key), rows.schema[self.key])
        asked = rows.select(key.alias(KEY), pl.col(time).cast(dtype).alias(TIME))
        parts = [rows]
        if self.columns:
            latest = values.select(pl.col(self.key).alias(KEY), pl.col(self.time).alias(TIME), *self.columns)
            latest = latest.sort(TIME, maintain_order=True)
            joined = (
                asked.with_row_index(PLACE)
                .sort(TIME)
                .join_asof(latest, on=TIME, by=KEY, tolerance=self.age(dtype), check_sortedness=False)
            )
            parts.append(joined.sort(PLACE).select(*self.columns))
        if self.aggregates:
            per_second = ticks_per_second(dtype)
            events = values.select(
                pl.col(self.key).alias(KEY),
                ticks(pl.col(self.time), dtype, per_second).alias(TICK),
                *self.event_columns,
            )
            at = asked.select(KEY, ticks(pl.col(TIME), dtype, per_second).alias(TICK))
            parts.append(at_times(events, at, self.aggregates, per_second))
        return pl.concat(parts, how="horizontal")

    def check_rows(self, columns: Sequence[str], time: str) -> None:
        """Raise UserError if rows lack the key or their time, or already have a feature."""
        for column in (self.key, time):
            if column not in columns:
                raise UserError(f"input: has no column {column}{did_you_mean(column, columns)}")
        if taken := next((c for c in self.names if c in columns), None):
            raise UserError(f"input: already has a column {taken}, which {self.name} adds; drop it first")

    def compared(self, time: str, theirs: pl.DataType, own: pl.DataType) -> pl.DataType:
        """Return the type in which times of rows and of the view compare. Raises UserError if they do not."""
        if (common := common_time(theirs, own)) is None:
            raise UserError(f"time={time}: is {theirs} there and {own} in {self.name}; convert one of them")
        return common

    def check_keys(self, theirs: pl.DataType | None) -> None:
        """Raise UserError for keys of a type that writes the same key as another text: 7 and 7.0."""
        own = columns_of(self.paths()[0], self.name).get(self.key)
        if theirs is not None and own is not None and theirs != own and not (_is_plain(theirs) and _is_plain(own)):
            kinds = f"{theirs} in input and {own} in the files"
            raise UserError(f"{self.name}.key={self.key}: is {kinds}; convert one of them")

    def age(self, dtype: pl.DataType) -> str | float | None:
        """Return max_age for times of a type: text such as 30d, or a number. Raises UserError if it does not fit."""
        if self.max_age is None:
            return None
        where = f"{self.name}.max_age={self.max_age}"
        if dtype.is_temporal():
            if is_number(self.max_age):
                raise UserError(f"{where}: has no unit, and the times are {dtype}; write one, such as 30d or 12h")
            return self.max_age
        if not is_number(self.max_age):
            raise UserError(f"{where}: must be a number, as the times are ({dtype})")
        return float(self.max_age) if dtype.is_float() else math.floor(float(self.max_age))

    def _check_types(self, types: Mapping[str, pl.DataType], path: str, first: pl.DataType) -> None:
        """Raise UserError if a file's types cannot be stored, summed or compared. first: type of the time elsewhere"""
        time, key = types[self.time], types[self.key]
        if not (time.is_temporal() or time.is_integer() or time.is_float()):
            raise UserError(f"{self.name}: {path}: the time {self.time} is {time}; write times or numbers")
        if (time.is_temporal(), ticks_per_second(time)) != (first.is_temporal(), ticks_per_second(first)):
            raise UserError(f"{self.name}: {path}: the time {self.time} is {time}, and {first} in {self.paths()[0]}")
        for name in dict.fromkeys([self.key, *self.columns, *self.event_columns]):
            if (name == self.key and key.is_nested()) or _is_unfit(types[name]):
                hint = "cast it to a number or text in the files"
                raise UserError(f"{self.name}: {path}: {name} is {types[name]}, which a store does not hold; {hint}")
        for a in self.aggregates:
            if a.window is not None and time.is_temporal() == a.unitless:
                hint = "write a unit, such as 1h or 7d" if a.unitless else f"write a number, as the times are ({time})"
                raise UserError(f"{self.name}.aggregates.{a.name}.window: {hint}")
            where = f"{self.name}.aggregates.{a.name}.{a.function}={a.column}"
            dtype = types.get(a.column, pl.Null())
            if a.function in ("sum", "mean") and not (dtype.is_numeric() or dtype == pl.Boolean):
                raise UserError(f"{where}: the column is {dtype} in {path}; name one of numbers")
            if a.function == "distinct" and dtype.is_nested():
                raise UserError(f"{where}: the column is {dtype} in {path}; name one of single values")

    @property
    def summed(self) -> frozenset[str]:
        """The columns of which an aggregate is a sum or mean."""
        return frozenset(a.column for a in self.aggregates if a.function in ("sum", "mean"))


def _is_plain(dtype: pl.DataType) -> bool:
    """Return whether keys of a type are the same text in any other such type."""
    return dtype.is_integer() or dtype in (pl.String, pl.Categorical, pl.Enum, pl.Boolean)


def _is_unfit(dtype: pl.DataType) -> bool:
    """Return whether JSON has no values for a type, such as decimals and bytes."""
    if isinstance(dtype, pl.Struct):
        return any(_is_unfit(f.dtype) for f in dtype.fields)  # type: ignore[arg-type]
    if isinstance(dtype, pl.List | pl.Array):
        return _is_unfit(dtype.inner)  # type: ignore[arg-type]
    return dtype.is_decimal() or dtype in (pl.Binary, pl.Object)


def columns_of(path: str | Path, where: str = "input") -> pl.Schema:
    """Return the columns of a Parquet file, whose name is not a glob. Raises UserError for another kind of file."""
    with readable(f"{where}: {path}"):
        return pl.scan_parquet(path, glob=False).collect_schema()


@contextmanager
def readable(where: str) -> Iterator[None]:
    """Turn the errors of polars about files into a UserError."""
    try:
        yield
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as e:
        why = str(e).partition("\n")[0][:200]
        raise UserError(f"{where}: cannot be read as Parquet ({why}); unpack or correct it, or leave it out") from e
