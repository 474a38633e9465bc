"""Schemas of `data:` and `engine:`: features, labels, groups, split, sample."""

from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, NonNegativeFloat, PositiveFloat
from pydantic.dataclasses import dataclass

from recsys.base.ranges import MAX_INT, Count, Natural
from recsys.schema.fields import CHECKED, Local, Name, field
from recsys.schema.source_schema import SourceConfig, TextConfig

MAX_BUCKETS = 2**31 - 2  # ids are Int32, and 0 is taken
MAX_IDS = 2**31 - 1
MAX_QUANTILES = 100_000  # a tenth of the rows from which quantiles of large data are estimated
MIN_SAMPLE_ROWS = 100


@dataclass(config=CHECKED)
class GroupConfig:
    """Rows that belong together, in order. `lag`, `difference`, `last`, sequences and leave_one_out need it."""

    by: str = field("", "column, such as a user or a device; empty: rows are independent")
    order: str | None = field(None, "column, a number or a time; null: the order of the files")
    ties: Literal["moment", "order"] | None = field(
        None,
        "moment: rows with an equal `order` are one moment; features take rows that are strictly before | order: rows "
        "see those before them in the files, too. null: moment, but order for sequences and retrieval",
    )
    gap: NonNegativeFloat | None = field(
        None, "a longer pause begins a new session; in the unit of `order`, seconds for times"
    )
    together: bool = field(
        False, "keep the rows of a group together in batches, for losses and metrics that compare them"
    )


@dataclass(config=CHECKED)
class SequenceConfig:
    """Make one row of each group, with ordered lists, instead of one row of each interaction."""

    max_length: int = field(
        0,
        "largest number of items before the predicted item (a row has one item more); 0: no sequences",
        ge=0,
        le=2**20,
    )
    min_length: int = field(2, "length of the shortest training row, including the predicted item", ge=2, le=MAX_INT)
    stride: Count | None = field(
        None, "cut longer training sequences into windows this far apart; null: keep the last window"
    )
    held_out: Literal["next", "all"] = field(
        "next",
        "next: predict each held-out item from all items before it | all: predict all held-out items of a split "
        "together",
    )
    reverse: bool = field(False, "train on each sequence backwards, too")
    pad: Literal["left", "right"] | None = field(None, "pad to max_length + 1 with id 0; null: jagged")


@dataclass(config=CHECKED)
class LabelConfig:
    """The label of a row."""

    column: str | None = field("label", "null: rows have no label")
    at_least: float | None = field(None, "the label is 1 if column >= at_least; null: the column holds 0 and 1")
    positive: list[str] = field(list, "the label is 1 if the column holds one of these texts, else 0")
    kind: Literal["binary", "regression", "classes"] = field(
        "binary", "binary: 0 or 1 | regression: a number | classes: one of `classes`"
    )
    classes: list[str] = field(list, "the values of a label of kind classes")
    log: bool = field(False, "regression: predict ln(1 + label), for numbers that are never negative")
    only_if: str | None = field(None, "another label: rows have this label only if that one is 1")
    otherwise: float | None = field(None, "the label of rows in which only_if is 0; null: they have none")


@dataclass(config=CHECKED)
class NamedLabelConfig(LabelConfig):
    """One of several labels."""

    column: str | None = field(None, "null: the label's name")


@dataclass(config=CHECKED)
class PositionConfig:
    """Where an item stood in the list that its row logs; what that does to labels is learned, and left out of answers.

    bias: how the position acts. additive: a term of the logit (Zhao et al., Recommending What Video to Watch Next,
        RecSys 2019) | examination: the item is seen with a probability, and only then judged (Guo et al., PAL, RecSys
        2019)
    """

    column: Name | None = field(None, "a whole number, such as the place in a list; null: labels have no such bias")
    features: list[str] = field(list, "single-valued sparse features with which the bias differs, such as the device")
    bias: Literal["additive", "examination"] = field(
        "additive",
        "additive: the position adds to the logit | examination: the label of binary labels is the probability that "
        "the position is looked at times that of the item",
    )
    first: Natural | None = field(
        None, "the position that predictions are for, with a bias of 0; null: the smallest of the training rows"
    )


@dataclass(config=CHECKED)
class WeightConfig:
    """The weight of a row in losses and metrics."""

    column: Name | None = field(None, "a number that is not negative; null: all rows have the same weight")


