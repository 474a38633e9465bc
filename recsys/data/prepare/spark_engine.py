"""engine=spark: run each chunk as a task of a Spark cluster. pyspark is an extra: declarative-recsys[spark]."""

import os
import pickle
import shutil
import socket
import sys
import time
import traceback
import uuid
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import polars as pl
import pyspark
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from recsys.base.errors import UserError
from recsys.data.features.blocks import one_line
from recsys.data.features.fit import sum_tables
from recsys.data.prepare.engine import Advance, Engine, Function, Item, Result
from recsys.files.atomic import whole_file
from recsys.files.user_files import file_url
from recsys.schema.data_schema import EngineConfig

DOCS = "see docs/how_to/train/several_nodes.md"
POLL_SECONDS = 0.05
STOPPING_SECONDS = 10  # time for which tasks of a job that has ended may continue to write
SMALL_BYTES = 64 << 20  # tables up to this size are summed by the driver, which is quicker than a Spark job


@dataclass
class ItemRunner:
    """Calls the function on an item, on an executor, and writes the number of rows that are done, and the result."""

    function: Any  # a Broadcast
    results: str
    cwd: str
    polars: str

    def __call__(self, numbered: tuple[int, Any]) -> None:
        number, item = numbered
        rows = [0.0]
        try:
            self._check_machine()
            result = self.function.value(item, rows.append)
            write_pickle(Path(self.results, f"{number}.pickle"), (sum(rows), result))
        except Exception as e:
            if not isinstance(e, UserError):
                e.add_note(f"On Spark's executor {socket.gethostname()}:\n{traceback.format_exc()}")
            with suppress(Exception):  # if it cannot be pickled, Spark still reports it as text
                write_pickle(Path(self.results, "error"), e)
            raise

    def _check_machine(self) -> None:
        host = socket.gethostname()
        if Path(self.cwd).is_dir():  # relative paths start here
            os.chdir(self.cwd)
        if not Path(self.results).is_dir():
            folder = Path(self.results).parent
            raise UserError(f"engine=spark: {host} does not see {folder}; put data.prepared on a shared folder")
        if pl.__version__ != self.polars:
            raise UserError(f"engine=spark: {host} has polars {pl.__version__}, the driver {self.polars}; {DOCS}")


def write_pickle(file: Path, value: object) -> None:
    """Write a pickle file atomically."""
    with whole_file(file, unique=True) as building:
        building.write_bytes(pickle.dumps(value, protocol=5))


def job_failure(results: Path, error: Exception) -> BaseException:
    """Return the exception that an executor wrote, or one made of Spark's message if it could not write any."""
    try:
        failed = pickle.loads((results / "error").read_bytes())  # nosec B301: an executor of this job has written it
        assert isinstance(failed, BaseException)
        if not isinstance(failed, ImportError):
            return failed
        text = f"{failed}"
    except Exception:
        text = str(error)
    if "No module named" in text or "unpickl" in text.lower():
        reason = next((line for line in text.splitlines() if "No module named" in line), "it cannot be unpickled")
        return UserError(f"engine=spark: executors lack recsys or a package it needs ({reason.strip()}); {DOCS}")
    failed = RuntimeError("a Spark job failed")
    failed.__cause__ = error
    return failed


