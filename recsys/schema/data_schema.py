"""Schemas of `data:` and `engine:`: raw files, features, split, sample."""

from dataclasses import dataclass, field, fields
from typing import Any

from omegaconf import MISSING

from recsys.ranges import folder, number

MOST_BUCKETS = 2**31 - 2  # ids are Int32, and 0 is taken
MOST_IDS = 2**31 - 1
MOST_QUANTILES = 100_000  # a tenth of the rows from which quantiles of large data are estimated
FEWEST_SAMPLE_ROWS = 100


@dataclass(kw_only=True)
class TextConfig:
    """How the lines of a text file (CSV) are divided into values."""

    separator: str = ","  # a character, several characters such as "::", or \s+ for any run of spaces and TABs
    quote: str | None = '"'  # the character around values that contain the separator; null: quotes are text
    escape: str | None = None  # the character before quotes that are part of a quoted value: "\\" reads \"
    line_breaks_in_quotes: bool = False  # quoted values may hold line breaks; such a file is read as one chunk
    encoding: str = "utf-8"  # a name that Python knows, such as latin-1, cp1252 or utf-16
    comment: str | None = None  # lines that begin with this text are ignored
    strip: bool = False  # remove the spaces around text, too; those around names and numbers are always removed
    null_values: list[str] = field(default_factory=list)  # text that stands for a missing value, in any column
    column_null_values: dict[str, list[str]] = field(default_factory=dict)  # more of them: column -> text


def text_options(c: TextConfig) -> dict[str, Any]:
    """Return the settings of `c` that TextConfig declares, as arguments of another such config."""
    return {f.name: getattr(c, f.name) for f in fields(TextConfig)}


@dataclass
class JoinConfig(TextConfig):
    """A side table in `file` under data.root, left-joined on the column `key`."""

    file: str = MISSING
    key: str = MISSING
    # name here -> name in the file, the key's included if they differ; empty: all columns of the file
    columns: dict[str, str] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)  # names of the file's columns, if it has no header
    format: str | None = None  # csv | parquet | json | jsonl | arrow; null: by the end of the file's name


@dataclass
class PartConfig:
    """Files that hold some columns of a raw file; their rows are concatenated (formats split_binary and split_csv)."""

    files: list[str] = field(default_factory=list)
    columns: list[str] = field(default_factory=list)  # in the order of a row
    dtypes: list[str] = field(default_factory=list)  # NumPy dtypes of the columns, for split_binary


@dataclass
class ArrayConfig:
    """A .npy file whose rows have these columns."""

    # file name or path relative to the raw file; {} is replaced by the part of the name that the files share
    file: str = MISSING
    columns: list[str] = field(default_factory=list)


@dataclass
class SourceConfig(TextConfig):
    """Settings of the raw files and their format."""

    # csv | parquet | jsonl | json | arrow | npz | npy | libfm | svmlight | slots | lists | sql | delta | iceberg;
    # data.spec sets split_binary | split_csv
    format: str = "csv"
    files: list[str] = field(default_factory=lambda: ["*"])  # globs under data.root
    header: bool = True  # whether the first line has the columns' names
    columns: list[str] = field(default_factory=list)  # names, if the files have no header, or instead of the header's
    # columns (as the files name them) that some files lack: their values are missing in the rows of these files
    optional_columns: list[str] = field(default_factory=list)
    decimal: str = "."  # the decimal mark of numbers in text
    thousands: str | None = None  # the mark between groups of three digits
    query: str | None = None  # sql: the query whose rows are read; data.root is the database's URL
    query_timeout_s: float = number(3600.0, above=0)  # seconds after which a query is given up
    # one row for each element of a list: a column, [columns with lists of equal length], or, for text,
    # {column: separator}; columns as the files name them
    explode: Any = None
    rename: dict[str, str] = field(default_factory=dict)  # name here -> name in the file
    # side tables that are joined to the rows: a list of JoinConfig
    joins: list[JoinConfig] = field(default_factory=list)
    arrays: dict[str, ArrayConfig] = field(default_factory=dict)  # npy: the arrays that hold a raw file's columns
    parts: dict[str, list[PartConfig]] = field(default_factory=dict)  # parts of each raw file; set by data.spec