@dataclass(config=CHECKED)
class VectorsConfig:
    """Pretrained vectors, one for each value, in a Parquet, .npz or .npy file under data.root."""

    file: str
    key: str | None = field(None, "Parquet, .npz: the column or array of values; null: the feature's")
    column: str = field("vector", "Parquet: the column of vectors, lists of numbers; .npz: the array of vectors")
    keys: str | None = field(None, ".npy: a text file with the value of each row; null: the row's number is the value")
    normalise: list[Any] = field(
        lambda: ["l2", "layer"], "l2 | layer | {pca: n} | whiten | {whiten: n}, applied in this order"
    )


@dataclass(config=CHECKED)
class TableVectorsConfig(VectorsConfig):
    """Pretrained vectors from which the training of an embedding table starts, as wide as the table (model.dim)."""

    trainable: bool = field(True, "false: the table keeps the vectors")
    normalise: list[Any] = field(list)


@dataclass(config=CHECKED)
class DenseConfig:
    """A dense feature: a number, or a vector that is looked up for a value."""

    column: str | None = field(None, "null: the feature's name")
    fill: Literal["mean", "median"] | int | float | None = field(None, "for missing values: a number, mean or median")
    transform: list[Any] | None = field(None, "names of transforms, in order: log, {clip: [0, 100]}")
    lag: Count | None = field(None, "take the value of the n-th row before, in the row's group")
    difference: Count | None = field(None, "subtract the value of the n-th row before")
    where: str | None = field(None, "with lag, difference: SQL; only earlier rows for which it is true count")
    vectors: VectorsConfig | None = field(None, "look up a vector for the value instead of reading a number")
    width: int | None = field(
        None,
        "the column holds a vector of this many numbers, as a list or, with `split`, as text; null: columns of "
        "lists are vectors as wide as the first one",
        ge=1,
        le=2**16,
    )
    split: str | None = field(None, "separator of the numbers of a vector in text")
    normalise: list[str] | None = field(None, "of the vector in a row: l2 | layer, applied in this order")
    cyclic: list[str] | None = field(
        None, "parts of a time: hour, day_of_week, month; each gives NAME_hour_sin and _cos"
    )
    time_zone: str | None = field(
        None,
        "with cyclic: the zone of the clock, such as Europe/Berlin; null: that of the training files' times, or UTC",
    )


@dataclass(config=CHECKED)
class SparseConfig:
    """A sparse feature: one id or several per row, which are looked up in an embedding table."""

    column: str | None = field(None, "the column it reads; null: the one of the feature's name")
    encode: str | None = field(None, "vocabulary: ids of training values | hash: into `buckets` | id: values are ids")
    buckets: int | None = field(
        None, "hash: number of buckets; the table has one row more, row 0", ge=1, le=MAX_BUCKETS
    )
    quantiles: int | None = field(
        None,
        "instead of encode: divide numbers into this many buckets with the same number of training rows",
        ge=2,
        le=MAX_QUANTILES,
    )
    cross: list[str] | None = field(None, "instead of column: columns whose values together form one value")
    lag: Count | None = field(None, "take the value of the n-th row before, in the row's group")
    difference: Count | None = field(
        None, "with `quantiles`: subtract the number or time (in seconds) of the n-th row before"
    )
    last: int | None = field(None, "take the values of the last n rows before, oldest first", ge=1, le=2**20)
    where: str | None = field(None, "with last, lag, difference: SQL; only earlier rows for which it is true count")
    age: bool | None = field(
        None,
        "with `last` and `quantiles`: take this row's number or time (in seconds) minus that of each of these rows",
    )
    per: Literal["item", "group"] | None = field(
        None, "with sequences: item (default), a value per item | group: the value of the last item"
    )
    pattern: str | None = field(None, "regular expression: its matches in the column's text are the values")
    min_count: Natural | None = field(
        None,
        "vocabulary: values rarer than this in the training split share row 0; 0: values that only validation "
        "and test rows have get rows of their own, too",
    )
    capacity: int | None = field(
        None,
        "vocabulary: largest number of rows of the table; null: as many as there are values. In trainings that "
        "go on from another run (start_from), new values of a full table take the rows of others, which `evict` "
        "chooses",
        ge=2,
        le=MAX_IDS,
    )
    evict: Literal["age", "count"] | None = field(
        None, "age (default): the values not seen for the longest time | count: the rarest values"
    )
    admit: float | None = field(
        None,
        "in trainings that go on from another run: the probability with which each occurrence of a new value "
        "gives it a row",
        gt=0,
        le=1,
    )
    split: str | None = field(None, "separator of a multi-valued column")
    max_length: Count | None = field(None, "longest list that is kept; null: no limit")
    pooling: Literal["sum", "mean"] | None = None
    table: str | None = field(None, "features with the same table share its rows and vocabulary")
    rows: int | None = field(
        None, "id: rows of the table; otherwise: expected rows, for plans made without data", ge=1, le=MAX_IDS
    )
    mean_length: PositiveFloat | None = field(
        None, "expected number of ids in a bag (default 1), for plans made without data"
    )
    vectors: TableVectorsConfig | None = field(None, "start the training of the table from these vectors")
    model: bool | None = field(None, "false: only metrics.gauc and metrics.slices use it, models do not")