class Spark(Engine):
    """Runs the passes on a Spark cluster, which starts on first use.

    home: a folder that all machines of the cluster can access
    """

    def __init__(self, config: EngineConfig, home: Path) -> None:
        self._config, self._home = config, home.absolute()
        self._stack = ExitStack()

    @cached_property
    def session(self) -> SparkSession:
        return self._stack.enter_context(borrowed_session(self._config))

    def close(self) -> None:
        """Stop the session, unless the caller started it: training does not need it."""
        self._stack.close()

    def map(
        self, function: Function[Item, Result], items: Sequence[Item], advance: Advance, *, reads: bool = False
    ) -> Generator[Result, None, None]:
        """Run one job for all items. Results, which may be large, go through files, so that the driver holds one.

        Args:
            function: the function to call; it is sent to each worker once.
            advance: called when all items are done; meanwhile, Spark shows its own progress.
            reads: not used; the cluster decides how many tasks run at a time.
        """
        if not items:
            return
        context, results = self.session.sparkContext, self._home / f"spark-{uuid.uuid4().hex[:8]}"
        results.mkdir(parents=True)
        shipped = context.broadcast(function)  # unpickled once per worker, so that its tasks share its caches
        run = ItemRunner(shipped, str(results), os.getcwd(), pl.__version__)
        try:
            try:
                context.parallelize(list(enumerate(items)), len(items)).foreach(run)
            except Exception as e:
                raise job_failure(results, e) from e
            for number in range(len(items)):
                file = results / f"{number}.pickle"
                rows, result = pickle.loads(file.read_bytes())  # nosec B301: the same
                file.unlink()
                advance(rows)
                yield result
        finally:
            with suppress(Exception):  # Spark may have stopped
                shipped.destroy()
            _remove(results)

    def total(self, files: Sequence[Path], keys: Sequence[str], least: int) -> pl.DataFrame:
        """Sum large tables by a Spark job with its own shuffle, which writes the result as Parquet."""
        if sum(f.stat().st_size for f in files) < SMALL_BYTES:
            return super().total(files, keys, least)
        schema = sum_tables(pl.scan_parquet(files[0], glob=False), keys, least).collect_schema()
        target = self._home / f"spark-{uuid.uuid4().hex[:8]}"
        try:
            # recursive, so that folders named like x=1 are not taken for partitions
            tables = self.session.read.option("recursiveFileLookup", "true").parquet(*map(file_url, files))
            sums = [F.sum(c).alias(c) for c in schema if c not in keys]
            tables.groupBy(*keys).agg(*sums).where(F.col("count") >= least).write.parquet(file_url(target, globs=False))
            parts = [pl.scan_parquet(f, glob=False) for f in sorted(target.glob("*.parquet"))]
            empty = pl.LazyFrame(schema=schema)
            # cast back: Spark has fewer types than polars
            cast = [f.select(pl.col(n).cast(t) for n, t in schema.items()) for f in parts]
            return pl.concat([empty, *cast]).collect().sort(keys)
        except PySparkException as e:
            raise RuntimeError(f"Spark: {one_line(e)}") from e
        finally:
            _remove(target)


def _remove(folder: Path) -> None:
    """Remove a folder; retry, because tasks of a failed or cancelled job may still write into it."""
    until = time.monotonic() + STOPPING_SECONDS
    while folder.exists() and time.monotonic() < until:
        shutil.rmtree(folder, ignore_errors=True)
        if folder.exists():
            time.sleep(POLL_SECONDS)


def start_session(config: EngineConfig) -> SparkSession:
    """Return the active session, or start one. Raises UserError if Spark does not start."""
    options = dict(flatten_options(config.options))
    master = config.master or ("local[*]" if _alone() else None)
    local = str(master).startswith("local")
    defaults: dict[str, bool | float | int | str | None] = {
        "spark.log.level": "ERROR",
        "spark.ui.showConsoleProgress": "true",
    }
    defaults |= {"spark.executorEnv.POLARS_MAX_THREADS": options.get("spark.task.cpus", "1")}
    if local:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        defaults |= {"spark.ui.enabled": "false", "spark.driver.host": "localhost"}
        defaults |= {"spark.driver.bindAddress": "127.0.0.1"}
    # no speculation: two copies of a task would write the same files
    given = defaults | options | {"spark.speculation": "false"}
    builder = SparkSession.Builder().appName("recsys").config(map=given)
    try:
        return (builder.master(master) if master else builder).getOrCreate()
    except Exception as e:
        hint = f"it needs Java 17, and a master from engine.master or spark-submit; {DOCS}"
        raise UserError(f"engine=spark: Spark does not start ({one_line(e)}): {hint}") from e


@contextmanager
def borrowed_session(config: EngineConfig) -> Iterator[SparkSession]:
    """Yield the active session, which stays, or a new one, which is stopped. Raises UserError if it does not start."""
    ours = SparkSession.getActiveSession() is None
    session = start_session(config)
    try:
        yield session
    finally:
        if ours:
            session.stop()


def _alone() -> bool:
    """Return whether neither spark-submit nor spark-defaults.conf sets a master, so that Spark runs on this machine."""
    if any(name in os.environ for name in ("PYSPARK_GATEWAY_PORT", "PYSPARK_SUBMIT_ARGS", "MASTER")):
        return False
    home = os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent
    defaults = Path(os.environ.get("SPARK_CONF_DIR") or Path(home) / "conf") / "spark-defaults.conf"
    return not (defaults.is_file() and "spark.master" in defaults.read_text(encoding="utf-8"))


def flatten_options(options: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield nested options, as engine.options.spark.executor.memory=8g makes them, as (dotted name, value)."""
    for name, value in options.items():
        if isinstance(value, dict):
            yield from flatten_options(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", str(value).lower() if isinstance(value, bool) else str(value)
