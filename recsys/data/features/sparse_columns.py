"""Sparse features: a source of values, what is taken of earlier rows, and an encoder that makes ids of the values."""

from __future__ import annotations

from dataclasses import dataclass, field

from recsys.base.errors import UserError
from recsys.data.features.encoders import Encoder
from recsys.data.features.row_sources import LOOK_BACK_KEYS, Cross, FeatureEntry, LookBack, RowSource, Separated
from recsys.data.features.value_types import Moment, ValueType
from recsys.data.features.vectors import check_vectors
from recsys.interface.features import Pooling
from recsys.schema.data_schema import SparseConfig, TableVectorsConfig


@dataclass(frozen=True)
class SparseColumn:
    """A sparse feature. Two are equal if they make equal ids of equal rows, with equal vocabularies.

    key: its config key, for messages
    source: what it reads of a row
    look_back: what it takes of earlier rows; None if it reads its own row alone
    sequence: with data.sequences, the largest number of items whose values it has; None if it has one value
    encoder: how its values become ids
    table: its embedding table
    pooling: how a model pools a list of ids
    vectors: the pretrained vectors from which its table starts
    model: False if only metrics use the feature
    mean_length, expected_rows: of lists and of the table, for plans that are made without data
    """

    key: str = field(compare=False)
    source: RowSource
    look_back: LookBack | None
    sequence: int | None
    encoder: Encoder
    table: str
    pooling: Pooling
    vectors: TableVectorsConfig | None
    model: bool = field(compare=False)
    mean_length: float | None = field(compare=False)
    expected_rows: int | None = field(compare=False)

    @classmethod
    def from_config(cls, entry: FeatureEntry[SparseConfig], sequence: int | None = None) -> SparseColumn:
        """Return the feature of an entry. sequence: with data.sequences, the number of items of the longest sequence"""
        c, key = entry.full, entry.key
        if sequence is not None and (c.last is not None or c.age):
            what = "age=true: does not apply with data.sequences; set difference, the pause before each item"
            why = f"last={c.last}: does not apply with data.sequences, which has max_length; remove it"
            raise UserError(f"{key}.{what if c.age else why}")
        source, encoder = RowSource.from_config(entry), Encoder.from_config(entry)
        look_back = LookBack.from_config(c, key)
        if look_back is not None and isinstance(source, Separated):
            keys = [k for k in (*LOOK_BACK_KEYS, "split", "pattern") if getattr(c, k) is not None]
            raise UserError(f"{key}.{keys[0]}: reads one value a row, but {keys[1]} makes several; remove one of them")
        if look_back is not None and look_back.is_difference and c.quantiles is None:
            given = "age=true" if c.age else f"difference={c.difference}"
            raise UserError(f"{key}.{given}: is a number; set quantiles to make it sparse")
        if c.per is not None and sequence is None:
            raise UserError(f"{key}.per={c.per}: applies only with data.sequences")
        sequence = None if c.per == "group" else sequence
        if sequence is not None and isinstance(source, Separated):
            raise UserError(f"{key}: an item of a sequence has one value; set per=group, or remove split and pattern")
        if c.vectors is not None:
            if not encoder.pretrained:
                why = "because hashed values share rows of the table"
                raise UserError(f"{key}.vectors: needs encode=vocabulary or id, {why}")
            check_vectors(c.vectors, f"{key}.vectors")
        return cls(
            key,
            source,
            look_back,
            sequence,
            encoder,
            c.table or entry.name,
            "mean" if c.pooling == "mean" else "sum",
            c.vectors,
            c.model is not False,
            c.mean_length,
            c.rows,
        )

    @property
    def column(self) -> str:
        """The raw column; of a cross, the feature's name."""
        return self.source.column

    @property
    def value_type(self) -> ValueType:
        """The type of its values in parsed rows."""
        return Moment() if self.is_difference else self.encoder.value_type

    @property
    def is_difference(self) -> bool:
        """True if it is a difference between two rows, or an age; its column may hold numbers or times."""
        return self.look_back is not None and self.look_back.is_difference

    @property
    def lists_past(self) -> bool:
        """True if a row has a list of the ids, or ages, of earlier rows."""
        return self.look_back is not None and self.look_back.is_list

    @property
    def is_list(self) -> bool:
        """True if a row has a list of ids, not one."""
        return self.source.is_list or self.lists_past or self.sequence is not None

    @property
    def longest(self) -> int | None:
        """The length of the longest list of ids; None without a limit."""
        past = self.look_back if self.lists_past else None
        return self.sequence or (self.source.max_length if past is None else past.rows)

    @property
    def formless(self) -> str:
        """The part of the feature that ONNX cannot express; empty if there is none."""
        if not self.encoder.in_graphs:
            return f"encode: {self.encoder.encode}"
        return "a cross" if isinstance(self.source, Cross) else "a list" if self.is_list else ""

    @property
    def planned_rows(self) -> int | None:
        """The number of rows of its table that the config gives; None if it gives none."""
        return self.encoder.known_rows or self.expected_rows