@dataclass(config=CHECKED)
class ItemsConfig(TextConfig):
    """The items that can be retrieved, and their features."""

    feature: str | None = field(None, "sparse feature whose values are the items; null: the first feature of sequences")
    file: str | None = field(None, "table of items under data.root")
    key: str = field("", "its column with the items")
    columns: dict[str, str] = field(dict, "name here -> name in the file")
    names: list[str] = field(list, "names of the file's columns, if it has no header")
    format: str | None = field(None, "as in a join")
    dense: dict[str, DenseConfig | None] = field(dict, "features of an item")
    sparse: dict[str, SparseConfig | None] = field(dict, "sparse features of items: a SparseConfig for each name")
    vectors: dict[str, VectorsConfig] = field(
        dict, "vectors of the items, by name; without `file`, the items are the values of these files"
    )
    ids: bool = field(True, "false: an item's vector comes from its features alone, not from its id")


@dataclass(config=CHECKED)
class SemanticIdsConfig:
    """Codes of items: features semantic_1, semantic_2, ... of the items, or of the rows that name an item."""

    vectors: VectorsConfig | None = field(None, "the vectors that are coded")
    codes: str | None = field(None, "instead of vectors: a JSON file under data.root, {item: [code, ...]}")
    column: str | None = field(None, "the raw column that holds the item; null: that of data.items.feature")
    method: Literal["kmeans", "rqvae"] = field(
        "kmeans", "kmeans: of the residuals, level by level | rqvae: in the space of a trained autoencoder"
    )
    levels: int = field(3, "codes of an item, without the one against collisions", ge=1, le=16)
    size: int = field(256, "number of codes of a level", ge=2, le=65_536)
    unique: bool = field(True, "add a code that numbers the items whose other codes are equal")
    prefixes: bool = field(False, "add a feature for each longer prefix: semantic_1_2, semantic_1_2_3, ...")
    epochs: Count = field(100, "rqvae: passes over the vectors")
    seed: Natural = 0


@dataclass(config=CHECKED)
class SplitConfig:
    """Split of the rows into training, validation and test.

    With order and time, the last rows are test rows, and the rows before them validation rows.
    """

    by: Literal["order", "time", "random", "hash", "kfold", "files", "leave_one_out"] = "order"
    column: str | None = field(None, "time: sort by it; hash, kfold: equal values stay together")
    folds: int = field(5, "kfold: number of folds", ge=3)
    fold: Natural = field(
        0, "kfold: fold of the test rows; the next fold has the validation rows | time: one of `origins`, from 0"
    )
    origins: int | None = field(
        None,
        "time: number of rolling origins. `fold` N tests the N-th of the last `origins` shares `test` of the rows; "
        "earlier rows train, and later ones are left out. null: one split",
        ge=2,
        le=1000,
    )
    rows: str | None = field(
        None, "column of 0 and 1: rows with 0 are in no split, and only features that look back read them; null: all"
    )
    window: PositiveFloat | None = field(
        None,
        "time: length of windows, in the unit of `column`, seconds for times. Training rows are trained on window by "
        "window, and each window is measured before it is trained on; null: no windows",
    )
    validation: float = field(0.1, "share of the rows | leave_one_out: 0 for no validation rows, which then train")
    test: float = field(0.1, "share of the rows; 0: no row tests, and all others train, also with leave_one_out, files")
    seed: Natural = field(0, "random, hash, kfold, files with validation_rows=random")
    train_files: list[str] = field(list, "files: globs")
    validation_files: list[str] = field(list, "empty: a share `validation` of the training rows")
    validation_rows: Literal["last", "random"] = field(
        "last", "files without validation_files: last | random, the training rows that validate"
    )
    test_files: list[str] = field(list, "by=files: globs of the files of the test split")
    context_files: list[str] = field(
        list, "files: globs of files whose rows are in no split; features that look back read them"
    )

    @property
    def validates(self) -> bool:
        """Return whether rows are held out for validation."""
        return bool(self.validation or self.validation_files)


