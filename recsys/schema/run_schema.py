"""Schemas of a training config except its data: sharding, optimizers, trainer, metrics, sweep."""

import re
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, NonNegativeFloat, PositiveFloat, model_validator
from pydantic.dataclasses import dataclass

from recsys.base.ranges import FLOAT32_MAX, Count, Counts, Natural
from recsys.schema.data_schema import DataConfig, EngineConfig, HeardConfig
from recsys.schema.fields import CHECKED, LocalRun, Node, Nodes, Place, field

MAX_ROWS = 2**24  # of a batch; more do not fit into the memory of any device
MAX_BYTES = 2**63 - 1
NumberType = Literal["fp32", "fp16", "bf16", "int8"]
Kernel = Literal["fused", "fused_uvm", "fused_uvm_caching"]
# YAML reads 64 as a number, and off as false
Padding = Annotated[
    Literal["off", "16", "64", "128"],
    BeforeValidator(lambda value: "off" if value is False else str(value) if type(value) is int else value),
]
Rankings = Annotated[list[Literal["full", "uniform", "popularity"]], Field(min_length=1)]
TableSharding = Literal[  # values of TorchRec's ShardingType, and none
    "none",
    "data_parallel",
    "table_wise",
    "row_wise",
    "column_wise",
    "table_row_wise",
    "table_column_wise",
    "grid_shard",
]


def seconds_of(max_time: str) -> float:
    """Return the seconds of DD:HH:MM:SS. Raises ValueError for any other text.

    >>> seconds_of("00:01:30:00")
    5400
    """
    if not (m := re.fullmatch(r"(\d+):(\d+):(\d+):(\d+)", max_time)):
        raise ValueError("must have the form DD:HH:MM:SS, such as 00:01:30:00")
    days, hours, minutes, seconds = map(int, m.groups())
    if not any((days, hours, minutes, seconds)):
        raise ValueError("leaves no time to train; set it above 0, or null for no limit")
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def _is_time(text: str) -> str:
    seconds_of(text)
    return text


@dataclass(config=CHECKED)
class TableRule:
    """How matching tables are sharded. A key that is null keeps the setting of `sharding`.

    A rule applies to the tables that match its name (a table's name or a glob such as "cat_*") or, if set, `match`. Of
    these, min_rows, max_rows, min_bytes and max_bytes select the tables of that size.
    """

    match: str | None = None
    min_rows: int | None = field(None, ge=0, le=MAX_BYTES)
    max_rows: int | None = field(None, ge=0, le=MAX_BYTES)
    min_bytes: int | None = field(None, "bytes of the weights: rows x dim x 4", ge=0, le=MAX_BYTES)
    max_bytes: int | None = field(None, ge=0, le=MAX_BYTES)
    types: list[TableSharding] | None = None
    kernels: list[Kernel] | None = None
    column_block: int | None = field(None, gt=0, multiple_of=4)
    cache_load_factor: float | None = field(None, gt=0, lt=1)


@dataclass(config=CHECKED)
class CommsConfig:
    """Number types in which devices exchange the vectors of tables."""

    forward: NumberType = field("fp32", "of vectors")
    backward: NumberType = field("fp32", "of their gradients")


@dataclass(config=CHECKED)
class ShardingConfig:
    """Sharding settings: the types and kernels that the planner may choose from, and limits."""

    types: list[TableSharding] = field(list, "values of TorchRec's ShardingType; empty: all")
    kernels: list[Kernel] = field(list, "fused | fused_uvm | fused_uvm_caching; empty: fused")
    column_block: int | None = field(
        None, "column-wise: columns of a shard; null: dim / world size", gt=0, multiple_of=4
    )
    cache_load_factor: float | None = field(
        0.2,
        "fused_uvm_caching: share of a table's rows that the GPU caches; null: as many as the tables leave room for",
        gt=0,
        lt=1,
    )
    cache_hit_rate: float | None = field(
        None,
        "instead of cache_load_factor: choose each table's load factor so that this share of lookups hits the cache",
        gt=0,
        lt=1,
    )
    hbm_gib: PositiveFloat | None = field(None, "memory of a device, before TorchRec's reserve of 15%; null: all of it")
    comms: CommsConfig = field(CommsConfig)
    dedup: bool = field(False, "tables of unpooled lists: look up and exchange each id of a batch once")
    table_dtype: Literal["fp32", "fp16"] = field(
        "fp32", "type of the numbers in tables; on GPUs, fp16 is rounded stochastically"
    )
    padding: Padding = field("16", "pad table rows to a multiple of this many bytes")
    per_table: dict[str, TableRule] = field(dict, "rules by name; later rules override earlier ones")