@dataclass
class GroupConfig:
    """Rows that belong together, in order. `lag`, `difference`, `last`, sequences and leave_one_out need it."""

    by: str = ""  # column, such as a user or a device; empty: rows are independent
    # column, a number or a time; rows with equal values, or all rows if null, keep their order in the files
    order: str | None = None
    # a longer pause begins a new session; in the unit of `order`, seconds for times
    gap: float | None = number(None, at_least=0)
    together: bool = False  # keep the rows of a group together in batches, for losses and metrics that compare them


@dataclass
class SequenceConfig:
    """Make one row of each group, with ordered lists, instead of one row of each interaction."""

    # largest number of items before the predicted item (a row has one item more); 0: no sequences
    max_length: int = number(0, at_least=0, limit=2**20)
    min_length: int = number(2, at_least=2)  # length of the shortest training row, including the predicted item
    # cut longer training sequences into windows this far apart; null: keep the last window
    stride: int | None = number(None, at_least=1)
    # next: predict each held-out item from all items before it | all: predict all held-out items of a split together
    held_out: str = "next"
    reverse: bool = False  # train on each sequence backwards, too
    pad: str | None = None  # left | right: pad to max_length + 1 with id 0; null: jagged


@dataclass
class LabelConfig:
    """The label of a row."""

    column: str | None = "label"  # null: rows have no label
    at_least: float | None = None  # the label is 1 if column >= at_least; null: the column holds 0 and 1
    positive: list[str] = field(default_factory=list)  # the label is 1 if the column holds one of these texts, else 0
    kind: str = "binary"  # binary: 0 or 1 | regression: a number | classes: one of `classes`
    classes: list[str] = field(default_factory=list)  # the values of a label of kind classes
    log: bool = False  # regression: predict ln(1 + label), for numbers that are never negative
    only_if: str | None = None  # another label: rows have this label only if that one is 1


@dataclass
class NamedLabelConfig(LabelConfig):
    """One of several labels."""

    column: str | None = None  # null: the label's name


@dataclass
class WeightConfig:
    """The weight of a row in losses and metrics."""

    column: str | None = None  # a number that is not negative; null: all rows have the same weight


@dataclass
class VectorsConfig:
    """Pretrained vectors, one for each value, in a Parquet, .npz or .npy file under data.root."""

    file: str = MISSING
    key: str | None = None  # Parquet, .npz: the column or array of values; null: the feature's
    column: str = "vector"  # Parquet: the column of vectors, lists of numbers; .npz: the array of vectors
    keys: str | None = None  # .npy: a text file with the value of each row; null: the row's number is the value
    # l2 | layer | {pca: n} | whiten | {whiten: n}, applied in this order
    normalise: list[Any] = field(default_factory=lambda: ["l2", "layer"])


@dataclass
class TableVectorsConfig(VectorsConfig):
    """Pretrained vectors from which the training of an embedding table starts, as wide as the table (model.dim)."""

    trainable: bool = True  # false: the table keeps the vectors
    normalise: list[Any] = field(default_factory=list)


@dataclass
class DenseConfig:
    """A dense feature: a number, or a vector that is looked up for a value."""

    column: str | None = None  # null: the feature's name
    fill: Any = None  # for missing values: a number, mean or median
    transform: list[Any] | None = None  # names of transforms, in order: log, {clip: [0, 100]}
    lag: int | None = number(None, at_least=1)  # take the value of the n-th row before, in the row's group
    difference: int | None = number(None, at_least=1)  # subtract the value of the n-th row before
    vectors: VectorsConfig | None = None  # look up a vector for the value instead of reading a number
    # the column holds a vector of this many numbers, as a list or, with `split`, as text; null: columns of lists are
    # vectors as wide as the first one
    width: int | None = number(None, at_least=1, limit=2**16)
    split: str | None = None  # separator of the numbers of a vector in text
    normalise: list[str] | None = None  # of the vector in a row: l2 | layer, applied in this order
    cyclic: list[str] | None = None  # parts of a time: hour, day_of_week, month; each gives NAME_hour_sin and _cos


