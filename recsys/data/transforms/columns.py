"""Resolve the features of a data config: fill in the defaults and look up the transforms' names."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from recsys.config.schema_data import (
    DataConfig,
    DenseConfig,
    LabelConfig,
    SparseConfig,
    VectorsConfig,
)
from recsys.data.transforms import encodings  # noqa: F401  (registers the transforms count and target)
from recsys.data.transforms.column_names import HISTORY, TARGETS
from recsys.data.transforms.steps import Fill, Reads, Step, parse_step
from recsys.data.transforms.times import WAVES, Cyclic
from recsys.errors import UserError, did_you_mean
from recsys.features import DenseFeature, FeatureSpec, SparseFeature

C = TypeVar("C", DenseConfig, SparseConfig)

FILLS = ("mean", "median")
NORMALISE = ("l2", "layer")
NUMBERS = ("quantiles", "id")  # encodings whose values are numbers, not text, in parsed rows


@dataclass(frozen=True)
class DenseColumn:
    """One dense feature: `steps` are applied in order to a column of parsed rows.

    column: the raw column
    parsed: the column of parsed rows, named like the feature; with a lag, it holds the raw column of an earlier row
    reads: how the raw column is parsed
    fill: the number that replaces missing values, unless it is fitted
    steps: the transforms
    vectors: the vectors that values are looked up in
    """

    column: str
    parsed: str
    reads: Reads
    fill: float | None
    steps: tuple[Step, ...]
    vectors: VectorsConfig | None = None


def dense_columns(data: DataConfig, key: str = "data") -> dict[str, DenseColumn]:
    """Return the dense features by name.

    Args:
        data: the data config.
        key: the config key of `data`, for messages; data.items has features of its own.

    Raises:
        UserError: the config of a feature is wrong.
    """
    columns: dict[str, DenseColumn] = {}
    for name, c in data.dense.items():
        where = f"{key}.dense.{name}"
        if c and c.cyclic is not None:
            new = _cyclic(name, c, where)
        elif c and c.vectors is not None:
            new = {name: _vectors(name, c, c.vectors, where)}
        else:
            new = {name: _numeric(data, name, c, where)}
        if twice := set(new) & set(columns):
            raise UserError(f"{where}: makes a feature {sorted(twice)[0]}, which exists already; rename one of them")
        columns |= new
    return columns


def _cyclic(name: str, given: DenseConfig, where: str) -> dict[str, DenseColumn]:
    """Return NAME_hour_sin, NAME_hour_cos, ... Defaults apply to numbers, so not to these."""
    where, column = f"{where}.cyclic", given.column or name
    if given.fill is not None or given.transform is not None:
        raise UserError(f"{where}: takes neither fill nor transform; a missing time becomes 0 and 0")
    if not given.cyclic:
        raise UserError(f"{where}: is empty; list parts of a time, such as [hour, day_of_week, month]")
    if twice := [part for part in given.cyclic if given.cyclic.count(part) > 1]:
        raise UserError(f"{where}: names {twice[0]} twice")
    return {
        f"{name}_{part}_{wave}": DenseColumn(
            column, name, Cyclic.reads, None, (parse_step({"cyclic": [part, wave]}, where),)
        )
        for part in given.cyclic
        for wave in WAVES
    }


def _vectors(name: str, given: DenseConfig, vectors: VectorsConfig, where: str) -> DenseColumn:
    where = f"{where}.vectors"
    for key in ("fill", "transform", "lag", "difference"):
        if getattr(given, key) is not None:
            raise UserError(f"{where}: takes no {key}; a value without a vector gets zeros")
    for way in vectors.normalise:
        if way not in NORMALISE:
            raise UserError(f"{where}.normalise: {way} is unknown{did_you_mean(way, NORMALISE)}")
    kind = vectors.file.rpartition(".")[2]
    if kind not in ("parquet", "npy"):
        raise UserError(f"{where}.file={vectors.file}: must be a .parquet or a .npy file")
    other, other_kind = {"parquet": ("keys", "npy"), "npy": ("key", "parquet")}[kind]
    if getattr(vectors, other):
        raise UserError(f"{where}.{other}: applies only to a .{other_kind} file; this is a .{kind} file")
    return DenseColumn(given.column or name, name, "value", None, (), vectors)


def _numeric(data: DataConfig, name: str, given: DenseConfig | None, where: str) -> DenseColumn:
    c = _with_defaults(DenseConfig, data.dense_defaults, given, name)
    steps = [parse_step(entry, f"{where}.transform") for entry in c.transform or []]
    for entry, s in zip((c.transform or [])[1:], steps[1:], strict=True):
        if s.reads != "number":
            raise UserError(f"{where}.transform: {_entry_name(entry)} reads the raw column; put it first")
    reads: Reads = steps[0].reads if steps else "number"
    if reads != "number":
        if given is not None and given.fill is not None:
            transform = _entry_name((c.transform or [])[0])
            reason = "encodes a missing value like any other" if reads == "value" else "turns a missing time into 0"
            raise UserError(f"{where}.fill={given.fill}: is ignored with {transform}, which {reason}; remove fill")
        return DenseColumn(c.column or name, name, reads, None, tuple(steps))
    if c.fill is not None and (isinstance(c.fill, bool) or not isinstance(c.fill, int | float)):
        if c.fill not in FILLS:
            raise UserError(
                f"{where}.fill={c.fill}: must be a number, mean or median{did_you_mean(str(c.fill), FILLS)}"
            )
        return DenseColumn(c.column or name, name, reads, None, (Fill(c.fill), *steps))
    fill = 0.0 if c.fill is None else float(c.fill)
    if not abs(fill) < float("inf"):
        raise UserError(f"{where}.fill={c.fill}: must be finite")
    return DenseColumn(c.column or name, name, reads, fill, tuple(steps))


def _entry_name(entry: Any) -> str:
    """Return the name of the transform in `log` or `{clip: [0, 1]}`."""
    return entry if isinstance(entry, str) else str(next(iter(entry)))


def sparse_columns(data: DataConfig) -> dict[str, SparseConfig]:
    """Return each sparse feature's config with the defaults filled in, single-valued features first."""
    columns = {n: _with_defaults(SparseConfig, data.sparse_defaults, c, n) for n, c in data.sparse.items()}
    for c in columns.values():
        c.encode = "quantiles" if c.quantiles is not None else c.encode
        if data.sequences is not None and c.per != "group":
            c.last = data.sequences.max_length + 1
    return dict(sorted(columns.items(), key=lambda item: is_bag(item[1])))