@dataclass(config=CHECKED)
class SparseOptimConfig:
    """The optimizer fused into the embeddings' backward."""

    name: Literal["rowwise_adagrad", "adagrad", "adam", "sgd", "partial_rowwise_adam"] = "rowwise_adagrad"
    lr: NonNegativeFloat = field(0.1, "learning rate of the tables", le=FLOAT32_MAX)
    eps: NonNegativeFloat = field(1e-8, "added to the root in Adagrad's and Adam's denominators")
    beta1: float = field(0.9, "Adam: decay of the mean of gradients", ge=0, lt=1)
    beta2: float = field(0.999, "Adam: decay of the mean of squared gradients", ge=0, lt=1)
    weight_decay: NonNegativeFloat = field(0.0, "L2, on the rows that a batch touches")
    every_row: bool = field(
        False, "adam, partial_rowwise_adam: also update the rows that a batch does not touch, as torch.optim.Adam does"
    )
    clip: PositiveFloat | None = field(
        None,
        "maximum absolute value of each element of a looked-up row's gradient, before gradients of the same row "
        "are summed",
    )


@dataclass(config=CHECKED)
class OptimConfig:
    """Optimizers and learning-rate schedule."""

    dense: dict[str, Node] = field(
        ..., "a class of torch.optim as _target_, with its parameters; of all weights but the tables"
    )
    sparse: SparseOptimConfig = field(SparseOptimConfig)
    scheduler: dict[str, Node] | None = field(
        None, "a torch.optim.lr_scheduler or one of recsys.training.schedules, for dense weights and tables"
    )
    interval: Literal["validation", "step"] = field("validation", "what the scheduler counts")
    clip_norm: PositiveFloat | None = field(
        None, "maximum norm of all dense gradients together; sparse.clip limits the tables' gradients"
    )
    ema: float | None = field(
        None,
        "decay of a moving average of the dense weights, such as 0.999, which is used for evaluation and prediction",
        gt=0,
        lt=1,
    )

    @property
    def watches(self) -> bool:
        """Whether the schedule watches a metric, as schedule=plateau does."""
        return str((self.scheduler or {}).get("_target_", "")).endswith("ReduceLROnPlateau")

    @model_validator(mode="after")
    def check_interval(self) -> Self:
        """Raise ValueError if a schedule that steps once per validation is to step more often."""
        if self.interval == "step" and self.watches:
            raise ValueError("interval=step: schedule=plateau steps once per validation; set optim.interval=validation")
        return self


@dataclass(config=CHECKED)
class EarlyStoppingConfig:
    """Early stopping after `patience` validations without improvement; patience: null never stops.

    A training of one epoch always reads all rows.
    """

    monitor: str | None = field(None, "null: validation/auc, or validation/ndcg@10 for retrieval models")
    mode: Literal["min", "max"] | None = field(None, "null: whichever is better for this metric")
    patience: Natural | None = field(None, "validations without improvement after which training ends; null: never")