@dataclass
class SparseConfig:
    """A sparse feature: one id or several per row, which are looked up in an embedding table."""

    column: str | None = None  # the column it reads; null: the one of the feature's name
    encode: str | None = None  # vocabulary: ids of training values | hash: into `buckets` | id: values are ids
    # hash: number of buckets; the table has one row more, row 0
    buckets: int | None = number(None, at_least=1, at_most=MOST_BUCKETS)
    # instead of encode: divide numbers into this many buckets with the same number of training rows
    quantiles: int | None = number(None, at_least=2, at_most=MOST_QUANTILES)
    cross: list[str] | None = None  # instead of column: columns whose values together form one value
    lag: int | None = number(None, at_least=1)  # take the value of the n-th row before, in the row's group
    # with `quantiles`: subtract the number or time (in seconds) of the n-th row before
    difference: int | None = number(None, at_least=1)
    last: int | None = number(None, at_least=1, limit=2**20)  # take the values of the last n rows before, oldest first
    # with `last` and `quantiles`: take this row's number or time (in seconds) minus that of each of these rows
    age: bool | None = None
    per: str | None = None  # with sequences: item (default), a value per item | group: the value of the last item
    pattern: str | None = None  # regular expression: its matches in the column's text are the values
    # vocabulary: values rarer than this in the training split share row 0; 0: values that only validation and test rows
    # have get rows of their own, too
    min_count: int | None = number(None, at_least=0)
    # vocabulary: largest number of rows of the table; null: as many as there are values. In trainings that go on from
    # another run (start_from), new values of a full table take the rows of others, which `evict` chooses
    capacity: int | None = number(None, at_least=2, at_most=MOST_IDS)
    evict: str | None = None  # age (default): the values not seen for the longest time | count: the rarest values
    # in trainings that go on from another run: the probability with which each occurrence of a new value gives it a row
    admit: float | None = number(None, above=0, at_most=1)
    split: str | None = None  # separator of a multi-valued column
    max_length: int | None = number(None, at_least=1)  # longest list that is kept; null: no limit
    pooling: str | None = None  # sum | mean
    table: str | None = None  # features with the same table share its rows and vocabulary
    # id: rows of the table; otherwise: expected rows, for plans made without data
    rows: int | None = number(None, at_least=1, at_most=MOST_IDS)
    # expected number of ids in a bag (default 1), for plans made without data
    mean_length: float | None = number(None, above=0)
    vectors: TableVectorsConfig | None = None  # start the training of the table from these vectors
    model: bool | None = None  # false: only metrics.gauc and metrics.slices use it, models do not


@dataclass
class ItemsConfig(TextConfig):
    """The items that can be retrieved, and their features."""

    feature: str | None = None  # sparse feature whose values are the items; null: the first feature of sequences
    file: str | None = None  # table of items under data.root
    key: str = ""  # its column with the items
    columns: dict[str, str] = field(default_factory=dict)  # name here -> name in the file
    names: list[str] = field(default_factory=list)  # names of the file's columns, if it has no header
    format: str | None = None  # as in a join
    dense: dict[str, DenseConfig | None] = field(default_factory=dict)  # features of an item
    # sparse features of items: a SparseConfig for each name
    sparse: dict[str, SparseConfig | None] = field(default_factory=dict)
    # vectors of the items, by name; without `file`, the items are the values of these files
    vectors: dict[str, VectorsConfig] = field(default_factory=dict)
    ids: bool = True  # false: an item's vector comes from its features alone, not from its id


@dataclass
class SemanticIdsConfig:
    """Codes of items: features semantic_1, semantic_2, ... of the items, or of the rows that name an item."""

    vectors: VectorsConfig | None = None  # the vectors that are coded
    codes: str | None = None  # instead of vectors: a JSON file under data.root, {item: [code, ...]}
    column: str | None = None  # the raw column that holds the item; null: that of data.items.feature
    method: str = "kmeans"  # kmeans: of the residuals, level by level | rqvae: in the space of a trained autoencoder
    levels: int = number(3, at_least=1, at_most=16)  # codes of an item, without the one against collisions
    size: int = number(256, at_least=2, at_most=65_536)  # number of codes of a level
    unique: bool = True  # add a code that numbers the items whose other codes are equal
    prefixes: bool = False  # add a feature for each longer prefix: semantic_1_2, semantic_1_2_3, ...
    epochs: int = number(100, at_least=1)  # rqvae: passes over the vectors
    seed: int = number(0, at_least=0)


