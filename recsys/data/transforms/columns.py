"""What a data config says of each feature, with the defaults filled in and the transforms' names looked up."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from recsys.config.schema_data import (
    DataConfig,
    DenseConfig,
    LabelConfig,
    SparseConfig,
    VectorsConfig,
)
from recsys.data.transforms import encodings  # noqa: F401  (the names it gives to transforms)
from recsys.data.transforms.column_names import HISTORY, TARGETS
from recsys.data.transforms.steps import Fill, Reads, Step, step
from recsys.data.transforms.times import WAVES, Cyclic
from recsys.errors import UserError, did_you_mean
from recsys.features import DenseFeature, FeatureSpec, SparseFeature

FILLS = ("mean", "median")
NORMALISE = ("l2", "layer")
NUMBERS = ("quantiles", "id")  # encodings of numbers, which typed rows hold as such


@dataclass(frozen=True)
class DenseColumn:
    """One dense feature: `steps`, in order, over the column `typed` of typed rows, which is the raw `column` (of an
    earlier row, where the feature says so).
    """

    column: str
    typed: str
    reads: Reads
    fill: float | None  # where it is known beforehand
    steps: tuple[Step, ...]
    vectors: VectorsConfig | None = None  # what it becomes is a row of them


def dense_columns(data: DataConfig) -> dict[str, DenseColumn]:
    """The dense features by name. Raises UserError for what a config may not say of them."""
    columns: dict[str, DenseColumn] = {}
    for name, given in data.dense.items():
        if given and given.cyclic is not None:
            found = _cyclic(name, given)
        elif given and given.vectors is not None:
            found = {name: _of_vectors(name, given, given.vectors)}
        else:
            found = {name: _numeric(data, name, given)}
        if twice := set(found) & set(columns):
            raise UserError(f"data.dense.{name}: gives {sorted(twice)[0]}, which is another feature's name")
        columns |= found
    return columns


def _cyclic(name: str, given: DenseConfig) -> dict[str, DenseColumn]:
    """NAME_hour_sin, NAME_hour_cos, ...: defaults are of numbers, and a time is none."""
    if given.fill is not None or given.transform is not None:
        raise UserError(f"data.dense.{name}.cyclic: takes neither fill nor transform; a missing time gives 0 and 0")
    where, column = f"data.dense.{name}.cyclic", given.column or name
    if not given.cyclic:
        raise UserError(f"{where}: names no part of a time; such as [hour, day_of_week, month]")
    if twice := [part for part in given.cyclic if given.cyclic.count(part) > 1]:
        raise UserError(f"{where}: names {twice[0]} twice")
    return {
        f"{name}_{part}_{wave}": DenseColumn(column, name, Cyclic.reads, None, (step({"cyclic": [part, wave]}, where),))
        for part in given.cyclic
        for wave in WAVES
    }


def _of_vectors(name: str, given: DenseConfig, vectors: VectorsConfig) -> DenseColumn:
    where = f"data.dense.{name}.vectors"
    for key in ("fill", "transform", "lag", "difference"):
        if getattr(given, key) is not None:
            raise UserError(f"{where}: takes no {key}; a value without a vector gets zeros")
    for way in vectors.normalise:
        if way not in NORMALISE:
            raise UserError(f"{where}.normalise: no {way}{did_you_mean(way, NORMALISE)}")
    kind = vectors.file.rpartition(".")[2]
    if kind not in ("parquet", "npy"):
        raise UserError(f"{where}.file={vectors.file}: must be a .parquet or a .npy file")
    if (
        other := {"parquet": "keys", "npy": "key"}[kind]
        if getattr(vectors, {"parquet": "keys", "npy": "key"}[kind])
        else ""
    ):
        raise UserError(f"{where}.{other}: is not of a .{kind} file")
    return DenseColumn(given.column or name, name, "value", None, (), vectors)


def _numeric(data: DataConfig, name: str, given: DenseConfig | None) -> DenseColumn:
    c: DenseConfig = _with_defaults(DenseConfig, data.dense_defaults, given, name)
    where = f"data.dense.{name}"
    steps = [step(entry, f"{where}.transform") for entry in c.transform or []]
    for entry, s in zip((c.transform or [])[1:], steps[1:], strict=True):
        if s.reads != "number":
            raise UserError(f"{where}.transform: {_named(entry)} reads the raw column, so that it must come first")
    reads: Reads = steps[0].reads if steps else "number"
    if reads != "number":
        if given is not None and given.fill is not None:
            told = "to it a missing value is a value of its own" if reads == "value" else "a missing time gives 0"
            raise UserError(f"{where}.fill={given.fill}: {_named((c.transform or [])[0])} does not heed it; {told}")
        return DenseColumn(c.column or name, name, reads, None, tuple(steps))
    if c.fill is not None and (isinstance(c.fill, bool) or not isinstance(c.fill, int | float)):
        if c.fill not in FILLS:
            raise UserError(f"{where}.fill={c.fill}: is no number{did_you_mean(str(c.fill), FILLS)}")
        return DenseColumn(c.column or name, name, reads, None, (Fill(c.fill), *steps))
    fill = 0.0 if c.fill is None else float(c.fill)
    if not abs(fill) < float("inf"):
        raise UserError(f"{where}.fill={c.fill}: must be finite")
    return DenseColumn(c.column or name, name, reads, fill, tuple(steps))


def _named(entry: Any) -> str:
    return entry if isinstance(entry, str) else str(next(iter(entry)))


def sparse_columns(data: DataConfig) -> dict[str, SparseConfig]:
    """Each sparse feature's config with the defaults filled in, single-valued ones first."""
    columns = {n: _with_defaults(SparseConfig, data.sparse_defaults, c, n) for n, c in data.sparse.items()}
    for c in columns.values():
        c.encode = "quantiles" if c.quantiles is not None else c.encode
        if data.sequences is not None and c.per != "group":
            c.last = data.sequences.max_length + 1
    return dict(sorted(columns.items(), key=lambda item: is_bag(item[1])))


