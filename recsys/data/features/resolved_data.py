"""Resolve the features of a data config: defaults, an object of each feature, and the inputs of the model."""

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from functools import cached_property

import polars as pl

from recsys.base.errors import UserError, did_you_mean
from recsys.data.features.blocks import CONDITION, GROUP, HISTORY, ORDER, PLACE, TARGETS, TIME, TIMES, prefix_name
from recsys.data.features.dense_columns import DenseColumn, dense_columns
from recsys.data.features.encoders import SparseColumn
from recsys.data.features.label_kinds import LabelColumn
from recsys.data.features.row_sources import C, FeatureEntry, LookBack, RowSource
from recsys.data.features.value_types import Text, ValueType
from recsys.interface.features import FeatureSpec, PositionBias, SparseFeature
from recsys.interface.labels import Label
from recsys.schema.data_schema import DataConfig, DenseConfig, GroupConfig, LabelConfig, SparseConfig


class ResolvedData(DataConfig):
    """A data config whose features are resolved once: defaults filled in, transforms looked up by name.

    `resolve` makes one from a DataConfig. Pass it on instead of resolving again; it is frozen.

    key: the config key of this data, for messages; the item table's is data.items.
    item_vectors: of the item table: the features that data.items.vectors names.
    """

    key = "data"
    item_vectors: frozenset[str] = frozenset()

    @cached_property
    def dense_columns(self) -> Mapping[str, DenseColumn]:
        """The dense features by name. Raises UserError if the config of a feature is invalid."""
        columns: dict[str, DenseColumn] = {}
        for name, own in self.dense.items():
            entry = _entry(f"{self.key}.dense", name, own or DenseConfig(), self.dense_defaults)
            new = dense_columns(entry, f"{self.key}.vectors.{name}" if name in self.item_vectors else None)
            if twice := set(new) & set(columns):
                raise UserError(f"{entry.key}: makes a feature {sorted(twice)[0]}, which exists; rename one of them")
            columns |= new
        return columns

    @cached_property
    def sparse_columns(self) -> Mapping[str, SparseColumn]:
        """The sparse features by name, single-valued ones first. Raises UserError if a feature's config is invalid."""
        columns = {}
        length = None if self.sequences is None else self.sequences.max_length + 1
        for name, own in self.sparse.items():
            entry = _entry(f"{self.key}.sparse", name, own or SparseConfig(), self.sparse_defaults)
            columns[name] = SparseColumn.from_config(entry, length)
        return dict(sorted(columns.items(), key=lambda item: item[1].is_list))

    @cached_property
    def parsed_columns(self) -> Mapping[str, tuple[RowSource, ValueType, str]]:
        """The source, type and config key of each column of parsed rows that features read."""
        columns = {c.parsed: (c.source, c.value_type, c.key) for c in self.dense_columns.values()}
        return {**columns, **{n: (c.source, c.value_type, c.key) for n, c in self.sparse_columns.items()}}

    @cached_property
    def raw_columns(self) -> tuple[tuple[str, str], ...]:
        """Pairs (config key, raw column) of all columns that features read."""
        return tuple((key, x) for source, _, key in self.parsed_columns.values() for x in source.columns)

    @property
    def moments(self) -> dict[str, str]:
        """The raw columns by which rows are split and ordered in time, by the columns of parsed rows that have them."""
        split = {TIME: self.split.column} if self.split.by == "time" and self.split.column else {}
        return split | ({ORDER: self.group.order} if self.group is not None and self.group.order else {})

    @property
    def column_reads(self) -> dict[str, set[type[ValueType]]]:
        """The types as which features read each raw column; lists are read as text."""
        reads: dict[str, set[type[ValueType]]] = {}
        for source, value_type, _ in self.parsed_columns.values():
            for column in source.columns:
                reads.setdefault(column, set()).add(Text if source.is_list else type(value_type))
        return reads

    @property
    def columns(self) -> list[DenseColumn | SparseColumn]:
        """All features."""
        return [*self.dense_columns.values(), *self.sparse_columns.values()]

    @cached_property
    def look_backs(self) -> Mapping[str, LookBack]:
        """What features take of earlier rows of their group, by the columns of parsed rows."""
        past = {c.parsed: c.look_back for c in self.dense_columns.values()}
        past |= {n: c.look_back for n, c in self.sparse_columns.items()}
        return {n: look_back for n, look_back in past.items() if look_back is not None}

    @cached_property
    def conditions(self) -> list[str]:
        """The columns of parsed rows that say which earlier rows features take; of raw rows, they are derived."""
        return [look_back.condition for look_back in self.look_backs.values() if look_back.condition is not None]

    @property
    def has_moments(self) -> bool:
        """True if rows of a group with an equal order are one moment, and do not see each other."""
        return self.group is not None and self.group.ties == "moment"

    @cached_property
    def text_columns(self) -> tuple[str, ...]:
        """The columns of parsed rows that hold text or lists of text."""
        return tuple(name for name, (_, value_type, _) in self.parsed_columns.items() if isinstance(value_type, Text))

    @cached_property
    def core_columns(self) -> Mapping[str, str]:
        """The column of parsed rows of each name in k_core. Raises UserError if it has no single value a row."""
        columns = {}
        for name in self.k_core:
            c = self.sparse_columns.get(name)
            if self.group is not None and name == self.group.by:
                columns[name] = GROUP
            elif c is not None and c.look_back is None and not c.source.is_list:
                columns[name] = name
            else:
                by = "" if self.group is None else self.group.by
                raise UserError(
                    f"{self.key}.k_core.{name}: must be a sparse feature with one value a row, or the column of "
                    f"data.group.by{did_you_mean(name, filter(None, [*self.sparse, by]))}"
                )
        return columns

    @cached_property
    def label_configs(self) -> Mapping[str, LabelConfig]:
        """The labels by name, with their raw columns; none if rows have no label, as in sequences."""
        if self.sequences is not None:
            return {}
        if self.labels:
            return {name: replace(c, column=c.column or name) for name, c in self.labels.items()}
        return {} if self.label.column is None else {"label": self.label}

    @cached_property
    def label_kinds(self) -> Mapping[str, LabelColumn]:
        """The labels by name, as objects of their kinds. Raises UserError if the config of a label is invalid."""
        return {name: LabelColumn.from_config(c, self.label_key(name)) for name, c in self.label_configs.items()}

    def without_rows(self, split: str) -> UserError:
        """Return the error of a split that has no rows."""
        keys = "data.split or data.k_core" if self.k_core else "data.split"
        return UserError(f"data={self.name}: the {split} split has no rows; change {keys}")

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
    def position_column(self) -> str | None:
        """The raw column of the rows' positions; None if they have none."""
        return self.position.column if self.label_configs else None

    @property
    def position_bias(self) -> PositionBias | None:
        """What the position of a row does to its labels; None if rows have none."""
        c = self.position
        return None if self.position_column is None else PositionBias(c.first or 0, tuple(c.features), c.bias)

    @property
    def together(self) -> bool:
        """True if prepared rows of a group follow each other and have its number, so that batches keep groups."""
        return self.group is not None and self.group.together

    @cached_property
    def frozen_tables(self) -> set[str]:
        """The tables that keep the pretrained vectors from which they start."""
        sparse = self.sparse_columns.items()
        return {c.table for _, c in sparse if c.vectors is not None and not c.vectors.trainable}

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

    @property
    def recency_columns(self) -> list[str]:
        """The columns of arranged rows by which sequences are sorted: the order of the last row, then its place."""
        return [] if self.sequences is None else [ORDER, PLACE]

    @property
    def list_columns(self) -> list[str]:
        """The columns of arranged rows that say which items lists are made of, and when they ended."""
        return [*self.query_columns, *self.recency_columns, *self.time_columns]

    @property
    def time_columns(self) -> list[str]:
        """The columns of arranged rows that hold the times of a group's training items."""
        return [TIMES] if self.sequences is not None and self.group is not None and self.group.order else []

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
        return resolve(
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
            frozenset(vectors),
        )

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
        return names | {prefix_name(n): SparseConfig() for n in range(2, levels + 1)}

    @property
    def item_key(self) -> str:
        """The column of the item table that holds the items."""
        return self.items.key or self.item_feature or ""

    def is_ordered(self, name: str) -> bool:
        """Return True if a row has a list of ids of this feature whose order matters.

        It is that of a sequence, of earlier rows, or a list that shares the table of a single value, such as an item's.
        """
        c = self.sparse_columns[name]
        if self.sequences is not None:
            return c.sequence is not None
        return c.lists_past or (c.is_list and c.table != name and c.table in self._tables_of_single_values)

    @cached_property
    def _tables_of_single_values(self) -> set[str]:
        return {c.table for c in self.sparse_columns.values() if not c.is_list}