@dataclass(config=CHECKED)
class TrainerConfig:
    """Processes, batches and duration of the training."""

    accelerator: Literal["auto", "cpu", "gpu", "cuda"] = "auto"
    devices: Count = field(1, "processes on this machine")
    max_epochs: Count = field(1, "passes over the training rows")
    max_steps: Annotated[int, Field(ge=1, le=2**53)] | Literal[-1] = field(
        -1, "end after this many steps; -1: no limit"
    )
    max_time: Annotated[str, AfterValidator(_is_time)] | None = field(
        None, "DD:HH:MM:SS; when it is over, training stops, and the run is tested and can be resumed"
    )
    batch_size: int = field(
        2048, "rows per batch, over all processes; a step has batch_size x accumulate rows", ge=1, le=MAX_ROWS
    )
    accumulate: Count = field(1, "number of batches whose gradients are averaged for one step")
    eval_batch_size: int = field(
        8192, "rows, or queries, of a batch in evaluation, over all processes", ge=1, le=MAX_ROWS
    )
    precision: Literal["32-true", "bf16-mixed", "16-mixed", "auto"] | None = field(
        None,
        "32-true | bf16-mixed | 16-mixed | auto: bf16-mixed on GPUs since Ampere, CPUs with AMX and AMD's since Zen 4, "
        "else 32-true; null: as auto on GPUs, 32-true on CPUs",
    )
    loss_scale: PositiveFloat | None = field(None, "of 16-mixed; null: doubled and halved as gradients allow")
    tf32: bool | None = field(
        None,
        "multiply float32 matrices with 10 bits after the point, on the tensor cores of GPUs since Ampere; null: "
        "where trainer.precision is not 32-true",
    )
    recompute: bool = field(
        False,
        "compute the activations of a model's blocks again in the backward pass, which needs less memory and more time",
    )
    compile: bool | None = field(
        None,
        "torch.compile of the dense part, up to a minute once; null: in trainings of 10,000 steps or more on one "
        "GPU, of recsys's own ranking models without sequences, unless trainer.precision is 32-true",
    )
    cuda_graphs: bool | None = field(
        None, "launch the compiled kernels as CUDA graphs; null: on GPUs, unless trainer.accumulate is above 1"
    )
    pipeline: Literal["auto", "none", "base", "sparse_dist", "prefetch"] = field(
        "auto", "auto: sparse_dist on GPUs, none on CPUs"
    )
    log_every_n_steps: Count = field(50, "steps between two rows of metrics.csv")
    threads: int | None = field(
        None,
        "intra-op threads of a process; null: the cores that may be used (affinity mask, quota of a container) divided "
        "by the processes, OMP_NUM_THREADS at most",
        ge=1,
        le=4096,
    )
    save_on_interrupt: bool = field(False, "write a checkpoint after Ctrl-C or SIGTERM, before the run ends")
    timeout_minutes: PositiveFloat = field(30.0, "time that a rank waits for the others before it fails", le=1e6)
    validate_every: Count = field(1, "validate every N epochs")
    validate_every_n_steps: Count | None = field(None, "or validate every N batches; replaces validate_every")
    validate_from: float = field(0.0, "share of the planned steps before which nothing is validated", ge=0, lt=1)
    early_stopping: EarlyStoppingConfig = field(EarlyStoppingConfig)

    @model_validator(mode="after")
    def check_steps(self) -> Self:
        """Raise ValueError if keys of steps do not fit each other."""
        if self.cuda_graphs and self.compile is False:
            raise ValueError("cuda_graphs=true: graphs are made of compiled code; set trainer.compile=true, too")
        if self.cuda_graphs and self.accumulate > 1:
            why = f"a graph overwrites the gradients that trainer.accumulate={self.accumulate} keeps for a later batch"
            raise ValueError(f"cuda_graphs=true: {why}; set trainer.accumulate=1 or trainer.cuda_graphs=false")
        if self.validate_every_n_steps is not None and self.validate_every_n_steps % self.accumulate:
            raise ValueError(
                f"validate_every_n_steps={self.validate_every_n_steps}: must be a multiple of "
                f"trainer.accumulate={self.accumulate}, because checkpoints do not store accumulated gradients"
            )
        return self


@dataclass(config=CHECKED)
class LoaderConfig:
    """Loader of the training rows."""

    shuffle: bool = field(True, "whether training rows are read in another order in each epoch")
    buffer_rows: Count | None = field(
        None,
        "number of rows shuffled together, on which memory use depends; null: 262,144, or more rows of few columns",
    )
    balance_lists: bool = field(
        False,
        "spread rows by the lengths of their lists, so that all batches, and so all GPUs, have about as many ids "
        "to work on",
    )
    unknown: float = field(
        0.02,
        "share of ids that training replaces by the unknown id, so that new values get a vector that was "
        "trained; only where it has no training rows otherwise (min_count: 1) and values may be new",
        ge=0,
        lt=1,
    )
    keep_mb: Natural = field(
        1024,
        "MiB of rows that each process keeps in memory for later epochs, which decode only the others; 0 keeps none",
    )


@dataclass(config=CHECKED)
class CheckpointConfig:
    """Checkpoints: how often they are written, and how many are kept."""

    every_n_steps: Count | None = field(None, "steps between two checkpoints; null: by validations alone")
    every_minutes: PositiveFloat | None = field(10.0, "minutes between two checkpoints; null: none by time")
    keep_best: Count = field(1, "number of best-N checkpoints to keep")
    keep_last: Count = field(1, "number of step-N checkpoints to keep")
    mirror: Place | None = field(
        None, "URL or folder that each checkpoint and the run's other files are copied to; resume= fetches them"
    )
    monitor: str | None = field(None, "null: validation/auc, or validation/ndcg@10 for retrieval models")
    mode: Literal["min", "max"] | None = field(None, "null: whichever is better for this metric")


@dataclass(config=CHECKED)
class MetricsConfig:
    """Metrics settings."""

    gauc: str | None = field(None, "sparse feature, such as the user: AUC within each of its values")
    k: list[Count] = field(
        lambda: [5, 10],
        "k of the metrics of the order within groups, gndcg@k and gmrr@k; measured if data.group.together is set",
    )
    slices: list[str] = field(list, "features for whose values metrics.json has separate metrics")
    slice_values: Count = field(20, "maximum number of values per feature, the most frequent ones")
    bins: int = field(20, "number of bins of the calibration error", ge=1, le=1_000_000)
    exact_rows: int = field(
        20_000_000, "with more rows than this, AUC uses binned scores and its error bound is reported", ge=1, le=2**53
    )
    predictions: bool = field(True, "write the test rows' predictions or target ranks, which recsys.report needs")


