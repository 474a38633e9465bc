"""Engines, which call a function on every chunk: OneMachine uses threads here, Spark (spark_engine.py) a cluster."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

import polars as pl
import pyarrow.parquet as pq

from recsys.base.cores import threads_of
from recsys.data.features.fit import sum_tables
from recsys.data.raw.text import in_order

Item = TypeVar("Item")
Result = TypeVar("Result")
Advance = Callable[[float], None]  # called with the number of further rows that are done
Function = Callable[[Item, Advance], Result]
CORES_PER_CHUNK = 8  # cores that reading one chunk keeps busy
PART_ROWS = 1 << 22  # rows of counts that are summed at once
SAMPLES_PER_PART = 1 << 10  # so that parts differ in size by a tenth
ENGINES = ("polars", "spark")


class Engine(ABC):
    """Runs the passes of preparing, on one machine or several. The machines share nothing but files."""

    @abstractmethod
    def map(
        self, function: Function[Item, Result], items: Sequence[Item], advance: Advance, *, reads: bool = False
    ) -> Generator[Result, None, None]:
        """Yield function(item, advance) for every item, in order.

        Args:
            function: function to call; it must be picklable.
            items: its first arguments.
            advance: reports progress.
            reads: the function reads a chunk, and so keeps several cores busy by itself.
        """

    def total(self, files: Sequence[Path], keys: Sequence[str], least: int) -> pl.DataFrame:
        """Sum Parquet files of counts, as `sum_tables` does. The rows are in the order of `keys`.

        Memory is that of the result and of PART_ROWS rows: many rows are written by ranges of the first key, and summed
        range by range.
        """
        tables = pl.scan_parquet(list(files), glob=False)
        rows = sum(pq.read_metadata(f).num_rows for f in files)
        if rows <= PART_ROWS:
            return sum_tables(tables, keys, least).collect(engine="streaming").sort(keys)
        key = pl.col(keys[0])
        some = tables.select(key.gather_every(PART_ROWS // SAMPLES_PER_PART)).collect(engine="streaming").to_series()
        bounds = some.sort().gather_every(SAMPLES_PER_PART, SAMPLES_PER_PART).unique(maintain_order=True)
        part = key.map_batches(bounds.search_sorted, return_dtype=pl.UInt32, is_elementwise=True).alias("part")
        with TemporaryDirectory(dir=files[0].parent) as folder:
            tables.sink_parquet(pl.PartitionBy(folder, key=part, include_key=False), compression="lz4")
            parts = [list(Path(folder, f"part={i}").glob("*.parquet")) for i in range(len(bounds) + 1)]
            sums = (
                sum_tables(pl.scan_parquet(p, glob=False, hive_partitioning=False), keys, least) for p in parts if p
            )
            return pl.concat([s.collect(engine="streaming").sort(keys) for s in sums]).set_sorted(keys[0])


class OneMachine(Engine):
    """Runs the passes in threads of this process."""

    def map(
        self, function: Function[Item, Result], items: Sequence[Item], advance: Advance, *, reads: bool = False
    ) -> Generator[Result, None, None]:
        cores = threads_of()
        threads = max(1, cores // CORES_PER_CHUNK) if reads else max(2, cores // 2)
        return in_order(lambda item: function(item, advance), items, threads, "chunk")
