"""engine=spark: each chunk a task of a Spark cluster. pyspark is an extra: pip install recsys[spark]."""

import os
import shutil
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import polars as pl
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from recsys.config.schema_data import EngineConfig
from recsys.data.prepare.engine import Advance, Item, OneMachine, Result
from recsys.data.prepare.spark_tasks import (
    DOCS,
    Job,
    Listed,
    Outcome,
    Run,
    failure,
    taken,
)
from recsys.data.raw.blocks import one_line
from recsys.data.transforms import summed
from recsys.errors import UserError

LOOK_EVERY_SECONDS = 0.05
STOPPING_SECONDS = 10  # that the tasks of a job that has ended may take
SMALL_BYTES = 64 << 20  # tables that the driver sums sooner than Spark starts a job


class Spark:
    """A Spark cluster, which starts when it is first asked for. `home` is a folder that all its machines see."""

    def __init__(self, config: EngineConfig, home: Path) -> None:
        self._config, self._home = config, home.absolute()
        self._session: SparkSession | None = None
        self._ours = False

    @property
    def session(self) -> SparkSession:
        if self._session is None:
            self._ours = SparkSession.getActiveSession() is None
            self._session = start(self._config)
        return self._session

    def close(self) -> None:
        """Give the cluster back: training does not need it."""
        if self._session is not None and self._ours:
            self._session.stop()
        self._session = None

    def map(
        self,
        function: Callable[[Item, Advance], Result],
        items: Sequence[Item],
        advance: Advance,
        *,
        reads: bool = False,
    ) -> Iterator[Result]:
        """One job for all items; results, which may be large, go through files, so that the driver holds one."""
        if not items:
            return
        context, results = self.session.sparkContext, self._home / f"spark-{uuid.uuid4().hex[:8]}"
        results.mkdir(parents=True)
        outcomes = context.accumulator([], Listed())
        shipped = context.broadcast(function)  # unpickled once a worker: what it caches serves all of its tasks
        run = Run(shipped, outcomes, str(results), os.getcwd(), pl.__version__)
        job = Job(context, str(results.name), context.parallelize(list(enumerate(items)), len(items)), run)
        job.start()
        try:
            for number, outcome in enumerate(_in_order(job, outcomes, len(items), advance)):
                yield taken(results / f"{number}.pickle", outcome)
            if job.error is not None:
                raise failure(results, job.error)
        finally:
            with suppress(Exception):  # a Spark that is gone
                if job.is_alive():
                    context.cancelJobGroup(results.name)
                    job.join()
                shipped.destroy()
            _remove(results)

    def total(self, files: Sequence[Path], keys: Sequence[str], least: int) -> pl.DataFrame:
        """A job of Spark's own, with its shuffle; what is left of the tables comes back as Parquet."""
        if sum(f.stat().st_size for f in files) < SMALL_BYTES:
            return OneMachine().total(files, keys, least)
        schema = summed(pl.scan_parquet(files[0], glob=False), keys, least).collect_schema()
        target = self._home / f"spark-{uuid.uuid4().hex[:8]}"
        try:
            # whatever is in their path: no partitions
            tables = self.session.read.option("recursiveFileLookup", "true").parquet(*map(_url, files))
            sums = [F.sum(c).alias(c) for c in schema if c not in keys]
            tables.groupBy(*keys).agg(*sums).where(F.col("count") >= least).write.parquet(_url(target))
            found = [pl.scan_parquet(f, glob=False) for f in sorted(target.glob("*.parquet"))]
            empty = pl.LazyFrame(schema=schema)
            # Spark has fewer types than polars
            return pl.concat(
                [empty, *(f.select(pl.col(n).cast(t) for n, t in schema.items()) for f in found)]
            ).collect()
        except PySparkException as e:
            raise RuntimeError(f"Spark: {one_line(e)}") from e
        finally:
            _remove(target)


def _remove(folder: Path) -> None:
    """A task of a job that has failed or was cancelled may still write: the folder is not empty once more."""
    until = time.monotonic() + STOPPING_SECONDS
    while folder.exists() and time.monotonic() < until:
        shutil.rmtree(folder, ignore_errors=True)
        if folder.exists():
            time.sleep(LOOK_EVERY_SECONDS)


def _in_order(job: Job, outcomes: Any, items: int, advance: Advance) -> Iterator[Outcome]:
    """Each item's, once it is done; ends early where the job does."""
    done: dict[int, Outcome] = {}
    seen = 0
    for number in range(items):
        while number not in done:
            ended = not job.is_alive()  # asked first: an ended job has told all of its outcomes
            for n, rows, outcome in outcomes.value[seen:]:
                seen += 1
                if n not in done:
                    advance(rows)
                done[n] = outcome
            if number not in done:
                if ended:
                    return
                job.join(LOOK_EVERY_SECONDS)
        yield done[number]


def start(config: EngineConfig) -> SparkSession:
    """The session that is there, or a new one."""
    options = dict(flat(config.options))
    local = str(config.master).startswith("local")
    defaults: dict[str, bool | float | int | str | None] = {
        "spark.log.level": "ERROR",
        "spark.ui.showConsoleProgress": "false",
    }
    defaults |= {"spark.executorEnv.POLARS_MAX_THREADS": options.get("spark.task.cpus", "1")}
    if local:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        defaults |= {"spark.ui.enabled": "false", "spark.driver.host": "localhost"}
        defaults |= {"spark.driver.bindAddress": "127.0.0.1"}
    # a task writes files under names of its own, once
    given = defaults | options | {"spark.speculation": "false"}
    builder = SparkSession.Builder().appName("recsys").config(map=given)
    try:
        return (builder.master(config.master) if config.master else builder).getOrCreate()
    except Exception as e:
        hint = f"it needs Java 17, and engine.master or spark-submit's; {DOCS}"
        raise UserError(f"engine=spark: Spark does not start ({one_line(e)}): {hint}") from e


def flat(options: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """engine.options.spark.executor.memory=8g comes as mappings of mappings."""
    for name, value in options.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", str(value).lower() if isinstance(value, bool) else str(value)


def _url(file: Path) -> str:
    """Of the machines' own file system, whatever Spark's default; its globs escaped."""
    return "file://" + "".join(f"\\{c}" if c in "\\{}[]*?^" else c for c in str(file.absolute()))