def resolve(data: DataConfig, key: str = "data", item_vectors: frozenset[str] = frozenset()) -> ResolvedData:
    """Return the data config with its features resolved. A ResolvedData is returned unchanged.

    key, item_vectors: see ResolvedData
    """
    if isinstance(data, ResolvedData):
        return data
    resolved = ResolvedData(**{f.name: getattr(data, f.name) for f in fields(DataConfig)})
    if (coded := resolved.semantic_features) and resolved.item_feature is not None:
        resolved = replace(resolved, items=replace(resolved.items, sparse={**coded, **resolved.items.sparse}))
    elif coded:
        new = {n: c for n, c in coded.items() if n not in resolved.sparse}
        resolved = replace(resolved, sparse={**resolved.sparse, **new})
    conditions = {f"{CONDITION}{key}.dense.{n}.where": c.where for n, c in resolved.dense.items() if c and c.where}
    conditions |= {f"{CONDITION}{key}.sparse.{n}.where": c.where for n, c in resolved.sparse.items() if c and c.where}
    resolved = replace(resolved, derive={**resolved.derive, **conditions}, group=_with_ties(resolved))
    vars(resolved).update(key=key, item_vectors=item_vectors)
    return resolved


def with_zones(data: ResolvedData, types: Mapping[str, pl.DataType]) -> ResolvedData:
    """Return the config with the time zones of parts of times that it leaves to the files. types: of raw columns"""
    dense = dict(data.dense)
    for name, c in data.dense.items():
        zone = getattr(types.get(c.column or name), "time_zone", None) if c is not None and c.cyclic else None
        if c is not None and zone and not (c.time_zone or data.dense_defaults.time_zone):
            dense[name] = replace(c, time_zone=zone)
    return data if dense == data.dense else replace(data, dense=dense)


