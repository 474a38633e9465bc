"""Dataclass schemas of the closed parts of a config, so that a typo is an error when it is composed.

Models, dense optimizers, schedulers and loggers are open sets (`_target_`); their schema is the
signature of what they name, and `check` binds them to it.
"""

from dataclasses import dataclass, field
from typing import Any

from omegaconf import MISSING

GIB = 1 << 30  # bytes


@dataclass
class JoinConfig:
    """A side table, joined from the left: `file` under the data's root, on the column `key`."""

    file: str = MISSING
    key: str = MISSING
    columns: dict[str, str] = field(default_factory=dict)  # name here -> name in the file
    separator: str = ","
    quote: str | None = '"'


@dataclass
class PartConfig:
    """Files, one after the other by rows, that hold some columns of a raw file: split_binary, split_csv."""

    files: list[str] = field(default_factory=list)
    columns: list[str] = field(default_factory=list)  # in the order of a row
    dtypes: list[str] = field(default_factory=list)  # NumPy's, of split_binary


@dataclass
class ArrayConfig:
    """A .npy file of rows with these columns."""

    file: str = MISSING  # its name or path beside the raw file, which is the first array's; {} is what all share
    columns: list[str] = field(default_factory=list)


@dataclass
class SourceConfig:
    """How raw rows are read."""

    format: str = "csv"  # csv | parquet | libfm | lists | npy; of data.spec: split_binary | split_csv
    files: list[str] = field(default_factory=lambda: ["*"])  # globs under the data's root
    separator: str = ","
    quote: str | None = '"'
    header: bool = True
    columns: list[str] = field(default_factory=list)  # names, where the files have no header
    rename: dict[str, str] = field(default_factory=dict)  # name here -> name in the file
    joins: list[JoinConfig] = field(default_factory=list)
    arrays: dict[str, ArrayConfig] = field(default_factory=dict)  # npy: what a raw file's columns lie in
    parts: dict[str, list[PartConfig]] = field(default_factory=dict)  # by raw file; data.spec fills it in


@dataclass
class GroupConfig:
    """Rows that belong together, in order: what `lag`, `difference`, `last`, sequences and leave_one_out are of."""

    by: str = ""  # column: a user, a device; without it no rows belong together
    order: str | None = None  # column: a number or a time; rows of one moment, and all without it, as they came
    gap: float | None = None  # in order's unit (of times: seconds): a longer pause begins a new group, a session


@dataclass
class SequenceConfig:
    """One row a group, of lists in order, instead of one row an interaction."""

    max_length: int = 0  # items before the one to be predicted; a row has one more. 0: rows are no sequences
    min_length: int = 2  # of a training row, with the one to be predicted
    stride: int | None = None  # longer training sequences: a window every so many items; null: the last one only
    held_out: str = "next"  # next: each held-out item is predicted from all before it | all: those of a split at once
    reverse: bool = False  # training sequences once more, backwards
    pad: str | None = None  # left | right: to max_length + 1, with id 0; null: jagged


@dataclass
class LabelConfig:
    column: str | None = "label"  # null: rows have none; that they are there is all that is known
    at_least: float | None = None  # 1 where column >= at_least; without it the column must be 0 or 1


@dataclass
class VectorsConfig:
    """Pretrained vectors (of texts, of images), one a value, in a Parquet or .npy file under the data's root."""

    file: str = MISSING
    key: str | None = None  # Parquet: the column of values; null: that of the feature
    column: str = "vector"  # Parquet: the column of lists of numbers
    keys: str | None = None  # .npy: a text file of values, a line each row; null: the row's number is the value
    normalise: list[str] = field(default_factory=lambda: ["l2", "layer"])  # in order


@dataclass
class DenseConfig:
    column: str | None = None  # the feature's name, where none is given
    fill: Any = None  # of missing values: a number, mean or median (a Union is more than OmegaConf merges)
    transform: list[Any] | None = None  # of transforms.TRANSFORMS, in order: log, or {clip: [0, 100]}
    lag: int | None = None  # the value so many rows before, in the row's group
    difference: int | None = None  # the value less that of so many rows before
    vectors: VectorsConfig | None = None  # what stands for the column's value, instead of a number
    cyclic: list[str] | None = None  # of a time: hour, day_of_week, month; two features each, NAME_hour_sin and _cos