@dataclass(config=CHECKED)
class SampleConfig:
    """The built-in sample, used if data.root is null."""

    kind: Literal["clicks", "sequences", "interactions", "drifting", "sales", "queries", "positions"] = field(
        "clicks",
        "clicks: Criteo's raw format | sequences: items that users choose in order | interactions: items shown "
        "to users, with clicks, buys and ratings | drifting: days of them, whose clicks change from day to day | "
        "sales: of stores, by day | queries: documents with grades | positions: items of lists, with clicks",
    )
    rows: int = field(1_000_000, ge=MIN_SAMPLE_ROWS, le=10**10)
    seed: Natural = 0


def _if(says_something: Callable[[Any], bool]) -> AfterValidator:
    """Return a validator that replaces an empty part of the data by null."""
    return AfterValidator(lambda part: part if part is not None and says_something(part) else None)


@dataclass(config=CHECKED, frozen=True)
class DataConfig:
    """A data set: raw files, features, split and sample."""

    name: str = field(..., "name of the data set, which begins the names of its prepared folders")
    root: Name | None = field(None, "null: the built-in sample, if the data set has one")
    spec: str | None = field(None, "NVIDIA's feature_spec.yaml; adds its features, files and splits")
    prepared: Local = field("outputs/prepared", "folder of prepared Parquet, one folder for each fingerprint")
    source: SourceConfig = field(SourceConfig)
    derive: dict[str, str] = field(dict, "column -> SQL expression over the columns")
    where: str | None = field(None, "SQL over all columns: keep the rows for which it is true")
    k_core: dict[str, Count] = field(
        dict,
        "{user: 5, item: 5}: leave out rows until each user and each item that is left has this many; names of sparse "
        "features, or the column data.group.by",
    )
    label: LabelConfig = field(LabelConfig)
    labels: dict[str, NamedLabelConfig] = field(dict, "several labels by name, instead of `label`")
    weight: WeightConfig = field(WeightConfig)
    position: PositionConfig = field(PositionConfig)
    sample_negatives: float = field(
        1.0, "share of the training rows with label 0 that are kept; predictions are corrected for it", gt=0, le=1
    )
    split: SplitConfig = field(SplitConfig)
    group: Annotated[GroupConfig | None, _if(lambda c: c.by or c.together)] = field(
        GroupConfig, "null if it names no column", validate_default=True
    )
    sequences: Annotated[SequenceConfig | None, _if(lambda c: c.max_length)] = field(
        SequenceConfig, "null if max_length is 0", validate_default=True
    )
    items: ItemsConfig = field(ItemsConfig)
    semantic_ids: Annotated[SemanticIdsConfig | None, _if(lambda c: c.vectors or c.codes)] = field(
        SemanticIdsConfig, "null if it names no file", validate_default=True
    )
    dense_defaults: DenseConfig = field(lambda: DenseConfig(fill=0.0, transform=["log"]))
    sparse_defaults: SparseConfig = field(lambda: SparseConfig(encode="vocabulary", min_count=1, pooling="sum"))
    dense: dict[str, DenseConfig | None] = field(dict, "dense features: a DenseConfig for each name")
    sparse: dict[str, SparseConfig | None] = field(dict, "sparse features: a SparseConfig for each name")
    max_bad_rows: float = field(0.01, "stop if a larger share of rows cannot be read", ge=0, le=1)
    keep_read: bool = field(True, "cache raw files as read, so that another config need not read them again")
    verify: Literal["stat", "content"] = field("stat", "content: read all raw files to see whether they have changed")
    sample: SampleConfig | None = field(None, "the built-in sample that is generated if data.root is null")


@dataclass(config=CHECKED)
class EngineConfig:
    """The engine that reads raw files."""

    name: Literal["polars", "spark"] = field(
        "polars", "polars: this machine | spark: a cluster; both give the same rows"
    )
    master: str | None = field(
        None,
        "Spark's master: local[8], spark://HOST:7077, yarn; null: that of spark-submit or spark-defaults.conf, "
        "or local[*]",
    )
    options: dict[str, Any] = field(dict, "Spark options, such as spark.executor.memory: 16g")


@dataclass(config=CHECKED, kw_only=True)
class HeardConfig:
    """Where a command that takes long writes its messages and metrics for machines."""

    logging: Literal["text", "json"] = field(
        "text", "json: messages, progress and metrics as lines of JSON, in train.log, too"
    )
    metrics_port: int | None = field(
        None, "serve the last metrics and the progress to Prometheus; of rank 0; null: do not", ge=1, le=65535
    )
    metrics_host: Name = field("127.0.0.1", "address of this machine to listen on")
