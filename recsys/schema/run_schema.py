"""Schemas of a training config except its data: sharding, optimizers, trainer, metrics, sweep."""

from dataclasses import dataclass, field
from typing import Any

from omegaconf import MISSING

from recsys.ranges import FLOAT32_MAX, folder, number
from recsys.schema.data_schema import DataConfig, EngineConfig

MOST_ROWS = 2**24  # of a batch; more do not fit into the memory of any device
MOST_BYTES = 2**63 - 1


@dataclass
class TableRule:
    """How matching tables are sharded. A key that is null keeps the setting of `sharding`.

    A rule applies to the tables that match its name (a table's name or a glob such as "cat_*") or, if set, `match`. Of
    these, min_rows, max_rows, min_bytes and max_bytes select the tables of that size.
    """

    match: str | None = None
    min_rows: int | None = number(None, at_least=0, limit=MOST_BYTES)
    max_rows: int | None = number(None, at_least=0, limit=MOST_BYTES)
    min_bytes: int | None = number(None, at_least=0, limit=MOST_BYTES)  # bytes of the weights: rows x dim x 4
    max_bytes: int | None = number(None, at_least=0, limit=MOST_BYTES)
    types: list[str] | None = None
    kernels: list[str] | None = None
    column_block: int | None = None
    cache_load_factor: float | None = number(None, above=0, below=1)


@dataclass
class CommsConfig:
    """Number types in which devices exchange the vectors of tables: fp32 | fp16 | bf16 | int8."""

    forward: str = "fp32"  # of vectors
    backward: str = "fp32"  # of their gradients


@dataclass
class ShardingConfig:
    """Sharding settings: the types and kernels that the planner may choose from, and limits."""

    types: list[str] = field(default_factory=list)  # values of TorchRec's ShardingType; empty: all
    kernels: list[str] = field(default_factory=list)  # fused | fused_uvm | fused_uvm_caching; empty: fused
    column_block: int | None = None  # column-wise: columns of a shard; null: dim / world size
    # fused_uvm_caching: share of a table's rows that the GPU caches
    cache_load_factor: float = number(0.2, above=0, below=1)
    # instead of cache_load_factor: choose each table's load factor so that this share of lookups hits the cache
    cache_hit_rate: float | None = number(None, above=0, below=1)
    # memory of a device, before TorchRec's reserve of 15%; null: all of it
    hbm_gib: float | None = number(None, above=0)
    comms: CommsConfig = field(default_factory=CommsConfig)
    # fp32 | fp16: type of the numbers in tables; on GPUs, fp16 is rounded stochastically
    table_dtype: str = "fp32"
    padding: str = "16"  # off | 16 | 64 | 128: pad table rows to a multiple of this many bytes
    per_table: dict[str, Any] = field(default_factory=dict)  # TableRules by name; later rules override earlier ones


@dataclass
class SparseOptimConfig:
    """The optimizer fused into the embeddings' backward."""

    name: str = "rowwise_adagrad"  # rowwise_adagrad | adagrad | adam | sgd | partial_rowwise_adam
    lr: float = number(0.1, at_least=0, limit=FLOAT32_MAX)  # learning rate of the tables
    eps: float = number(1e-8, at_least=0)  # added to the root in Adagrad's and Adam's denominators
    beta1: float = number(0.9, at_least=0, below=1)  # Adam: decay of the mean of gradients
    beta2: float = number(0.999, at_least=0, below=1)  # Adam: decay of the mean of squared gradients
    weight_decay: float = number(0.0, at_least=0)  # L2, on the rows that a batch touches
    # adam, partial_rowwise_adam: also update the rows that a batch does not touch, as torch.optim.Adam does
    every_row: bool = False
    # maximum absolute value of each element of a looked-up row's gradient, before gradients of the same row are summed
    clip: float | None = number(None, above=0)


@dataclass
class OptimConfig:
    """Optimizers and learning-rate schedule."""

    dense: Any = MISSING  # a class of torch.optim as _target_, with its parameters; of all weights but the tables
    sparse: SparseOptimConfig = field(default_factory=SparseOptimConfig)
    scheduler: Any = (  # a schedule of conf/schedule
        None  # a torch.optim.lr_scheduler or one of recsys.training.schedules, for dense weights and tables
    )
    interval: str = "validation"  # validation | step: what the scheduler counts
    # maximum norm of all dense gradients together; sparse.clip limits the tables' gradients
    clip_norm: float | None = number(None, above=0)
    # decay of a moving average of the dense weights, such as 0.999, which is used for evaluation and prediction
    ema: float | None = number(None, above=0, below=1, example=0.999)