@dataclass
class SparseConfig:
    column: str | None = None
    encode: str | None = None  # vocabulary: ids of training's values | hash: of any, into `buckets` | id: as they are
    buckets: int | None = None  # of hash: the table has one row more
    quantiles: int | None = None  # of a number: so many buckets of equally many training rows, instead of encode
    cross: list[str] | None = None  # columns whose values together are one value, instead of column
    lag: int | None = None  # the value so many rows before, in the row's group
    difference: int | None = None  # of a number or a time (in seconds) with `quantiles`: less so many rows before
    last: int | None = None  # the values of so many rows before, oldest first
    per: str | None = None  # of sequences: item, by default, or group: one value a row, its last item's
    pattern: str | None = None  # a regular expression: its matches in the column's text are the values
    min_count: int | None = None  # of vocabulary: values rarer than this in the training split share row 0
    split: str | None = None  # the separator of a multi-valued column
    max_length: int | None = None
    pooling: str | None = None  # sum | mean
    table: str | None = None  # features that name one table share its rows and its vocabulary
    rows: int | None = None  # of the table: of id; of others as expected, for plans made before the data is there
    mean_length: float | None = None  # expected ids a bag, 1 by default: for such plans too
    model: bool | None = None  # false: models do not see it; metrics.gauc and metrics.slices may


@dataclass
class ItemsConfig:
    """What is retrieved: the candidates, and what is known of each beside its id."""

    feature: str | None = None  # the sparse feature whose values they are; null: the first of sequences, else none
    file: str | None = None  # a table of items under the data's root, as a join's
    key: str = ""  # its column of the feature's values
    columns: dict[str, str] = field(default_factory=dict)  # name here -> name in the file
    separator: str = ","
    quote: str | None = '"'
    dense: dict[str, DenseConfig | None] = field(default_factory=dict)  # of an item
    sparse: dict[str, SparseConfig | None] = field(default_factory=dict)


@dataclass
class SplitConfig:
    """Who goes where. order and time: the last rows are the test's, those before them validation's."""

    by: str = "order"  # order | time | random | hash | kfold | files | leave_one_out
    column: str | None = None  # time: to sort by; hash, kfold: whose equal values stay together
    folds: int = 5  # kfold
    fold: int = 0  # kfold: the one that tests; the next one validates
    validation: float = 0.1
    test: float = 0.1
    seed: int = 0  # random, hash, kfold
    train_files: list[str] = field(default_factory=list)  # files: globs
    validation_files: list[str] = field(default_factory=list)  # none: the last `validation` of the training rows
    test_files: list[str] = field(default_factory=list)


@dataclass
class SampleConfig:
    """The built-in sample, used where data.root is not given."""

    kind: str = "clicks"  # Criteo's raw format | sequences: what users choose, one item after another
    rows: int = 1_000_000
    seed: int = 0


@dataclass
class DataConfig:
    name: str = MISSING
    root: str | None = None
    spec: str | None = None  # NVIDIA's feature_spec.yaml, whose features, files and splits are added
    prepared: str = "outputs/prepared"  # where prepared Parquet lies, one folder a fingerprint
    source: SourceConfig = field(default_factory=SourceConfig)
    derive: dict[str, str] = field(default_factory=dict)  # column -> SQL expression over the columns
    where: str | None = None  # SQL over them and the columns: rows for which it is not true are none of the data
    label: LabelConfig = field(default_factory=LabelConfig)
    split: SplitConfig = field(default_factory=SplitConfig)
    group: GroupConfig | None = field(default_factory=GroupConfig)  # None, in the end, where it names no column
    sequences: SequenceConfig | None = field(default_factory=SequenceConfig)  # likewise
    items: ItemsConfig = field(default_factory=ItemsConfig)
    dense_defaults: DenseConfig = field(default_factory=lambda: DenseConfig(fill=0.0, transform=["log"]))
    sparse_defaults: SparseConfig = field(
        default_factory=lambda: SparseConfig(encode="vocabulary", min_count=1, pooling="sum")
    )
    dense: dict[str, DenseConfig | None] = field(default_factory=dict)
    sparse: dict[str, SparseConfig | None] = field(default_factory=dict)
    max_bad_rows: float = 0.01  # a larger share of unreadable rows stops the command
    keep_read: bool = True  # keep raw files as they were read, so that another config reads nothing again
    sample: SampleConfig | None = None

    def __post_init__(self) -> None:
        if self.group is not None and not self.group.by:
            self.group = None
        if self.sequences is not None and not self.sequences.max_length:
            self.sequences = None


@dataclass
class EngineConfig:
    """Who goes through the raw files."""

    name: str = "polars"  # polars: this machine | spark: a cluster, to the same rows
    master: str | None = None  # Spark's: local[8], spark://HOST:7077, yarn; null: spark-submit's or spark-defaults'
    options: dict[str, Any] = field(default_factory=dict)  # Spark's: spark.executor.memory: 16g


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
class ClusterConfig:
    """The machines that a plan is for. GiB are 2^30 bytes, GB/s 10^9 bytes a second."""

    name: str = MISSING
    nodes: int = 1
    device: str = "cuda"  # or cpu
    devices: int = 1  # a node
    hbm_gib: float | None = None  # a device
    ddr_gib: float | None = None  # a node
    hbm_gbs: float = 2000.0
    ddr_gbs: float = 200.0  # a node
    pcie_gbs: float = 25.0  # a device
    intra_node_gbs: float = 300.0  # a device, one way
    inter_node_gbs: float = 25.0  # a device, one way


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
    scheduler: Any = None  # a torch.optim.lr_scheduler or one of recsys.schedules, over dense and sparse together
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
class RankingConfig:
    """How models that retrieve are measured: what the targets of held-out rows are ranked against."""

    protocols: list[str] = field(default_factory=lambda: ["full"])  # full, uniform, popularity
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
    ranking: RankingConfig = field(default_factory=RankingConfig)
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


