"""Read tables that are not files: results of SQL queries, Delta Lake and Iceberg tables.

Their rows are written to Parquet files first, from which all passes read (recsys/data/prepare/plan_build.py).
"""

import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from queue import Empty, Full, Queue
from threading import Event, Thread
from typing import Any, ClassVar

import polars as pl
import pyarrow as pa

from recsys.base.errors import UserError
from recsys.base.packages import check_extra, is_installed
from recsys.base.secrets import mask_text
from recsys.data.features.blocks import one_line
from recsys.data.raw.arrow_files import polars_frame
from recsys.data.raw.raw_files import is_remote, natural_sort
from recsys.schema.source_schema import SourceConfig

BATCH_ROWS = 1 << 18
ADBC = ("sqlite", "postgresql", "snowflake", "flightsql", "bigquery")  # drivers adbc_driver_NAME
READ_ONLY = "SET TRANSACTION READ ONLY"  # a query WITH ... DELETE ... RETURNING would write
READ_ONLY_DIALECTS = ("postgresql", "oracle")


class TableFormat(ABC):
    """A format whose rows are in no files that recsys reads itself: `data.source.format` is its name."""

    name: ClassVar[str]
    rows_of = "table"
    root_is = "folder of the table"
    instead_of_sides = "export the table to Parquet"

    def file(self, root: str) -> Path | None:
        """Return the file of a database that is one file; None for all others."""
        return None

    def check_packages(self, root: str) -> None:
        """Raise UserError if the package that reads the table is not installed."""
        check_extra(self.name, f"data.root={mask_text(root)}")

    @abstractmethod
    def version(self, root: str) -> str | None:
        """Return the version of a table; None for databases, which have none. Raises UserError as `read`."""

    @abstractmethod
    def read(self, source: SourceConfig, root: str) -> Iterator[pl.DataFrame]:
        """Yield the rows in batches, in bounded memory.

        Raises:
            UserError: the table cannot be read, or the package that reads it is not installed.
        """


class LakeTable(TableFormat):
    """A table of Parquet files with a log of its versions, which polars scans."""

    @abstractmethod
    def scan(self, root: str) -> pl.LazyFrame:
        """Return the rows of the newest version."""

    def read(self, source: SourceConfig, root: str) -> Iterator[pl.DataFrame]:
        self.check_packages(root)
        try:
            yield from self.scan(root).collect_batches(chunk_size=BATCH_ROWS, maintain_order=True)
        except (pl.exceptions.PolarsError, OSError, ValueError) as e:
            raise UserError(f"data.root={root}: cannot be read as {self.name}: {one_line(e)}") from e


class DeltaLake(LakeTable):
    """A Delta Lake table."""

    name = "delta"

    def version(self, root: str) -> str:
        return str(self._open(root).version())

    def scan(self, root: str) -> pl.LazyFrame:
        return pl.scan_delta(self._open(root))

    def _open(self, root: str) -> Any:
        self.check_packages(root)
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError

        try:
            return DeltaTable(root)
        except (DeltaError, OSError, ValueError) as e:
            raise UserError(f"data.root={root}: not a Delta table ({one_line(e)})") from e


class Iceberg(LakeTable):
    """An Iceberg table; `data.root` is its folder, or one of its metadata files."""

    name = "iceberg"

    def version(self, root: str) -> str:
        return self._open(root)[1]

    def scan(self, root: str) -> pl.LazyFrame:
        return pl.scan_iceberg(self._open(root)[0])

    def _open(self, root: str) -> tuple[Any, str]:
        """Return the table and its snapshot."""
        self.check_packages(root)
        from pyiceberg.table import StaticTable

        try:
            file = root
            if not (root.endswith(".json") or is_remote(root)):
                files = natural_sort(Path(root).glob("metadata/*.metadata.json"))
                if not files:
                    raise FileNotFoundError("its folder has no metadata/*.metadata.json")
                file = str(files[-1])  # the newest
            table = StaticTable.from_metadata(file)
        except Exception as e:  # each catalogue and store raises its own exceptions
            raise UserError(f"data.root={root}: not an Iceberg table ({one_line(e)})") from e
        snapshot = table.current_snapshot()
        if snapshot is None:
            raise UserError(f"data.root={root}: this Iceberg table has no rows")
        return table, str(snapshot.snapshot_id)


class Sql(TableFormat):
    """The result of `data.source.query`; `data.root` is the URL of the database."""

    name = "sql"
    rows_of = "query"
    root_is = "database's URL, such as sqlite:///logs.db"
    instead_of_sides = "join in the query"

    def file(self, root: str) -> Path | None:
        match = re.fullmatch(r"(?:sqlite|duckdb)(?:\+\w+)?:///(.+)", root)
        return Path(match[1]) if match else None

    def check_packages(self, root: str) -> None:
        if _adbc_driver(root) is None:
            modules = ("duckdb",) if _scheme(root) == "duckdb" else ("sqlalchemy",)
            check_extra(self.name, f"data.root={mask_text(root)}", *modules)

    def version(self, root: str) -> None:
        self.check_packages(root)

    def read(self, source: SourceConfig, root: str) -> Iterator[pl.DataFrame]:
        """Yield the rows, through DuckDB, an ADBC driver that is installed, or SQLAlchemy."""
        self.check_packages(root)
        query, shown = source.query or "", mask_text(root)
        if (file := self.file(root)) is not None and not file.is_file():
            raise UserError(f"data.root={shown}: no such file: {file}")
        if _scheme(root) == "duckdb":
            read = partial(_duckdb, root, query)
        elif (driver := _adbc_driver(root)) is not None:
            read = partial(_adbc, driver, root, query)
        else:
            read = partial(_sqlalchemy, root, query)
        try:
            yield from _within(source.query_timeout_s, read)
        except _TooLong:
            why = f"ran for more than data.source.query_timeout_s={source.query_timeout_s:g} seconds"
            raise UserError(f"data.root={shown}: the query {why}; make it shorter, or allow more") from None
        except UserError:
            raise
        except ModuleNotFoundError as e:  # SQLAlchemy imports the driver that the address names
            raise UserError(f"data.root={shown}: needs the driver {e.name}, which is not installed; install it") from e
        except Exception as e:  # each driver raises its own exceptions
            raise UserError(f"data.root={shown}: {mask_text(one_line(e))}; data.source.query={query!r}") from e