@dataclass
class EarlyStoppingConfig:
    """Early stopping after `patience` validations without improvement; patience: null never stops.

    A training of one epoch always reads all rows.
    """

    monitor: str | None = None  # null: validation/auc, or validation/ndcg@10 for retrieval models
    mode: str | None = None  # min | max; null: whichever is better for this metric
    # validations without improvement after which training ends; null: never
    patience: int | None = number(None, at_least=0)


@dataclass
class TrainerConfig:
    """Processes, batches and duration of the training."""

    accelerator: str = "auto"  # auto | cpu | gpu
    devices: int = number(1, at_least=1)  # processes on this machine
    max_epochs: int = number(1, at_least=1)  # passes over the training rows
    # end after this many steps; null: no limit
    max_steps: int = number(-1, at_least=1, limit=2**53, special=(-1, "no limit"))
    # DD:HH:MM:SS; when it is over, training stops, and the run is tested and can be resumed
    max_time: str | None = None
    # rows per batch, over all processes; a step has batch_size x accumulate rows
    batch_size: int = number(2048, at_least=1, limit=MOST_ROWS)
    accumulate: int = number(1, at_least=1)  # number of batches whose gradients are averaged for one step
    # rows, or queries, of a batch in evaluation, over all processes
    eval_batch_size: int = number(8192, at_least=1, limit=MOST_ROWS)
    # 32-true | bf16-mixed | 16-mixed | auto: bf16-mixed where the processor multiplies bfloat16; null: as auto on GPUs,
    # 32-true on CPUs
    precision: str | None = None
    loss_scale: float | None = number(None, above=0)  # of 16-mixed; null: doubled and halved as gradients allow
    # multiply float32 matrices with 10 bits after the point, on the tensor cores of GPUs since Ampere; null: where
    # trainer.precision is not 32-true
    tf32: bool | None = None
    # compute the activations of a model's blocks again in the backward pass, which needs less memory and more time
    recompute: bool = False
    # torch.compile of the dense part, up to a minute once; null: in trainings of 10,000 steps or more on one GPU, of
    # recsys's own ranking models without sequences, unless trainer.precision is 32-true
    compile: bool | None = None
    # launch the compiled kernels as CUDA graphs; null: on GPUs, unless trainer.accumulate is above 1
    cuda_graphs: bool | None = None
    # none | base: copies ahead | sparse_dist: and input distribution | prefetch: and rows of cached tables
    pipeline: str = "auto"  # auto: sparse_dist on GPUs, none on CPUs
    log_every_n_steps: int = number(50, at_least=1)  # steps between two rows of metrics.csv
    # intra-op threads of a process; null: the cores divided by the processes
    threads: int | None = number(None, at_least=1, limit=4096)
    save_on_interrupt: bool = False  # write a checkpoint after Ctrl-C or SIGTERM, before the run ends
    timeout_minutes: float = number(30.0, above=0, limit=1e6)  # time that a rank waits for the others before it fails
    validate_every: int = number(1, at_least=1)  # validate every N epochs
    # or validate every N batches; replaces validate_every
    validate_every_n_steps: int | None = number(None, at_least=1)
    early_stopping: EarlyStoppingConfig = field(default_factory=EarlyStoppingConfig)


@dataclass
class LoaderConfig:
    """Loader of the training rows."""

    shuffle: bool = True  # whether training rows are read in another order in each epoch
    # number of rows shuffled together, on which memory use depends; null: 262,144, or more rows of few columns
    buffer_rows: int | None = number(None, at_least=1)
    # spread rows by the lengths of their lists, so that all batches, and so all GPUs, have about as many ids to work on
    balance_lists: bool = False
    # share of ids that training replaces by the unknown id, so that new values get a vector that was trained; only
    # where it has no training rows otherwise (min_count: 1) and values may be new
    unknown: float = number(0.02, at_least=0, below=1)
    # MiB of rows that each process keeps in memory for later epochs, which decode only the others; 0 keeps none
    keep_mb: int = number(1024, at_least=0)


@dataclass
class CheckpointConfig:
    """Checkpoints: how often they are written, and how many are kept."""

    every_n_steps: int | None = number(None, at_least=1)  # steps between two checkpoints; null: by validations alone
    every_minutes: float | None = number(10.0, above=0)  # minutes between two checkpoints; null: none by time
    keep_best: int = number(1, at_least=1)  # number of best-N checkpoints to keep
    keep_last: int = number(1, at_least=1)  # number of step-N checkpoints to keep
    monitor: str | None = None  # null: validation/auc, or validation/ndcg@10 for retrieval models
    mode: str | None = None  # min | max; null: whichever is better for this metric


