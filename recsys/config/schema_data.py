"""Schemas of `data:` and `engine:`: raw files, features, split, sample."""

from dataclasses import dataclass, field
from typing import Any

from omegaconf import MISSING


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