TABLES: dict[str, TableFormat] = {table.name: table for table in (Sql(), DeltaLake(), Iceberg())}


def _scheme(root: str) -> str:
    return root.partition(":")[0].partition("+")[0]


def _adbc_driver(root: str) -> str | None:
    """Return the module of the ADBC driver that reads a database, if it is installed."""
    driver = f"adbc_driver_{_scheme(root)}"
    named = _scheme(root) in ADBC and "+" not in root.partition(":")[0]
    return driver if named and is_installed(driver) else None


Cancels = list[Callable[[], object]]  # what ends a query that runs


class _TooLong(Exception):
    """A query runs longer than it may."""


def _within(seconds: float, read: Callable[[Cancels], Iterator[pl.DataFrame]]) -> Iterator[pl.DataFrame]:
    """Yield the frames of `read` from another thread: drivers neither end a query in time nor heed Ctrl-C meanwhile."""
    ready: Queue[pl.DataFrame | BaseException | None] = Queue(1)
    left, cancels = Event(), Cancels()

    def put(item: pl.DataFrame | BaseException | None) -> None:
        while not left.is_set():
            with suppress(Full):
                ready.put(item, timeout=0.2)
                return

    def read_all() -> None:
        try:
            for frame in read(cancels):
                put(frame)
                if left.is_set():
                    return
            put(None)
        except BaseException as e:
            put(e)

    thread = Thread(target=read_all, name="query", daemon=True)
    thread.start()
    end = time.monotonic() + seconds
    try:
        while (item := ready.get(timeout=max(0.0, end - time.monotonic()))) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item
            if time.monotonic() > end:  # a queue that is never empty would not say so
                raise _TooLong
    except Empty:
        raise _TooLong from None
    finally:
        left.set()
        for cancel in cancels:
            with suppress(Exception):  # each driver raises its own exceptions; SQLite's of ADBC cannot be ended
                cancel()
        thread.join(1)


def _duckdb(root: str, query: str, cancels: Cancels) -> Iterator[pl.DataFrame]:
    import duckdb

    # no external access: a query of a run's config from elsewhere could read and write files, or load extensions
    settings: dict[str, Any] = {"enable_external_access": False, "python_enable_replacements": False}
    with closing(duckdb.connect(root.removeprefix("duckdb:///"), read_only=True, config=settings)) as connection:
        cancels.append(connection.interrupt)
        relation = connection.sql(query)  # `execute` would hold the whole result in memory
        if relation is None:
            raise ValueError("the query returns no rows; write a SELECT")
        yield from _batches(relation.to_arrow_reader(BATCH_ROWS))


def _adbc(driver: str, root: str, query: str, cancels: Cancels) -> Iterator[pl.DataFrame]:
    scheme = _scheme(root)
    uri = f"{Path(root.removeprefix('sqlite:///')).resolve().as_uri()}?mode=ro" if scheme == "sqlite" else root
    connect = import_module(f"{driver}.dbapi").connect
    with closing(connect(uri)) as connection, closing(connection.cursor()) as cursor:
        cancels.append(cursor.adbc_cancel)
        if scheme == "postgresql":
            cursor.execute(READ_ONLY)
        cursor.execute(query)
        yield from _batches(cursor.fetch_record_batch())


def _batches(reader: Any) -> Iterator[pl.DataFrame]:
    """Yield the batches of a RecordBatchReader; at least one, so that the columns are known."""
    any_rows = False
    for batch in reader:
        any_rows = any_rows or batch.num_rows > 0
        yield polars_frame(pa.Table.from_batches([batch]))
    if not any_rows:
        yield polars_frame(reader.schema.empty_table())


def _sqlalchemy(root: str, query: str, cancels: Cancels) -> Iterator[pl.DataFrame]:
    import sqlalchemy

    engine = sqlalchemy.create_engine(root)
    try:
        with engine.connect().execution_options(stream_results=True) as connection:
            # let the driver refuse to write; `execute` of SQLAlchemy would make a cursor of its own for it
            driver: Any = connection.connection.driver_connection
            if engine.name == "sqlite":
                driver.execute("PRAGMA query_only = ON")
                cancels.append(driver.interrupt)
            elif engine.name in READ_ONLY_DIALECTS:
                driver.cursor().execute(READ_ONLY)
            if hasattr(driver, "cancel"):  # psycopg
                cancels.append(driver.cancel)
            yield from pl.read_database(
                sqlalchemy.text(query), connection, iter_batches=True, batch_size=BATCH_ROWS, infer_schema_length=None
            )
    finally:
        with suppress(Exception):
            engine.dispose()
