"""Who goes through the chunks: this machine's threads. Other engines do the same on more machines (spark.py)."""

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol, TypeVar

import polars as pl

from recsys.config.schema_data import DataConfig, EngineConfig
from recsys.data.transforms import summed
from recsys.errors import UserError, did_you_mean

Item = TypeVar("Item")
Result = TypeVar("Result")
Advance = Callable[[float], None]
CORES_A_CHUNK = 8  # that reading one keeps busy
ENGINES = ("polars", "spark")


class Engine(Protocol):
    """What preparing asks of the machines that it runs on. Files are the only thing that they share."""

    def map(
        self,
        function: Callable[[Item, Advance], Result],
        items: Sequence[Item],
        advance: Advance,
        *,
        reads: bool = False,
    ) -> Iterator[Result]:
        """function(item, advance) of every item, in their order. reads: it keeps several cores busy by itself."""

    def total(self, files: Sequence[Path], keys: Sequence[str], least: int) -> pl.DataFrame:
        """`summed` over Parquet files of counts."""


class OneMachine:
    """polars, in this process."""

    def map(
        self,
        function: Callable[[Item, Advance], Result],
        items: Sequence[Item],
        advance: Advance,
        *,
        reads: bool = False,
    ) -> Iterator[Result]:
        cores = os.cpu_count() or 1
        threads = max(1, cores // CORES_A_CHUNK) if reads else max(2, cores // 2)
        with ThreadPoolExecutor(threads, thread_name_prefix="chunk") as pool:
            waiting: deque[Future[Result]] = deque()
            try:
                for item in items:
                    waiting.append(pool.submit(function, item, advance))
                    if len(waiting) > threads:
                        yield waiting.popleft().result()
                while waiting:
                    yield waiting.popleft().result()
            finally:
                for future in waiting:
                    future.cancel()

    def total(self, files: Sequence[Path], keys: Sequence[str], least: int) -> pl.DataFrame:
        return summed(pl.scan_parquet(list(files), glob=False), keys, least).collect(engine="streaming")


def check_engine(config: EngineConfig) -> None:
    if config.name not in ENGINES:
        raise UserError(f"engine.name={config.name}: unknown{did_you_mean(config.name, ENGINES)}")
    if config.name == "polars" and (config.master is not None or config.options):
        raise UserError("engine.master and engine.options are of engine=spark")
    if config.name == "spark" and find_spec("pyspark") is None:
        raise UserError("engine=spark needs PySpark: pip install recsys[spark] (in a checkout: uv sync --extra spark)")


@contextmanager
def engine_of(config: EngineConfig, data: DataConfig) -> Iterator[Engine]:
    """The engine that the config names, for as long as it is needed."""
    check_engine(config)
    if config.name == "polars":
        yield OneMachine()
        return
    from recsys.data.prepare.spark import Spark

    spark = Spark(config, Path(data.prepared))
    try:
        yield spark
    finally:
        spark.close()