def is_bag(c: SparseConfig) -> bool:
    """Whether a row has any number of ids."""
    return is_split(c) or c.last is not None


def is_split(c: SparseConfig) -> bool:
    """Whether a raw row has any number of values."""
    return c.split is not None or c.pattern is not None


def is_sequence(data: DataConfig, c: SparseConfig) -> bool:
    """Whether a row has its ids in an order that counts."""
    return data.sequences is not None and c.last is not None


def known_rows(c: SparseConfig) -> int | None:
    """Rows of the feature's table where its config alone says how many."""
    if c.encode == "id":
        return c.rows
    if c.encode == "hash" and c.buckets:
        return c.buckets + 1
    return c.quantiles + 2 if c.quantiles else None  # 0, which nothing looks up, and one for what is missing


def raw_columns(data: DataConfig) -> list[tuple[str, str]]:
    """(who, raw column) for every column that a feature reads."""
    dense = [(f"data.dense.{n}", (c and c.column) or n) for n, c in data.dense.items()]
    sparse = [(f"data.sparse.{n}", x) for n, c in sparse_columns(data).items() for x in c.cross or [c.column or n]]
    return dense + sparse


def column_reads(data: DataConfig) -> dict[str, set[str]]:
    """By raw column, what features read it as: number, value, time."""
    reads: dict[str, set[str]] = {}
    moments = differences(data)
    for d in dense_columns(data).values():
        reads.setdefault(d.column, set()).add("time" if d.typed in moments else d.reads)
    for name, s in sparse_columns(data).items():
        number = name not in moments if s.encode == "quantiles" else s.encode == "id" and not is_split(s)
        for column in s.cross or [s.column or name]:
            reads.setdefault(column, set()).add("number" if number else "value")
    return reads


def differences(data: DataConfig) -> set[str]:
    """Features of a difference, which may be of times."""
    return {n for n, c in [*data.dense.items(), *data.sparse.items()] if c and c.difference is not None}


def text_columns(data: DataConfig) -> list[str]:
    """The columns of typed rows that hold text, or lists of it."""
    dense = [c.typed for c in dense_columns(data).values() if c.reads == "value"]
    return dense + [name for name, s in sparse_columns(data).items() if s.encode not in NUMBERS]


def label_column(data: DataConfig) -> str | None:
    """The raw column of the label; None where rows have none, as sequences."""
    return data.label.column if data.sequences is None else None


def item_feature(data: DataConfig) -> str | None:
    """The sparse feature whose values are retrieved, where rows are for that."""
    if data.items.feature is not None or data.sequences is None:
        return data.items.feature
    return next(name for name, c in data.sparse.items() if c is None or c.per != "group")


def query_columns(data: DataConfig) -> list[str]:
    """Of arranged rows, the columns that hold items beside features."""
    return [] if item_feature(data) is None else [TARGETS, HISTORY]


def items_config(data: DataConfig) -> DataConfig | None:
    """The table of items as data of its own: a row an item, ITEM its value."""
    if data.items.file is None:
        return None
    return DataConfig(
        name=f"{data.name}.items",
        root=data.root,
        label=LabelConfig(column=None),
        dense_defaults=data.dense_defaults,
        sparse_defaults=data.sparse_defaults,
        dense=data.items.dense,
        sparse=data.items.sparse,
    )


def feature_spec(
    data: DataConfig,
    rows: Callable[[str, SparseConfig], int],
    width: Callable[[str], int] = lambda _: 8,
    *,
    items: bool = True,
) -> FeatureSpec:
    """What models see of this config: a sparse feature's table has rows(name, config) rows, a vector width(name).

    items: with what is known of items.
    """
    about_items = items_config(data) if items else None
    return FeatureSpec(
        dense=tuple(
            DenseFeature(n) if c.vectors is None else DenseFeature(n, width(n), True)
            for n, c in dense_columns(data).items()
        ),
        sparse=tuple(
            SparseFeature(
                n, rows(n, c), c.table or n, "mean" if c.pooling == "mean" else "sum", is_bag(c), is_sequence(data, c)
            )
            for n, c in sparse_columns(data).items()
            if c.model is not False
        ),
        labels=("label",) if label_column(data) else (),
        item=item_feature(data),
        items=None if about_items is None else feature_spec(about_items, rows, width),
    )


def _with_defaults(kind: Any, defaults: Any, given: Any, name: str) -> Any:
    values = {k: v for k, v in vars(defaults).items() if v is not None}
    values |= {k: v for k, v in vars(given).items() if v is not None} if given else {}
    return kind(**({"column": name} | values))
