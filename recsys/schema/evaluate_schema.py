"""Schema of `python -m recsys.evaluate`."""

from pydantic.dataclasses import dataclass

from recsys.base.ranges import Count, Counts, Natural
from recsys.schema.fields import CHECKED, Places, field
from recsys.schema.run_schema import MAX_ROWS, Rankings, ShardingConfig


@dataclass(config=CHECKED)
class EvaluateTrainerConfig:
    """Trainer settings that replace the run's; null keeps the run's setting."""

    accelerator: str | None = None
    devices: Count | None = None
    eval_batch_size: int | None = field(None, ge=1, le=MAX_ROWS)
    threads: int | None = field(None, ge=1, le=4096)


@dataclass(config=CHECKED)
class EvaluateProtocolConfig:
    """Protocol settings that replace the run's; null keeps the run's setting."""

    candidates: Rankings | None = None
    k: Counts | None = None
    negatives: Count | None = None
    filter_history: bool | None = None
    rank_repeats: bool | None = None
    seed: Natural | None = None
    lists: list[str] | None = None
    exposure: list[str] | None = None


@dataclass(config=CHECKED)
class EvaluateMetricsConfig:
    """Metric settings that replace the run's; null keeps the run's setting."""

    gauc: str | None = None
    k: list[Count] | None = None
    slices: list[str] | None = None
    slice_values: Count | None = None
    bins: int | None = field(None, ge=1, le=1_000_000)
    exact_rows: int | None = field(None, ge=1, le=2**53)


@dataclass(config=CHECKED)
class ImportanceConfig:
    """Measure which raw columns a ranking model needs: importance=true, which is importance.on=true, or another key."""

    on: bool = field(False, "importance=true: measure it")
    repeats: Count = field(5, "how often each column is shuffled", le=1000)
    rows: Count = field(100_000, "about so many rows are shuffled, spread over the split")
    together: list[list[str]] = field(list, "columns that are shuffled at once: [[city,zip]]")
    seed: Natural = field(0, "seed of the shuffles")


@dataclass(config=CHECKED)
class EvaluateConfig:
    """Config of `python -m recsys.evaluate`."""

    run: Places = field(..., "a run or, to average their predictions, a list of runs: folders, or URLs of mirrors")
    split: str = field("test", "train | validation | test")
    checkpoint: str = field("best", "best | last | a folder under the run's checkpoints/")
    trainer: EvaluateTrainerConfig = field(EvaluateTrainerConfig)
    protocol: EvaluateProtocolConfig = field(EvaluateProtocolConfig)
    metrics: EvaluateMetricsConfig = field(EvaluateMetricsConfig)
    sharding: ShardingConfig | None = field(None, "null: the run's sharding")
    importance: ImportanceConfig = field(ImportanceConfig, "true: which raw columns a model needs")