@dataclass(config=CHECKED)
class ProtocolConfig:
    """Evaluation protocol of retrieval models: the items that targets of held-out rows are ranked against."""

    candidates: Rankings = field(lambda: ["full"], "full | uniform | popularity, or several")
    k: Counts = field(lambda: [5, 10, 20], "lengths of the lists that are measured")
    negatives: Count = field(
        100, "uniform, popularity: number of candidates sampled for each row, excluding its targets and history"
    )
    filter_history: bool = field(True, "full: exclude the items of the history, as in the lists")
    rank_repeats: bool = field(False, "full: rank a target that is in the history, as many papers do, not miss it")
    seed: Natural = field(0, "seed of the sampling")
    lists: list[str] = field(
        lambda: ["coverage", "gini", "novelty", "diversity", "popularity_lift"],
        "full: metrics of the lists of the best k candidates; [] leaves them out",
    )
    exposure: list[str] = field(list, "full: features of items; how often these lists show items with each value")


@dataclass(config=CHECKED)
class DebugConfig:
    """Debug settings: short runs that check that training works or profile it."""

    name: str = field("none", "the choice of debug=")
    train_batches: Count | None = field(None, "use only this many batches of an epoch (the first ones)")
    eval_batches: Count | None = field(None, "batches of each evaluation; null: all")
    profile_steps: Natural = field(0, "steps that the profiler records; 0: none")


@dataclass(config=CHECKED)
class SweepConfig:
    """Config of a sweep, `python -m recsys.train -m`: many trials. A run's own config does not contain it."""

    method: Literal["grid", "random", "optuna"] = "grid"
    trials: Count | None = field(None, "random, optuna; a grid tries all combinations")
    points: list[list[str]] | None = field(
        None, "lists of overrides, such as [model=dlrm, model.dim=32]: each is a value of one more axis"
    )
    metric: str | None = field(None, "validation/NAME or test/NAME; null: checkpoint.monitor")
    direction: Literal["maximize", "minimize"] | None = field(None, "null: the direction in which the metric is better")
    jobs: Count = field(1, "number of runs at the same time")
    seed: Natural = field(0, "random, optuna")
    prune: bool = field(False, "optuna: end trials early that are worse than the median")
    launcher: Literal["local", "slurm"] = field("local", "local: processes on this machine | slurm: jobs of a cluster")
    slurm: dict[str, Any] = field(dict, "submitit's parameters: partition, gpus_per_node, timeout_min")


@dataclass(config=CHECKED, kw_only=True)
class TrainConfig(HeardConfig):
    """Config of `python -m recsys.train`."""

    data: DataConfig
    model: dict[str, Node] = field(..., "a class as _target_, with its parameters: a file of conf/model")
    loss: dict[str, Node] | None = field(None, "null: binary cross-entropy; retrieval models need one")
    dims: Node = field(None, "columns of tables: auto, by their rows, or {GLOB: columns or auto}; null: model.dim")
    numeric: dict[str, Node] | None = field(
        None, "embeds the dense features of a ranking model; null: the model reads the numbers themselves"
    )
    metrics: MetricsConfig = field(MetricsConfig)
    protocol: ProtocolConfig = field(ProtocolConfig)
    sharding: ShardingConfig = field(ShardingConfig)
    optim: OptimConfig
    trainer: TrainerConfig = field(TrainerConfig)
    loader: LoaderConfig = field(LoaderConfig)
    checkpoint: CheckpointConfig = field(CheckpointConfig)
    engine: EngineConfig = field(EngineConfig)
    debug: DebugConfig = field(DebugConfig)
    sweep: SweepConfig = field(SweepConfig)
    calibration: Literal["none", "platt", "isotonic"] = field(
        "none",
        "none | platt | isotonic: calibrate the probabilities on the validation rows, at the end of the training",
    )
    logger: Nodes = field(dict, "a mapping of names to loggers; CSV is always written")
    seed: int = field(
        0, "seeds the initial weights, the order of rows, dropout and the sampling of negatives", ge=0, le=2**32 - 1
    )
    run_dir: LocalRun | None = field(None, "null: a new folder under outputs/")
    resume: Place | None = field(
        None, "a run to resume: its folder, or the URL of its mirror; auto: resume run_dir if it contains a run"
    )
    start_from: Place | None = field(
        None, "a run, or its mirror, whose config, weights and states a new run goes on from; new values get rows"
    )
    resume_on_changed_data: bool = field(False, "resume although the raw files have changed, with the run's transforms")
