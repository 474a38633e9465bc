"""Resolve the features of a data config: fill in the defaults and look up the transforms' names."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, TypeVar

from recsys.data.transforms import encodings  # noqa: F401  (registers the transforms count and target)
from recsys.data.transforms.column_names import HISTORY, TARGETS
from recsys.data.transforms.steps import Fill, MinMax, Quantile, Reads, Transform, parse_step
from recsys.data.transforms.times import WAVES, Cyclic
from recsys.data.transforms.vectors import NORMALISE, parse_way
from recsys.errors import UserError, did_you_mean
from recsys.schema.data_schema import (
    DataConfig,
    DenseConfig,
    LabelConfig,
    SparseConfig,
    VectorsConfig,
)

C = TypeVar("C", DenseConfig, SparseConfig)

FILLS = ("mean", "median")
OF_ROWS = ("l2", "layer")  # ways to normalise a vector of a row: nothing is fitted
NUMBERS = ("quantiles", "id")  # encodings whose values are numbers, not text, in parsed rows


@dataclass(frozen=True)
class RowVector:
    """A vector of `width` numbers in a row: a list, or text divided by `split`."""

    width: int
    split: str | None
    normalise: tuple[str, ...]


@dataclass(frozen=True)
class DenseColumn:
    """One dense feature: `steps` are applied in order to a column of parsed rows.

    column: the raw column
    parsed: the column of parsed rows, named like the feature; with a lag, it holds the raw column of an earlier row
    reads: type as which the raw column is parsed
    fill: the number that replaces missing values, unless it is fitted
    steps: the transforms
    vectors: the vectors that values are looked up in
    row_vector: the vector that each row holds
    """

    column: str
    parsed: str
    reads: Reads
    fill: float | None
    steps: tuple[Transform, ...]
    vectors: VectorsConfig | None = None
    row_vector: RowVector | None = None

    @property
    def is_unit(self) -> bool:
        """True if the last transform makes numbers from 0 to 1."""
        return bool(self.steps) and isinstance(self.steps[-1], MinMax | Quantile)


def _row_vector(name: str, given: DenseConfig, width: int, where: str) -> DenseColumn:
    for key in ("fill", "transform", "lag", "difference"):
        if getattr(given, key) not in (None, []):
            raise UserError(f"{where}.{key}: does not apply to a vector; a missing vector becomes zeros")
    normalise = tuple(given.normalise or ())
    for way in normalise:
        if way not in OF_ROWS:
            raise UserError(f"{where}.normalise: {way} is unknown{did_you_mean(way, OF_ROWS)}")
    vector = RowVector(width, given.split, normalise)
    return DenseColumn(given.column or name, name, "vector", None, (), row_vector=vector)


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
    for key in ("fill", "transform", "lag", "difference"):
        if getattr(given, key) is not None:
            raise UserError(f"{where}: takes no {key}; a value without a vector gets zeros")
    check_vectors(vectors, where)
    return DenseColumn(given.column or name, name, "value", None, (), vectors)


def check_vectors(vectors: VectorsConfig, where: str) -> None:
    """Check the config of a file of vectors. Raises UserError if it has a mistake."""
    for way in vectors.normalise:
        try:
            parse_way(way)
        except ValueError as e:
            raise UserError(f"{where}.normalise: {e}{did_you_mean(str(way), NORMALISE)}") from e
    kind = vectors.file.rpartition(".")[2]
    if kind not in ("parquet", "npz", "npy"):
        raise UserError(f"{where}.file={vectors.file}: must be a .parquet, a .npz or a .npy file")
    other, other_kind = ("key", "parquet") if kind == "npy" else ("keys", "npy")
    if getattr(vectors, other):
        raise UserError(f"{where}.{other}: applies only to a .{other_kind} file; this is a .{kind} file")


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


def is_bag(c: SparseConfig) -> bool:
    """Return True if a row has a list of ids, not one."""
    return is_split(c) or c.last is not None


def is_split(c: SparseConfig) -> bool:
    """Return True if a raw row has any number of values."""
    return c.split is not None or c.pattern is not None


def known_rows(c: SparseConfig) -> int | None:
    """Return the number of rows of the feature's table if its config alone determines it, else None."""
    if c.encode == "id":
        return c.rows
    if c.encode == "hash" and c.buckets:
        return c.buckets + 1
    return c.quantiles + 2 if c.quantiles else None  # one row a bucket, row 0 (unused) and one for missing values