@dataclass
class EvaluateTrainerConfig:
    """What may differ from the run's own trainer; null: as it was trained."""

    accelerator: str | None = None
    devices: int | None = None
    eval_batch_size: int | None = None
    threads: int | None = None


@dataclass
class EvaluateRankingConfig:
    """What may differ from the run's own protocol; null: as it was."""

    protocols: list[str] | None = None
    k: list[int] | None = None
    negatives: int | None = None
    filter_history: bool | None = None
    seed: int | None = None


@dataclass
class EvaluateMetricsConfig:
    """What may differ from the run's own; null: as it was."""

    gauc: str | None = None
    slices: list[str] | None = None
    slice_values: int | None = None
    bins: int | None = None
    exact_rows: int | None = None


@dataclass
class EvaluateConfig:
    """python -m recsys.evaluate"""

    run: str = MISSING
    split: str = "test"
    checkpoint: str = "best"  # best | last | a folder under the run's checkpoints/
    trainer: EvaluateTrainerConfig = field(default_factory=EvaluateTrainerConfig)
    ranking: EvaluateRankingConfig = field(default_factory=EvaluateRankingConfig)
    metrics: EvaluateMetricsConfig = field(default_factory=EvaluateMetricsConfig)
    sharding: ShardingConfig | None = None  # null: the run's own


@dataclass
class PlanConfig:
    """python -m recsys.plan"""

    data: DataConfig = MISSING
    model: Any = MISSING
    loss: Any = None
    sharding: ShardingConfig = field(default_factory=ShardingConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    features: str | None = None  # a features.json of prepared data; null: data.sparse.*.rows
    output: Any = None  # a .json or .html file, or a list of them


@dataclass
class PreprocessConfig:
    """python -m recsys.preprocess"""

    data: DataConfig = MISSING
    engine: EngineConfig = field(default_factory=EngineConfig)
    report: bool = False  # a page about the data
    output: str | None = None  # the page; null: report.html beside the prepared data
    export: str | None = None  # a new folder: the prepared data as NVIDIA's DLRM reads it, with a feature_spec.yaml


@dataclass
class PredictConfig:
    """python -m recsys.predict"""

    run: str = MISSING
    input: Any = MISSING  # a file, folder or glob, or a list of them
    output: str = "predictions.parquet"
    checkpoint: str = "best"
    batch_size: int | None = None  # rows or queries at a time; null: the run's trainer.eval_batch_size
    k: int | None = None  # of models that retrieve, how many items a list has; null: the longest of the run's ranking.k
    filter_history: bool | None = None  # likewise, leave out what the group has had; null: the run's ranking has it


@dataclass
class ReshardTrainerConfig:
    devices: int | None = None  # processes; null: as many as wrote it


@dataclass
class CheckpointToolConfig:
    """python -m recsys.checkpoint inspect|reshard|export-embeddings RUN_DIR"""

    action: str = MISSING
    run: str = MISSING
    checkpoint: str = "last"  # best | last | a folder under the run's checkpoints/
    output: str | None = None  # reshard: a new run's folder; export-embeddings: a folder
    sharding: ShardingConfig | None = None  # reshard; null: the run's own
    trainer: ReshardTrainerConfig = field(default_factory=ReshardTrainerConfig)
    format: str = "parquet"  # export-embeddings: parquet | safetensors
    tables: list[str] = field(default_factory=list)  # export-embeddings: globs; empty: all


@dataclass
class ReportConfig:
    """python -m recsys.report RUN_DIR... [SWEEP_DIR]"""

    runs: list[str] = field(default_factory=list)  # folders of runs, or of sweeps; the others are compared to the first
    output: str = "report.html"
    resamples: int = 1000  # of the bootstrap
    seed: int = 0  # of the bootstrap


@dataclass
class DashboardConfig:
    """python -m recsys.dashboard"""

    project: str = "recsys"
    entity: str | None = None  # a team; null: the account's own
    name: str = "recsys"  # of the workspace
    columns: list[str] = field(  # of sweeps' parallel coordinates
        default_factory=lambda: ["model._target_", "optim.sparse.lr", "optim.dense.lr", "trainer.batch_size"]
    )
    metric: str = "best/test/auc"  # of a run's summary, by which runs are ordered
    output: str = "dashboard.json"  # where there is no account


@dataclass
class DoctorConfig:
    """python -m recsys.doctor"""

    data: DataConfig = MISSING
