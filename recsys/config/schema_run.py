"""Schemas of a training config beside its data: sharding, optimizers, trainer, metrics, sweep."""

from dataclasses import dataclass, field
from typing import Any

from omegaconf import MISSING

from recsys.config.schema_data import DataConfig, EngineConfig


@dataclass
class TableRule:
    """How the tables that match it are sharded; what is null is as for all tables.

    A rule matches by name: a table's, or a glob ("cat_*"). `match` gives the name where the rule's own is free;
    the limits narrow it further.
    """

    match: str | None = None
    min_rows: int | None = None
    max_rows: int | None = None
    min_bytes: int | None = None  # of the weights: rows x dim x 4
    max_bytes: int | None = None
    types: list[str] | None = None
    kernels: list[str] | None = None
    column_block: int | None = None
    cache_load_factor: float | None = None


@dataclass
class ShardingConfig:
    """Which plan types and kernels the planner may choose from."""

    types: list[str] = field(default_factory=list)  # of TorchRec's ShardingType; empty: all of them
    kernels: list[str] = field(default_factory=list)  # fused, fused_uvm, fused_uvm_caching; empty: fused
    column_block: int | None = None  # column-wise: columns a shard; by default dim / world size
    cache_load_factor: float = 0.2  # fused_uvm_caching: the share of a table's rows that the GPU caches
    cache_hit_rate: float | None = None  # the load factor by table, from its rows' frequencies, instead
    hbm_gib: float | None = None  # of a device's memory, before TorchRec's reserve of 15%; null: all that it has
    padding: str = "16"  # off | 16 | 64 | 128: bytes that a row of a table is a multiple of
    per_table: dict[str, Any] = field(default_factory=dict)  # TableRules by name; a later one overrides an earlier


@dataclass
class SparseOptimConfig:
    """The optimizer fused into the embeddings' backward."""

    name: str = "rowwise_adagrad"  # rowwise_adagrad | adagrad | adam | sgd | partial_rowwise_adam
    lr: float = 0.1
    eps: float = 1e-8
    beta1: float = 0.9
    beta2: float = 0.999
    weight_decay: float = 0.0  # L2, of the rows a batch touches
    clip: float | None = None  # each number of the gradient that a looked-up row gets from a bag, within -clip ... clip


@dataclass
class OptimConfig:
    dense: Any = MISSING
    sparse: SparseOptimConfig = field(default_factory=SparseOptimConfig)
    scheduler: Any = (
        None  # a torch.optim.lr_scheduler or one of recsys.training.schedules, over dense and sparse together
    )
    interval: str = "validation"  # or step: what the scheduler counts
    clip_norm: float | None = None  # of all dense gradients together; tables: sparse.clip
    ema: float | None = None  # the decay of an average of the dense weights, such as 0.999, which is then what predicts


@dataclass
class EarlyStoppingConfig:
    """Stop after `patience` validations that were no better; null: never."""

    monitor: str | None = None  # null: validation/auc; of models that retrieve, validation/ndcg@10
    mode: str = "max"
    patience: int | None = None


@dataclass
class TrainerConfig:
    accelerator: str = "auto"  # auto | cpu | gpu
    devices: int = 1  # processes on this machine
    max_epochs: int = 1
    max_steps: int = -1
    max_time: str | None = None  # DD:HH:MM:SS, of this command; then the run validates, tests and can be gone on with
    batch_size: int = 2048  # rows a step, over all processes
    accumulate: int = 1  # batches whose gradients are one dense step; tables take theirs with each batch
    eval_batch_size: int = 8192
    precision: str = "32-true"
    log_every_n_steps: int = 50
    threads: int | None = None  # intra-op threads a process; by default the cores shared out
    timeout_minutes: float = 30.0  # how long a rank waits for the others before it takes one of them for gone
    validate_every: int = 1  # epochs
    validate_every_n_steps: int | None = None  # batches, instead
    early_stopping: EarlyStoppingConfig = field(default_factory=EarlyStoppingConfig)


@dataclass
class LoaderConfig:
    shuffle: bool = True
    buffer_rows: int = 262_144  # rows shuffled together; memory grows with it, not with the data


@dataclass
class CheckpointConfig:
    every_n_steps: int | None = None
    every_minutes: float | None = 10.0
    keep_best: int = 1  # best-N: the best validation so far, and those that were before it
    keep_last: int = 1  # step-N
    monitor: str | None = None  # null: validation/auc; of models that retrieve, validation/ndcg@10
    mode: str = "max"


@dataclass
class MetricsConfig:
    """How models that predict are measured."""

    gauc: str | None = None  # AUC within each value of this sparse feature, such as the user
    slices: list[str] = field(default_factory=list)  # features by whose values metrics.json tells metrics
    slice_values: int = 20  # as many, the most frequent ones
    bins: int = 20  # of the calibration error
    exact_rows: int = 20_000_000  # of more, AUC is of binned scores, its error stated
    predictions: bool = True  # keep those of the test rows, or where targets stand, for recsys.report


@dataclass
class ProtocolConfig:
    """How models that retrieve are measured: what the targets of held-out rows are ranked against."""

    candidates: list[str] = field(default_factory=lambda: ["full"])  # full, uniform, popularity
    k: list[int] = field(default_factory=lambda: [5, 10, 20])
    negatives: int = 100  # of uniform and popularity: drawn for each row, neither targets nor of its history
    filter_history: bool = True  # full: without what came before
    seed: int = 0  # of the draws


@dataclass
class DebugConfig:
    """Short runs that tell whether something works, and where its time goes."""

    name: str = "none"
    train_batches: int | None = None  # of an epoch, the first ones
    eval_batches: int | None = None
    profile_steps: int = 0


@dataclass
class SweepConfig:
    """python -m recsys.train -m: many trials. No part of a run's own config."""

    method: str = "grid"  # grid | random | optuna
    trials: int | None = None  # of random and optuna; a grid has all its combinations
    metric: str | None = None  # validation/NAME or test/NAME; null: the metric that tells a run's best checkpoint
    direction: str | None = None  # maximize | minimize; null: minimize logloss, ne and ece, maximize others
    jobs: int = 1  # runs at once
    seed: int = 0  # of random's and optuna's draws
    prune: bool = False  # optuna: end trials early that are below the median of the others
    launcher: str = "local"  # local: processes of this machine | slurm: jobs of a cluster
    slurm: dict[str, Any] = field(default_factory=dict)  # submitit's parameters: partition, gpus_per_node, timeout_min


@dataclass
class TrainConfig:
    """python -m recsys.train"""

    data: DataConfig = MISSING
    model: Any = MISSING
    loss: Any = None  # of models that retrieve
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
    run_dir: str | None = None  # by default a new folder under outputs/
    resume: str | None = None  # a run's folder to go on with; auto: run_dir, where it holds a run