class ResolvedData(DataConfig):
    """A data config whose features are resolved once: defaults filled in, transforms looked up by name.

    `resolve` makes one from a DataConfig. Pass it on instead of resolving again, and do not modify it.

    key: the config key of this data, for messages; the item table's is data.items.
    item_vectors: of the item table: the features that data.items.vectors names.
    """

    key = "data"
    item_vectors: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.semantic_ids is not None and self.item_feature is not None:
            self.items = replace(self.items, sparse={**self.semantic_features, **self.items.sparse})
        elif self.semantic_ids is not None:
            self.sparse = {**self.sparse, **{n: c for n, c in self.semantic_features.items() if n not in self.sparse}}

    def vectors_key(self, name: str) -> str:
        """Return the config key of a dense feature's vectors, for messages."""
        return f"{self.key}.vectors.{name}" if name in self.item_vectors else f"{self.key}.dense.{name}.vectors"

    @cached_property
    def dense_columns(self) -> Mapping[str, DenseColumn]:
        """The dense features by name. Raises UserError if the config of a feature is invalid."""
        columns: dict[str, DenseColumn] = {}
        for name, c in self.dense.items():
            where = f"{self.key}.dense.{name}"
            if c and c.cyclic is not None:
                new = _cyclic(name, c, where)
            elif c and c.width is not None:
                new = {name: _row_vector(name, c, c.width, where)}
            elif c and c.vectors is not None:
                new = {name: _vectors(name, c, c.vectors, self.vectors_key(name))}
            else:
                new = {name: _numeric(self, name, c, where)}
            if twice := set(new) & set(columns):
                raise UserError(f"{where}: makes a feature {sorted(twice)[0]}, which exists; rename one of them")
            columns |= new
        return columns

    @cached_property
    def sparse_columns(self) -> Mapping[str, SparseConfig]:
        """The sparse features by name with the defaults filled in, single-valued features first."""
        columns = {n: _with_defaults(SparseConfig, self.sparse_defaults, c, n) for n, c in self.sparse.items()}
        for c in columns.values():
            c.encode = "quantiles" if c.quantiles is not None else c.encode
            if self.sequences is not None and c.per != "group":
                c.last = self.sequences.max_length + 1
        return dict(sorted(columns.items(), key=lambda item: is_bag(item[1])))

    @cached_property
    def raw_columns(self) -> tuple[tuple[str, str], ...]:
        """Pairs (config key, raw column) of all columns that features read."""
        dense = [(f"{self.key}.dense.{n}", (c and c.column) or n) for n, c in self.dense.items()]
        sparse = [
            (f"{self.key}.sparse.{n}", x) for n, c in self.sparse_columns.items() for x in c.cross or [c.column or n]
        ]
        return (*dense, *sparse)

    @property
    def column_reads(self) -> dict[str, set[str]]:
        """The ways in which features read each raw column: as number, value or time."""
        reads: dict[str, set[str]] = {}
        for d in self.dense_columns.values():
            reads.setdefault(d.column, set()).add("time" if d.parsed in self.moments else d.reads)
        for name, s in self.sparse_columns.items():
            number = name not in self.moments if s.encode == "quantiles" else s.encode == "id" and not is_split(s)
            for column in s.cross or [s.column or name]:
                reads.setdefault(column, set()).add("number" if number else "value")
        return reads

    @cached_property
    def differences(self) -> frozenset[str]:
        """The features that are differences between two rows."""
        return frozenset(n for n, c in [*self.dense.items(), *self.sparse.items()] if c and c.difference is not None)

    @cached_property
    def moments(self) -> frozenset[str]:
        """The features that are differences or ages; their columns may be numbers or times."""
        return self.differences | {n for n, c in self.sparse.items() if c and c.age}

    @cached_property
    def text_columns(self) -> tuple[str, ...]:
        """The columns of parsed rows that hold text or lists of text."""
        dense = [c.parsed for c in self.dense_columns.values() if c.reads == "value"]
        return (*dense, *(name for name, s in self.sparse_columns.items() if s.encode not in NUMBERS))

    @cached_property
    def label_configs(self) -> Mapping[str, LabelConfig]:
        """The labels by name, with their raw columns; none if rows have no label, as in sequences."""
        if self.sequences is not None:
            return {}
        if self.labels:
            return {name: replace(c, column=c.column or name) for name, c in self.labels.items()}
        return {} if self.label.column is None else {"label": self.label}

    @property
    def label_columns(self) -> list[str]:
        """The raw columns of the labels."""
        return [c.column or "" for c in self.label_configs.values()]

    def label_key(self, name: str) -> str:
        """Return the config key of a label, for messages."""
        return f"{self.key}.labels.{name}" if self.labels else f"{self.key}.label"

    @property
    def weight_column(self) -> str | None:
        """The raw column of the rows' weights; None if all rows have the same weight."""
        return self.weight.column if self.label_configs else None

    @property
    def together(self) -> bool:
        """True if prepared rows of a group follow each other and have its number, so that batches keep groups."""
        return self.group is not None and self.group.together

    @cached_property
    def frozen_tables(self) -> set[str]:
        """The tables that keep the pretrained vectors from which they start."""
        sparse = self.sparse_columns.items()
        return {c.table or n for n, c in sparse if c.vectors is not None and not c.vectors.trainable}

    @cached_property
    def item_feature(self) -> str | None:
        """The sparse feature whose values are retrieved; None if the data is not for retrieval."""
        if self.items.feature is not None or self.sequences is None:
            return self.items.feature
        return next(name for name, c in self.sparse.items() if c is None or c.per != "group")

    @property
    def query_columns(self) -> list[str]:
        """The columns of arranged rows that hold the items of a query."""
        return [] if self.item_feature is None else [TARGETS, HISTORY]

    @cached_property
    def item_table(self) -> "ResolvedData | None":
        """The data config of the item table, which has one row for each item; None without such a table."""
        if not self.has_item_table:
            return None
        key = self.item_key
        vectors: dict[str, DenseConfig | None] = {
            n: DenseConfig(column=key, vectors=v) for n, v in self.items.vectors.items()
        }
        if twice := sorted(vectors.keys() & self.items.dense.keys()):
            raise UserError(f"data.items.vectors.{twice[0]}: data.items.dense has this name, too; rename one of them")
        table = resolve(
            DataConfig(
                name=f"{self.name}.items",
                root=self.root,
                label=LabelConfig(column=None),
                dense_defaults=self.dense_defaults,
                sparse_defaults=self.sparse_defaults,
                dense=self.items.dense | vectors,
                sparse=self.items.sparse,
            ),
            "data.items",
        )
        table.item_vectors = frozenset(vectors)
        return table

    @property
    def has_item_table(self) -> bool:
        """True if items have features, in data.items.file or data.items.vectors."""
        coded = self.semantic_ids is not None and self.item_feature is not None
        return self.items.file is not None or bool(self.items.vectors) or coded

    @property
    def semantic_features(self) -> dict[str, SparseConfig]:
        """The features of semantic ids; codes of items are numbers, so that no two codes share a row."""
        c = self.semantic_ids
        if c is None:
            return {}
        levels = c.levels + c.unique
        own = SparseConfig() if self.item_feature is None else SparseConfig(encode="id", rows=c.size + 1)
        names = {f"semantic_{i + 1}": own for i in range(levels)}
        if not c.prefixes:
            return names
        prefixes = ("semantic_" + "_".join(str(i + 1) for i in range(n)) for n in range(2, levels + 1))
        return names | {name: SparseConfig() for name in prefixes}

    @property
    def item_key(self) -> str:
        """The column of the item table that holds the items."""
        return self.items.key or self.item_feature or ""

    def is_sequence(self, c: SparseConfig) -> bool:
        """Return True if a row is a sequence (data.sequences) and the feature has a value for each of its items."""
        return self.sequences is not None and c.last is not None

    def is_ordered(self, c: SparseConfig) -> bool:
        """Return True if a row has a list of ids whose order matters: one of a sequence, the values of earlier rows,
        or a list that shares the table of a single value, such as an item's.
        """
        if self.sequences is not None:
            return self.is_sequence(c)
        return c.last is not None or (is_bag(c) and c.table in self._tables_of_single_values)

    @cached_property
    def _tables_of_single_values(self) -> set[str]:
        return {c.table or name for name, c in self.sparse_columns.items() if not is_bag(c)}


def resolve(data: DataConfig, key: str = "data") -> ResolvedData:
    """Return the data config with its features resolved. A ResolvedData is returned unchanged."""
    if isinstance(data, ResolvedData):
        return data
    resolved = ResolvedData(**{f.name: getattr(data, f.name) for f in fields(DataConfig)})
    resolved.key = key
    return resolved


def _with_defaults(kind: type[C], defaults: C, given: C | None, name: str) -> C:
    values = {k: v for k, v in vars(defaults).items() if v is not None}
    values |= {k: v for k, v in vars(given).items() if v is not None} if given else {}
    return kind(**({"column": name} | values))