def is_bag(c: SparseConfig) -> bool:
    """Return True if a row has a list of ids, not one."""
    return is_split(c) or c.last is not None


def is_split(c: SparseConfig) -> bool:
    """Return True if a raw row has any number of values."""
    return c.split is not None or c.pattern is not None


def is_sequence(data: DataConfig, c: SparseConfig) -> bool:
    """Return True if a row has a list of ids whose order matters."""
    return data.sequences is not None and c.last is not None


def known_rows(c: SparseConfig) -> int | None:
    """Return the number of rows of the feature's table if its config alone determines it, else None."""
    if c.encode == "id":
        return c.rows
    if c.encode == "hash" and c.buckets:
        return c.buckets + 1
    return c.quantiles + 2 if c.quantiles else None  # one row a bucket, row 0 (unused) and one for missing values


def raw_columns(data: DataConfig, key: str = "data") -> list[tuple[str, str]]:
    """Return (config key, raw column) for every column that a feature reads. key: the config key of `data`."""
    dense = [(f"{key}.dense.{n}", (c and c.column) or n) for n, c in data.dense.items()]
    sparse = [(f"{key}.sparse.{n}", x) for n, c in sparse_columns(data).items() for x in c.cross or [c.column or n]]
    return dense + sparse


def column_reads(data: DataConfig) -> dict[str, set[str]]:
    """Return how features read each raw column: as number, value or time."""
    reads: dict[str, set[str]] = {}
    moments = differences(data)
    for d in dense_columns(data).values():
        reads.setdefault(d.column, set()).add("time" if d.parsed in moments else d.reads)
    for name, s in sparse_columns(data).items():
        number = name not in moments if s.encode == "quantiles" else s.encode == "id" and not is_split(s)
        for column in s.cross or [s.column or name]:
            reads.setdefault(column, set()).add("number" if number else "value")
    return reads


def differences(data: DataConfig) -> set[str]:
    """Return the features that are differences; their columns may be times."""
    return {n for n, c in [*data.dense.items(), *data.sparse.items()] if c and c.difference is not None}


def text_columns(data: DataConfig) -> list[str]:
    """Return the columns of parsed rows that hold text or lists of text."""
    dense = [c.parsed for c in dense_columns(data).values() if c.reads == "value"]
    return dense + [name for name, s in sparse_columns(data).items() if s.encode not in NUMBERS]


def label_column(data: DataConfig) -> str | None:
    """Return the raw column of the label; None if rows have no label, as in sequences."""
    return data.label.column if data.sequences is None else None


def item_feature(data: DataConfig) -> str | None:
    """Return the sparse feature whose values are retrieved; None if the data is not for retrieval."""
    if data.items.feature is not None or data.sequences is None:
        return data.items.feature
    return next(name for name, c in data.sparse.items() if c is None or c.per != "group")


def query_columns(data: DataConfig) -> list[str]:
    """Return the columns of arranged rows that hold the items of a query."""
    return [] if item_feature(data) is None else [TARGETS, HISTORY]


def items_config(data: DataConfig) -> DataConfig | None:
    """Return a data config for the item table, which has one row for each item; None if there is no such table."""
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
    """Return the features that models see.

    Args:
        data: the data config.
        rows: returns the number of rows of a sparse feature's table from its name and config.
        width: returns the width of a dense feature's vectors from its name.
        items: include the item table's features.
    """
    items_data = items_config(data) if items else None
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
        items=None if items_data is None else feature_spec(items_data, rows, width),
    )


def _with_defaults(kind: type[C], defaults: C, given: C | None, name: str) -> C:
    values = {k: v for k, v in vars(defaults).items() if v is not None}
    values |= {k: v for k, v in vars(given).items() if v is not None} if given else {}
    return kind(**({"column": name} | values))
