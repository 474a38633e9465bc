"""Check and open the engine of a config: threads of this machine, or Spark."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from recsys.base.errors import UserError
from recsys.base.packages import check_extra
from recsys.data.features.resolved_data import ResolvedData
from recsys.data.prepare.engine import Engine, OneMachine
from recsys.schema.data_schema import EngineConfig

ENGINES = ("polars", "spark")


def check_engine(config: EngineConfig) -> None:
    """Check the config of an engine, and that its packages are installed. Raises UserError if not."""
    if config.name == "polars" and (config.master is not None or config.options):
        raise UserError("engine.master, engine.options: apply only to engine=spark; this is engine=polars")
    if config.name == "spark":
        check_extra("spark", "engine=spark")


@contextmanager
def open_engine(config: EngineConfig, data: ResolvedData) -> Iterator[Engine]:
    """Yield the engine that the config names; close it at the end."""
    check_engine(config)
    if config.name == "polars":
        yield OneMachine()
        return
    from recsys.data.prepare.spark_engine import Spark  # pyspark is an extra

    spark = Spark(config, Path(data.prepared))
    try:
        yield spark
    finally:
        spark.close()