@dataclass
class MetricsConfig:
    """Metrics settings."""

    gauc: str | None = None  # sparse feature, such as the user: AUC within each of its values
    # k of the metrics of the order within groups, gndcg@k and gmrr@k; measured if data.group.together is set
    k: list[int] = field(default_factory=lambda: [5, 10])
    slices: list[str] = field(default_factory=list)  # features for whose values metrics.json has separate metrics
    slice_values: int = number(20, at_least=1)  # maximum number of values per feature, the most frequent ones
    bins: int = number(20, at_least=1, limit=1_000_000)  # number of bins of the calibration error
    # with more rows than this, AUC uses binned scores and its error bound is reported
    exact_rows: int = number(20_000_000, at_least=1, limit=2**53)
    predictions: bool = True  # write the test rows' predictions or target ranks, which recsys.report needs


@dataclass
class ProtocolConfig:
    """Evaluation protocol of retrieval models: the items that targets of held-out rows are ranked against."""

    candidates: list[str] = field(default_factory=lambda: ["full"])  # full | uniform | popularity, or several
    k: list[int] = field(default_factory=lambda: [5, 10, 20])  # lengths of the lists that are measured
    # uniform, popularity: number of candidates sampled for each row, excluding its targets and history
    negatives: int = number(100, at_least=1)
    filter_history: bool = True  # full: exclude the items of the history
    seed: int = number(0, at_least=0)  # seed of the sampling
    # full: metrics of the lists of the best k candidates; [] leaves them out
    lists: list[str] = field(default_factory=lambda: ["coverage", "gini", "novelty", "diversity", "popularity_lift"])


@dataclass
class DebugConfig:
    """Debug settings: short runs that check that training works or profile it."""

    name: str = "none"  # the choice of debug=
    train_batches: int | None = number(None, at_least=1)  # use only this many batches of an epoch (the first ones)
    eval_batches: int | None = number(None, at_least=1)  # batches of each evaluation; null: all
    profile_steps: int = number(0, at_least=0)  # steps that the profiler records; 0: none


@dataclass
class SweepConfig:
    """Config of a sweep, `python -m recsys.train -m`: many trials. A run's own config does not contain it."""

    method: str = "grid"  # grid | random | optuna
    trials: int | None = number(None, at_least=1)  # random, optuna; a grid tries all combinations
    # lists of overrides, such as [model=dlrm, model.dim=32]: each is a value of one more axis
    points: list[list[str]] | None = None
    metric: str | None = None  # validation/NAME or test/NAME; null: checkpoint.monitor
    direction: str | None = None  # maximize | minimize; null: the direction in which the metric is better
    jobs: int = number(1, at_least=1)  # number of runs at the same time
    seed: int = number(0, at_least=0)  # random, optuna
    prune: bool = False  # optuna: end trials early that are worse than the median
    launcher: str = "local"  # local: processes on this machine | slurm: jobs of a cluster
    slurm: dict[str, Any] = field(default_factory=dict)  # submitit's parameters: partition, gpus_per_node, timeout_min


@dataclass
class TrainConfig:
    """Config of `python -m recsys.train`."""

    data: DataConfig = MISSING
    model: Any = MISSING  # a class as _target_, with its parameters: a file of conf/model
    loss: Any = None  # null: binary cross-entropy; retrieval models need one
    dims: Any = None  # columns of tables: auto, by their rows, or {GLOB: columns or auto}; null: model.dim
    numeric: Any = None  # embeds the dense features of a ranking model; null: the model reads the numbers themselves
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
    # none | platt | isotonic: calibrate the probabilities on the validation rows, at the end of the training
    calibration: str = "none"
    logger: Any = None  # a mapping of names to loggers; CSV is always written
    # seeds the initial weights, the order of rows, dropout and the sampling of negatives
    seed: int = number(0, at_least=0, at_most=2**32 - 1)
    # null: a new folder under outputs/
    run_dir: str | None = folder(None, "name a folder, or null for a new folder under outputs/")
    # a run's folder to resume; auto: resume run_dir if it contains a run
    resume: str | None = folder(None, "name the folder of a run, or auto, or null for a new run")
    # a run whose config, transforms, weights and optimizer states a new run goes on from; new values get rows
    start_from: str | None = folder(None, "name the folder of a run, or null to start from random weights")
    resume_on_changed_data: bool = False  # resume although the raw files have changed, with the run's transforms
