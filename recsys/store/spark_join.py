"""Join stored features to rows by Spark, for rows beyond one machine: the values that View.join gives.

A view takes one shuffle: its values and the rows lie side by side, by key and time, and windows of Spark look back from
each row. All of it runs in Spark's JVM: executors need no Python.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

import polars as pl
from pyspark import StorageLevel
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql import types as T

from recsys.base.durations import microseconds_of_age
from recsys.base.errors import UserError
from recsys.files.atomic import whole_folder
from recsys.files.data_files import files_in
from recsys.files.user_files import file_url
from recsys.store.aggregates import EVENTS, Aggregate, ticks_per_second, window_ticks
from recsys.store.fitting import has_floats
from recsys.store.views import View, columns_of

ROW, PLACE = "row", "place"  # what a row of input holds, and where it is: number of its file and row of the file
VALUE, SEQUENCE = "value", "sequence"  # the columns of a value or event, and its place among events of equal times
KEY, APART, AT, TICK = "key", "apart", "at", "tick"
ROWS_PER_FILE = 2**40
FILE = "^file:/+"  # Spark writes one slash or three
DAY = 86_400_000_000  # microseconds
FOREVER = 2**61  # ticks; a longer window would overflow, and no two times are further apart
SETTINGS = {
    "spark.sql.session.timeZone": "UTC",  # times without a zone compare as UTC, as in polars
    "spark.sql.caseSensitive": "true",
    "spark.sql.ansi.enabled": "true",  # an overflow is an error, not another number
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}
LEAVES = (
    *(pl.Int8, pl.Int16, pl.Int32, pl.Int64, pl.UInt8, pl.UInt16, pl.UInt32, pl.UInt64, pl.Float32, pl.Float64),
    *(pl.Boolean, pl.String, pl.Binary, pl.Date, pl.Decimal, pl.Categorical, pl.Enum),
)
NUMBERS = (T.NumericType, T.BooleanType)


def join(session: SparkSession, views: Mapping[str, View], source: Path, time: str, output: Path) -> int:
    """Write rows with the features that they had at their times, in the order of the rows.

    Return the number of rows. Raises UserError if files or columns are missing, or have types that Spark or the join
    does not take.

    session: its machines must see all files under the same path
    source: a Parquet file of rows, or a folder of them, which are read in the order of their paths
    time: the column with the time of each row
    output: the folder of Parquet files to write, which must not exist yet
    """
    own_session = session.newSession()  # its settings are its own, and the cluster is the same
    for name, value in SETTINGS.items():
        own_session.conf.set(name, value)
    files = _row_files(source)
    inputs = _schema(files, "input")
    schema = dict(inputs)
    for view in views.values():  # before Spark reads anything
        view.check_rows(list(schema), time)
        columns = columns_of(view.paths()[0])  # aggregates are not columns of the files
        schema |= {n: columns.get(n, pl.Null()) if n in view.columns else pl.Null() for n in view.names}
    try:
        rows = _read(own_session, files, inputs, "input").select(F.col(VALUE).alias(ROW), PLACE)
        for view in views.values():
            rows = _with_features(own_session, view, rows, time, schema)
        rows = rows.persist(StorageLevel.DISK_ONLY)  # to sort, Spark reads its input twice
        try:
            with whole_folder(output, new=True) as building:
                options = {"mapreduce.fileoutputcommitter.marksuccessfuljobs": "false"}
                writer = rows.orderBy(PLACE).select(f"{ROW}.*").write.mode("append").options(**options)
                writer.parquet(file_url(building, globs=False))
                for checksum in building.glob(".*.crc"):  # the folder holds nothing but Parquet files
                    checksum.unlink()
        finally:
            rows.unpersist()
    except PySparkException as e:
        raise RuntimeError(f"Spark: {str(e).splitlines()[0]}") from e
    return sum(pl.scan_parquet(f, glob=False).select(pl.len()).collect().item() for f in files)


def _row_files(source: Path) -> list[str]:
    """Return the files of rows; hidden folders, such as the folders of unfinished writes, hold none."""
    if source.is_file():
        return [str(source)]
    files = [p for p in files_in(source) if p.suffix == ".parquet"]
    if not files:
        raise UserError(f"input={source}: holds no file that ends in .parquet")
    if part := next((p for f in files for p in f.relative_to(source).parts[:-1] if "=" in p), None):
        raise UserError(f"input={source}: has a folder {part}, whose column would be lost; write it into the files")
    return [str(f) for f in files]


def _schema(paths: Sequence[str], where: str, wanted: Sequence[str] | None = None) -> dict[str, pl.DataType]:
    """Return the types of columns, by default all. Raises UserError if Spark does not take one, or files differ."""
    schema: dict[str, pl.DataType] = {}
    for path in paths:
        columns = columns_of(path)
        types = {c: columns[c] for c in (columns if wanted is None else wanted)}
        if schema and types != schema:
            column = next(c for c in {**types, **schema} if types.get(c) != schema.get(c))
            kinds = f"{types.get(column, 'missing')} in {path} and {schema.get(column, 'missing')} in {paths[0]}"
            raise UserError(f"{where}: column {column} is {kinds}; write all files with the same columns")
        for column, dtype in types.items():
            if column == "_metadata" or not _taken(dtype):
                what = "a name that Spark uses itself" if column == "_metadata" else f"{dtype}, which Spark lacks"
                hint = "rename it" if column == "_metadata" else "convert it, times to microseconds"
                raise UserError(f"{where}: column {column} of {path} is {what}; {hint}, or use engine=polars")
        schema = types
    return schema


def _taken(dtype: pl.DataType) -> bool:
    """Return whether Spark reads and writes a type as what it is."""
    if isinstance(dtype, (pl.List, pl.Array)):
        return _taken(dtype.inner)  # type: ignore[arg-type]
    if isinstance(dtype, pl.Struct):
        return all(_taken(f.dtype) for f in dtype.fields)  # type: ignore[arg-type]
    return dtype.time_unit != "ns" if isinstance(dtype, pl.Datetime) else isinstance(dtype, LEAVES)


def _read(session: SparkSession, paths: Sequence[str], columns: Iterable[str], where: str) -> DataFrame:
    """Return VALUE, a struct of columns, and PLACE, which grows from file to file and row to row."""
    real: dict[str, str] = {}
    for path in paths:
        if Path(path).name.startswith(("_", ".")):
            raise UserError(f"{where}: Spark leaves out files such as {path}; rename it, without the first character")
        if (first := real.setdefault(os.path.realpath(path), path)) != path:
            raise UserError(f"{where}: {first} and {path} are the same file; name it once")
    frame = session.read.option("recursiveFileLookup", "true").parquet(*(file_url(Path(p)) for p in real))
    numbers = {path: number for number, path in enumerate(real)}
    urls = [re.sub(FILE, "/", url) for url in frame.inputFiles()]
    files = F.broadcast(session.createDataFrame([(u, numbers[unquote(u)]) for u in urls], "url string, number long"))
    values = F.struct(*(_column(c) for c in columns)).alias(VALUE)
    url = F.regexp_replace("_metadata.file_path", FILE, "/").alias("url")
    read = frame.select(values, url, F.col("_metadata.row_index").alias("index")).join(files, "url", "left")
    number = F.coalesce(F.col("number"), F.raise_error(F.concat(F.lit("unknown file "), F.col("url"))))
    return read.select(VALUE, (number * ROWS_PER_FILE + F.col("index")).alias(PLACE))


def _column(name: str, of: str | None = None) -> Column:
    """Return a column by its name, dots and all, or a field of a struct."""
    return F.col(f"{of}." * bool(of) + "`" + name.replace("`", "``") + "`")


@dataclass(frozen=True)
class _Clock:
    """How times of rows and of a view compare: both are converted to one type, as View.join does."""

    common: pl.DataType

    @property
    def per_second(self) -> int:
        return ticks_per_second(self.common)

    def at(self, time: Column, dtype: pl.DataType) -> Column:
        """Return times as numbers that compare: microseconds, or the numbers themselves."""
        if not self.common.is_temporal():
            kind = "long" if self.common.is_integer() else "double"
            return F.when(~F.isnan(time), time).cast(kind) if dtype.is_float() else time.cast(kind)
        if dtype == pl.Date:
            return F.unix_date(time).cast("long") * DAY
        return F.unix_micros(time.cast("timestamp"))

    def tick(self, at: Column) -> Column:
        """Return whole ticks, as aggregates.ticks does."""
        return F.ceil(at * F.lit(self.per_second).cast("double")).cast("long") if self.common.is_float() else at


def _with_features(
    session: SparkSession, view: View, rows: DataFrame, time: str, schema: Mapping[str, pl.DataType]
) -> DataFrame:
    """Add the features of a view to ROW."""
    paths = view.paths()
    view.scan(paths)  # checks the files
    columns = list(dict.fromkeys([*view.columns, *view.event_columns]))
    types = _schema(paths, view.name, list(dict.fromkeys([view.key, view.time, *columns])))
    clock = _Clock(view.compared(time, schema[time], types[view.time]))
    read = _read(session, paths, types, view.name)
    missing = F.struct(*(_without_nan(_column(c, VALUE), types[c]).alias(c) for c in types))
    read = read.select(missing.alias(VALUE), PLACE)
    theirs = rows.select(_column(view.key, ROW)).schema[0].dataType
    own = read.select(_column(view.key, VALUE)).schema[0].dataType
    plain = (T.StringType, T.IntegralType, T.BooleanType)  # Spark and polars write others as different text
    if theirs != own and not all(isinstance(t, plain) for t in (theirs, own)):
        kinds = f"{theirs.simpleString()} in input and {own.simpleString()} in {view.name}"
        raise UserError(f"{view.name}.key={view.key}: is {kinds}; convert one of them")
    at = clock.at(_column(view.time, VALUE), types[view.time])
    values = read.select(
        _column(view.key, VALUE).cast("string").alias(KEY),
        at.alias(AT),
        F.col(PLACE).alias(SEQUENCE),
        F.struct(*(_column(c, VALUE).alias(f"c{i}") for i, c in enumerate(columns))).alias(VALUE),
    ).where(F.col(KEY).isNotNull() & F.col(AT).isNotNull())
    asked = rows.select(
        _column(view.key, ROW).cast("string").alias(KEY),
        clock.at(_column(time, ROW), schema[time]).alias(AT),
        *(ROW, PLACE),
    )
    lacks = F.col(KEY).isNull() | F.col(AT).isNull()
    asked = asked.withColumn(APART, F.when(lacks, F.col(PLACE)))  # not all of them in one task
    both = values.unionByName(asked, allowMissingColumns=True).withColumn(TICK, clock.tick(F.col(AT)))
    features = _Features(view, clock, {c: F.col(f"{VALUE}.c{i}") for i, c in enumerate(columns)}, both)
    return features.frame()


def _without_nan(values: Column, dtype: pl.DataType) -> Column:
    """Return values of a file with missing values instead of NaN, as View.scan gives them."""
    if not has_floats(dtype):
        return values
    if isinstance(dtype, (pl.List, pl.Array)):
        return F.transform(values, lambda v: _without_nan(v, dtype.inner))  # type: ignore[arg-type]
    if isinstance(dtype, pl.Struct):
        made = (_without_nan(values[f.name], f.dtype).alias(f.name) for f in dtype.fields)  # type: ignore[arg-type]
        return F.when(values.isNotNull(), F.struct(*made))
    return F.when(~F.isnan(values), values)


class _Features:
    """The features of a view as expressions over `both`: values and rows, side by side."""

    def __init__(self, view: View, clock: _Clock, columns: Mapping[str, Column], both: DataFrame) -> None:
        self._view, self._clock, self._columns, self._both = view, clock, columns, both
        self._by = Window.partitionBy(KEY, APART)
        start, here = Window.unboundedPreceding, Window.currentRow
        # a row comes after the values of its time, and before the events of its time
        upto = self._by.orderBy(F.col(AT), F.col(SEQUENCE).asc_nulls_last())
        before = self._by.orderBy(F.col(TICK), F.col(SEQUENCE).asc_nulls_first())
        self._upto, self._before = upto.rowsBetween(start, here), before.rowsBetween(start, here)

    def frame(self) -> DataFrame:
        """Return ROW with the features, and PLACE."""
        both, view = self._both, self._view
        listed = list(dict.fromkeys(a.column for a in view.aggregates if a.function == "last" and a.number))
        for column in listed:
            # twice the number of values so far, and one more for a row without: the last N values before a row have
            # the positions from 2N before its own on, whatever their times
            value = self._columns[column]
            positions = 2 * F.count(value).over(self._before) + F.when(value.isNull(), 1).otherwise(0)
            both = both.withColumn(self._position(column), positions)
        found = [self._window(a).alias(f"a{i}") for i, a in enumerate(view.aggregates)]
        if view.columns:
            last = F.last(F.when(self._is_value(), F.struct(AT, VALUE)), True)
            found.append(last.over(self._upto).alias("latest"))
        looked = both.select(ROW, PLACE, KEY, AT, TICK, *found).where(F.col(ROW).isNotNull())
        latest = F.col("latest")
        fresh = latest.isNotNull()
        if view.max_age is not None:
            age = view.age(self._clock.common)
            age = microseconds_of_age(age) if isinstance(age, str) else age
            fresh = F.col(AT) - latest[AT] <= F.lit(age)
        names = list(self._columns)
        made = [F.when(fresh, latest[VALUE][f"c{names.index(c)}"]).alias(c) for c in view.columns]
        made += [self._aggregate(a, f"a{i}") for i, a in enumerate(view.aggregates)]
        return looked.select(F.struct(F.col(f"{ROW}.*"), *made).alias(ROW), PLACE)

    @staticmethod
    def _is_value() -> Column:
        return F.col(SEQUENCE).isNotNull()

    def _position(self, column: str) -> str:
        return f"position{list(self._columns).index(column)}"

    def _ticks(self, a: Aggregate) -> int | None:
        """Return the length of a window; None for all events before."""
        length = FOREVER if a.window is None else window_ticks(a.window, self._clock.per_second)
        return None if length >= FOREVER else length

    def _window(self, a: Aggregate) -> Column:
        """Return the column that a window of Spark computes for an aggregate."""
        length = self._ticks(a)
        span = self._by.orderBy(TICK).rangeBetween(Window.unboundedPreceding if length is None else -length, -1)
        if a.column == EVENTS:
            return F.count(F.when(self._is_value(), 1)).over(span)
        value = self._columns[a.column]
        if a.function == "last":
            timed = F.when(value.isNotNull(), F.struct(F.col(TICK), value.alias(VALUE)))
            if a.number is None:
                return F.last(timed, True).over(self._before)
            by_position = self._by.orderBy(self._position(a.column))
            return F.collect_list(timed).over(by_position.rangeBetween(-2 * a.number, -1))
        kind = self._both.select(value).schema[0].dataType
        if a.function in ("sum", "mean") and not isinstance(kind, NUMBERS):
            where = f"{self._view.name}.aggregates.{a.name}.{a.function}={a.column}"
            raise UserError(f"{where}: the column is {kind.simpleString()}; name one of numbers")
        is_float, is_bool = isinstance(kind, (T.FloatType, T.DoubleType)), isinstance(kind, T.BooleanType)
        if a.function == "max" and is_float:  # as in polars, NaN is the maximum only of NaNs
            numbers = F.max(F.when(~F.isnan(value), value)).over(span)
            return F.coalesce(numbers, F.max(value).over(span))
        made = {
            "count": lambda: F.count(value),
            "sum": lambda: F.sum(value.cast("long") if is_bool else value),
            "mean": lambda: F.avg(value.cast("long").cast("double") if is_bool else value.cast("double")),
            "min": lambda: F.min(value),
            "max": lambda: F.max(value),
            "distinct": lambda: F.collect_set(value + F.lit(0.0).cast(kind) if is_float else value),  # -0.0 is 0.0
        }
        return made[a.function]().over(span)

    def _aggregate(self, a: Aggregate, found: str) -> Column:
        """Return an aggregate at the time of a row, from what the window found."""
        length, value = self._ticks(a), F.col(found)
        if a.function == "last":
            oldest = None if length is None else F.col(TICK) - length
            if a.number is None:
                value = value[VALUE] if oldest is None else F.when(value[TICK] >= oldest, value[VALUE])
            else:
                recent = value if oldest is None else F.filter(value, lambda e: e[TICK] >= oldest)
                value = F.transform(recent, lambda e: e[VALUE])
        elif a.function == "sum":
            value = F.coalesce(value, F.lit(0))
        elif a.function == "distinct":
            value = F.size(value).cast("long")
        return F.when(F.col(KEY).isNotNull() & F.col(TICK).isNotNull(), value).alias(a.name)