def _with_ties(data: DataConfig) -> GroupConfig | None:
    """Return the group with the meaning of ties: in sequences and retrieval, the order of all rows counts."""
    if (c := data.group) is None or c.ties is not None:
        return c
    in_order = c.order is None or data.sequences is not None or data.items.feature is not None
    return replace(c, ties="order" if in_order else "moment")


def _entry(key: str, name: str, own: C, defaults: C) -> FeatureEntry[C]:
    given = {k: v for config in (defaults, own) for k, v in vars(config).items() if v is not None}
    return FeatureEntry(name, f"{key}.{name}", own, type(own)(**given))


def feature_spec(
    data: ResolvedData,
    rows: Callable[[SparseColumn], int],
    width: Callable[[str], int] = lambda _: 8,
    *,
    items: bool = True,
    labels: tuple[Label, ...] | None = None,
) -> FeatureSpec:
    """Return the features that models see.

    Args:
        rows: returns the number of rows of a sparse feature's table.
        width: returns the width of a dense feature's vectors from its name.
        items: include the item table's features.
        labels: the labels with what was fitted; by default without.
    """
    items_data = data.item_table if items else None
    return FeatureSpec(
        dense=tuple(c.spec(name, width) for name, c in data.dense_columns.items()),
        sparse=tuple(
            SparseFeature(
                name,
                rows(c),
                c.table,
                c.pooling,
                c.is_list,
                data.is_ordered(name),
                frozen=c.table in data.frozen_tables,
            )
            for name, c in data.sparse_columns.items()
            if c.model
        ),
        labels=plain_labels(data) if labels is None else labels,
        item=data.item_feature,
        item_ids=data.items.ids,
        items=None if items_data is None else feature_spec(items_data, rows, width),
        weighted=data.weight_column is not None,
        grouped=data.together,
        position=data.position_bias,
    )


def plain_labels(data: ResolvedData) -> tuple[Label, ...]:
    """Return the labels without what is fitted."""
    return tuple(c.label(name, data.sample_negatives) for name, c in data.label_kinds.items())