@dataclass
class SplitConfig:
    """Split of the rows into training, validation and test.

    With order and time, the last rows are test rows, and the rows before them validation rows.
    """

    by: str = "order"  # order | time | random | hash | kfold | files | leave_one_out
    column: str | None = None  # time: sort by it; hash, kfold: equal values stay together
    folds: int = 5  # kfold: number of folds
    fold: int = 0  # kfold: fold of the test rows; the next fold has the validation rows
    validation: float = 0.1  # share of the rows
    test: float = 0.1  # share of the rows
    seed: int = number(0, at_least=0)  # random, hash, kfold, files with validation_rows=random
    train_files: list[str] = field(default_factory=list)  # files: globs
    validation_files: list[str] = field(default_factory=list)  # empty: a share `validation` of the training rows
    validation_rows: str = "last"  # files without validation_files: last | random, the training rows that validate
    test_files: list[str] = field(default_factory=list)  # by=files: globs of the files of the test split


@dataclass
class SampleConfig:
    """The built-in sample, used if data.root is null."""

    # clicks: Criteo's raw format | sequences: items that users choose in order | interactions: items shown to users,
    # with clicks, buys and ratings | drifting: days of them, whose clicks change from day to day | sales: of stores, by
    # day | queries: documents with grades
    kind: str = "clicks"
    rows: int = number(1_000_000, at_least=FEWEST_SAMPLE_ROWS, limit=10**10)
    seed: int = number(0, at_least=0)


@dataclass
class DataConfig:
    """A data set: raw files, features, split and sample."""

    name: str = MISSING  # name of the data set, which begins the names of its prepared folders
    # null: the built-in sample, if the data set has one
    root: str | None = folder(None, "name the folder of the raw files, or null for the built-in sample")
    spec: str | None = None  # NVIDIA's feature_spec.yaml; adds its features, files and splits
    # folder of prepared Parquet, one folder for each fingerprint
    prepared: str = folder("outputs/prepared", "name a folder for the prepared data")
    source: SourceConfig = field(default_factory=SourceConfig)
    derive: dict[str, str] = field(default_factory=dict)  # column -> SQL expression over the columns
    where: str | None = None  # SQL over all columns: keep the rows for which it is true
    label: LabelConfig = field(default_factory=LabelConfig)
    labels: dict[str, NamedLabelConfig] = field(default_factory=dict)  # several labels by name, instead of `label`
    weight: WeightConfig = field(default_factory=WeightConfig)
    # share of the training rows with label 0 that are kept; predictions are corrected for it
    sample_negatives: float = number(1.0, above=0, at_most=1)
    split: SplitConfig = field(default_factory=SplitConfig)
    group: GroupConfig | None = field(default_factory=GroupConfig)  # becomes None if it names no column
    sequences: SequenceConfig | None = field(default_factory=SequenceConfig)  # becomes None if max_length is 0
    items: ItemsConfig = field(default_factory=ItemsConfig)
    # becomes None if it names no file
    semantic_ids: SemanticIdsConfig | None = field(default_factory=SemanticIdsConfig)
    dense_defaults: DenseConfig = field(default_factory=lambda: DenseConfig(fill=0.0, transform=["log"]))
    sparse_defaults: SparseConfig = field(
        default_factory=lambda: SparseConfig(encode="vocabulary", min_count=1, pooling="sum")
    )
    dense: dict[str, DenseConfig | None] = field(default_factory=dict)  # dense features: a DenseConfig for each name
    # sparse features: a SparseConfig for each name
    sparse: dict[str, SparseConfig | None] = field(default_factory=dict)
    max_bad_rows: float = number(0.01, at_least=0, at_most=1)  # stop if a larger share of rows cannot be read
    keep_read: bool = True  # cache raw files as read, so that another config need not read them again
    verify: str = "stat"  # content: read all raw files to see whether they have changed
    sample: SampleConfig | None = None  # the built-in sample that is generated if data.root is null

    def __post_init__(self) -> None:
        if self.group is not None and not self.group.by and not self.group.together:
            self.group = None
        if self.sequences is not None and not self.sequences.max_length:
            self.sequences = None
        if (c := self.semantic_ids) is not None and c.vectors is None and c.codes is None:
            self.semantic_ids = None


@dataclass
class EngineConfig:
    """The engine that reads raw files."""

    name: str = "polars"  # polars: this machine | spark: a cluster; both give the same rows
    # Spark's master: local[8], spark://HOST:7077, yarn; null: that of spark-submit or spark-defaults.conf, or local[*]
    master: str | None = None
    options: dict[str, Any] = field(default_factory=dict)  # Spark options, such as spark.executor.memory: 16g
