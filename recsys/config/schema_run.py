"""Schemas of a training config except its data: sharding, optimizers, trainer, metrics, sweep."""

from dataclasses import dataclass, field
from typing import Any

from omegaconf import MISSING

from recsys.config.schema_data import DataConfig, EngineConfig


@dataclass
class TableRule:
    """How matching tables are sharded. A null key keeps the setting for all tables.

    A rule matches by its name, a table's or a glob ("cat_*"), or by `match` if that is set. The limits narrow it
    further.
    """

    match: str | None = None
    min_rows: int | None = None
    max_rows: int | None = None
    min_bytes: int | None = None  # bytes of the weights: rows x dim x 4
    max_bytes: int | None = None
    types: list[str] | None = None
    kernels: list[str] | None = None
    column_block: int | None = None
    cache_load_factor: float | None = None


@dataclass
class ShardingConfig:
    """The plan types and kernels that the planner may choose from."""

    types: list[str] = field(default_factory=list)  # values of TorchRec's ShardingType; empty: all
    kernels: list[str] = field(default_factory=list)  # fused | fused_uvm | fused_uvm_caching; empty: fused
    column_block: int | None = None  # column-wise: columns of a shard; null: dim / world size
    cache_load_factor: float = 0.2  # fused_uvm_caching: share of a table's rows that the GPU caches
    cache_hit_rate: float | None = None  # instead: choose each table's load factor so that this share of lookups hits
    hbm_gib: float | None = None  # a device's memory, before TorchRec's reserve of 15%; null: all of it
    padding: str = "16"  # off | 16 | 64 | 128: pad rows to a multiple of so many bytes
    per_table: dict[str, Any] = field(default_factory=dict)  # TableRules by name; later rules override earlier ones


@dataclass
class SparseOptimConfig:
    """The optimizer fused into the embeddings' backward."""

    name: str = "rowwise_adagrad"  # rowwise_adagrad | adagrad | adam | sgd | partial_rowwise_adam
    lr: float = 0.1
    eps: float = 1e-8
    beta1: float = 0.9
    beta2: float = 0.999
    weight_decay: float = 0.0  # L2, on the rows that a batch touches
    clip: float | None = None  # bound on each number of a looked-up row's gradient, before rows are summed


@dataclass
class OptimConfig:
    dense: Any = MISSING
    sparse: SparseOptimConfig = field(default_factory=SparseOptimConfig)
    scheduler: Any = (
        None  # a torch.optim.lr_scheduler or one of recsys.training.schedules, for dense weights and tables
    )
    interval: str = "validation"  # validation | step: what the scheduler counts
    clip_norm: float | None = None  # largest norm of all dense gradients together; for tables: sparse.clip
    ema: float | None = None  # decay of an average of the dense weights, such as 0.999, to predict with


@dataclass
class EarlyStoppingConfig:
    """Stop after `patience` validations without improvement; null: never."""

    monitor: str | None = None  # null: validation/auc, or validation/ndcg@10 for retrieval models
    mode: str | None = None  # min | max; null: whichever is better for this metric
    patience: int | None = None


@dataclass
class TrainerConfig:
    accelerator: str = "auto"  # auto | cpu | gpu
    devices: int = 1  # processes on this machine
    max_epochs: int = 1
    max_steps: int = -1
    max_time: str | None = None  # DD:HH:MM:SS; then the run validates, tests and can be resumed
    batch_size: int = 2048  # rows of a step, over all processes
    accumulate: int = 1  # batches whose gradients are summed before a step
    eval_batch_size: int = 8192
    precision: str = "32-true"
    log_every_n_steps: int = 50
    threads: int | None = None  # intra-op threads of a process; null: the cores divided by the processes
    timeout_minutes: float = 30.0  # how long a rank waits for the others before it gives up
    validate_every: int = 1  # epochs
    validate_every_n_steps: int | None = None  # batches, instead
    early_stopping: EarlyStoppingConfig = field(default_factory=EarlyStoppingConfig)


@dataclass
class LoaderConfig:
    shuffle: bool = True
    buffer_rows: int = 262_144  # rows shuffled together; memory grows with this, not with the data


@dataclass
class CheckpointConfig:
    every_n_steps: int | None = None
    every_minutes: float | None = 10.0
    keep_best: int = 1  # best-N: the best validation so far, and earlier bests
    keep_last: int = 1  # step-N: the newest ones
    monitor: str | None = None  # null: validation/auc, or validation/ndcg@10 for retrieval models
    mode: str | None = None  # min | max; null: whichever is better for this metric


@dataclass
class MetricsConfig:
    """How ranking models are measured."""

    gauc: str | None = None  # sparse feature, such as the user: AUC within each of its values
    slices: list[str] = field(default_factory=list)  # features: metrics.json has metrics for each of their values
    slice_values: int = 20  # how many values, the most frequent ones
    bins: int = 20  # bins of the calibration error
    exact_rows: int = 20_000_000  # beyond so many, AUC uses binned scores; its error is reported
    predictions: bool = True  # keep the test rows' predictions or target ranks for recsys.report


@dataclass
class ProtocolConfig:
    """How retrieval models are measured: the items that targets of held-out rows are ranked against."""

    candidates: list[str] = field(default_factory=lambda: ["full"])  # full | uniform | popularity, or several
    k: list[int] = field(default_factory=lambda: [5, 10, 20])
    negatives: int = 100  # uniform, popularity: sampled for each row, outside its targets and history
    filter_history: bool = True  # full: leave out the items of the history
    seed: int = 0  # of the sampling


@dataclass
class DebugConfig:
    """Short runs that show whether something works and where its time goes."""

    name: str = "none"
    train_batches: int | None = None  # only the first batches of an epoch
    eval_batches: int | None = None
    profile_steps: int = 0


@dataclass
class SweepConfig:
    """python -m recsys.train -m: many trials. A run's own config does not contain it."""

    method: str = "grid"  # grid | random | optuna
    trials: int | None = None  # random, optuna; a grid tries all combinations
    metric: str | None = None  # validation/NAME or test/NAME; null: checkpoint.monitor
    direction: str | None = None  # maximize | minimize; null: the metric's own
    jobs: int = 1  # runs at once
    seed: int = 0  # random, optuna
    prune: bool = False  # optuna: end trials early that are worse than the median
    launcher: str = "local"  # local: processes on this machine | slurm: jobs of a cluster
    slurm: dict[str, Any] = field(default_factory=dict)  # submitit's parameters: partition, gpus_per_node, timeout_min


@dataclass
class TrainConfig:
    """python -m recsys.train"""

    data: DataConfig = MISSING
    model: Any = MISSING
    loss: Any = None  # null: binary cross-entropy; retrieval models need one
    metrics: MetricsConfig = field(default_factory=MetricsConfig)
    protocol: ProtocolConfig = field(default_factory=ProtocolConfig)
    sharding: ShardingConfig = field(default_factory=ShardingConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    loader: LoaderConfig = field(default_factory=LoaderConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    debug: DebugConfig = field(default_factory=DebugConfig)
    sweep: SweepConfig = field(default_factory=SweepConfig)
    logger: Any = None  # a mapping of names to loggers; CSV is always written
    seed: int = 0
    run_dir: str | None = None  # null: a new folder under outputs/
    resume: str | None = None  # a run's folder to resume; auto: resume run_dir if it holds a run
