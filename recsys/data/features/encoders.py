"""Sparse features, and how their values become ids: rows of an embedding table. An encoder is one class."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, ClassVar

import numpy as np
import polars as pl

from recsys.base.errors import UserError, did_you_mean
from recsys.data.features.row_sources import LOOK_BACK_KEYS, Cross, FeatureEntry, LookBack, RowSource, Separated
from recsys.data.features.training_statistics import Counts, ValueSample
from recsys.data.features.value_index import bucket_ids
from recsys.data.features.value_types import Moment, Number, RowNumber, Text, ValueType
from recsys.data.features.vectors import check_vectors_config
from recsys.interface.features import Pooling
from recsys.schema.data_schema import SparseConfig, TableVectorsConfig

EVICT = {"age": ("seen", "count"), "count": ("count", "seen")}  # what the rows to be taken are sorted by
Lookup = Callable[[pl.Expr], pl.Expr]  # text or codes -> the Int32 index of each value
IdsOfNumbers = Callable[[np.ndarray], np.ndarray]  # (rows,) float64 -> (rows,) ids; ValueError if there is none
State = list[float] | dict[str, float]  # what an encoder has learnt, as JSON holds it


@dataclass(frozen=True)
class Encoder:
    """How values become ids. Two encoders are equal if they give equal ids to equal vocabularies.

    An encoder's fields are the keys of a sparse feature that apply to it. An encoder of text has a `vocabulary`, or
    implements `look_up`; one of numbers implements `ids` and `ids_of_numbers`. docs/how_to/add/encoder.md adds one.

    encode: its name in YAML
    chosen_by: the key that chooses it instead of its name; None for the key `encode`
    excludes: other keys that it cannot be used with, and the reason
    suffix: of the kind of a feature in data profiles
    pretrained: whether its table may start from vectors of the values
    in_graphs: whether a graph of ONNX can hold it
    knows_all: whether each value has a row of its own, also those that training has not seen
    """

    encode: ClassVar[str]
    chosen_by: ClassVar[str | None] = None
    excludes: ClassVar[tuple[tuple[str, str], ...]] = ()
    suffix: ClassVar[str] = ""
    pretrained: ClassVar[bool] = False
    in_graphs: ClassVar[bool] = False
    knows_all: ClassVar[bool] = False

    @staticmethod
    def from_config(entry: FeatureEntry[SparseConfig]) -> Encoder:
        """Return the encoder of a sparse feature."""
        c, own, where = entry.full, entry.own, entry.key
        named = {name: e for name, e in ENCODERS.items() if e.chosen_by is None}
        chosen = next((e for e in ENCODERS.values() if e.chosen_by and getattr(c, e.chosen_by) is not None), None)
        encoder = chosen or named.get(name := c.encode or Vocabulary.encode)
        if encoder is None:
            raise UserError(f"{where}.encode={c.encode}: unknown{did_you_mean(name, named)}")
        shown = encoder.chosen_by or f"encode={encoder.encode}"
        keys = {f.name for f in fields(encoder)} | (set() if encoder.chosen_by else {"encode"})
        of_encoders = {f.name for e in ENCODERS.values() if e.chosen_by is None for f in fields(e)} - {"rows"}
        for key in ("encode", *sorted(of_encoders)):  # rows may also be the expected number of a plan
            if (given := getattr(own, key)) is not None and key not in keys:
                raise UserError(f"{where}.{key}={given}: does not apply to {shown}; remove one of them")
        for key, reason in encoder.excludes:
            if getattr(c, key) is not None:
                raise UserError(f"{where}.{key}={getattr(c, key)}: cannot be combined with {shown}: {reason}")
        options = {f.name: value for f in fields(encoder) if (value := getattr(c, f.name)) is not None}
        for f in fields(encoder):
            if f.default is MISSING and f.name not in options:
                raise UserError(f"{where}.{f.name}: missing; {shown} needs it")
        return encoder(**options)

    @property
    def value_type(self) -> ValueType:
        """The type of the values in parsed rows."""
        return Text()

    @property
    def parsed_as(self) -> object:
        """The settings by which values are parsed, for the fingerprints of prepared data."""
        return False

    @property
    def known_rows(self) -> int | None:
        """The number of rows of the table; None if a vocabulary decides it."""
        return None

    @property
    def vocabulary(self) -> Vocabulary | None:
        """The rules of the table's vocabulary, in which text is looked up; None if there is none."""
        return None

    @property
    def ranges(self) -> int | None:
        """The number of ranges of numbers that share a row; None if rows are of values."""
        return None

    @property
    def buckets_of_crc(self) -> int | None:
        """The number of buckets of text's CRC-32, which single rows are hashed into quickly; None for other lookups."""
        return None

    def statistic(self) -> Counts | ValueSample | None:
        """Return the statistic to collect from the training split; None if nothing is fitted."""
        return None

    def fit(self, seen: Any) -> State:
        """Return what is learnt from the statistic: the ValueSample, or a frame (value, count) of Counts."""
        raise NotImplementedError

    def look_up(self, values: pl.Series, state: State) -> pl.Series:
        """Return the ids of text without a vocabulary, (rows,) -> (rows,)."""
        raise NotImplementedError

    def ids(self, x: pl.Expr, look_up: Lookup | None, state: State) -> pl.Expr:
        """Return the ids of values.

        Args:
            look_up: the lookup of text; None for encoders of numbers.
        """
        assert look_up is not None
        return look_up(x)

    def ids_of_numbers(self, state: State) -> IdsOfNumbers:
        """Return the function from float64 numbers, NaN if missing, to ids, for encoders of numbers."""
        raise NotImplementedError

    def values_of_rows(self, vocabulary: pl.DataFrame) -> pl.DataFrame:
        """Return the values that have a row, as text, and their ids: (value, id). For those that are `pretrained`."""
        return vocabulary.select("value", "id")


@dataclass(frozen=True)
class Vocabulary(Encoder):
    """Ids from 1 by descending count in the training split; values that are rare or were never seen share id 0.

    min_count: values rarer than this have no row; 0: values of validation and test rows alone have rows, too
    capacity: the largest number of rows; None without a limit
    evict: which values give their rows to new ones in later trainings: those unseen for the longest time (age), or the
        rarest (count)
    admit: in later trainings, the probability with which each occurrence of a new value gives it a row
    """

    encode = "vocabulary"
    pretrained = in_graphs = True
    min_count: int = field(default=1, compare=False)
    capacity: int | None = field(default=None, compare=False)
    evict: str | None = field(default=None, compare=False)
    admit: float | None = field(default=None, compare=False)

    @classmethod
    def strictest(cls, encoders: Iterable[Encoder]) -> Vocabulary:
        """Return the rules of a table that several features share."""
        rules = [e.vocabulary for e in encoders if e.vocabulary is not None]
        capacity = min((e.capacity for e in rules if e.capacity is not None), default=None)
        admit = min((e.admit for e in rules if e.admit is not None), default=None)
        evict = next((e.evict for e in rules if e.evict), None)
        return cls(max(e.min_count for e in rules), capacity, evict, admit)

    @property
    def vocabulary(self) -> Vocabulary:
        return self

    def statistic(self) -> Counts:
        return Counts()


@dataclass(frozen=True)
class Hash(Encoder):
    """Ids from 1 to `buckets` by a hash of the text; nothing is fitted."""

    encode = "hash"
    suffix = ", hashed"
    buckets: int

    @property
    def known_rows(self) -> int:
        return self.buckets + 1

    @property
    def buckets_of_crc(self) -> int:
        return self.buckets

    def look_up(self, values: pl.Series, state: State) -> pl.Series:
        return bucket_ids(values.fill_null(""), self.buckets)


@dataclass(frozen=True)
class Identity(Encoder):
    """Values are ids themselves: whole numbers from 0 to `rows` - 1."""

    encode = "id"
    excludes = (
        ("cross", "several values cannot be one row of a table"),
        ("lag", "the first rows of a group have no earlier value"),
        ("difference", "a difference is not a row of a table"),
    )
    suffix = ", id"
    pretrained = in_graphs = knows_all = True
    rows: int

    @property
    def value_type(self) -> RowNumber:
        return RowNumber(self.rows)

    @property
    def parsed_as(self) -> object:
        return ["id", self.rows]

    @property
    def known_rows(self) -> int:
        return self.rows

    def ids(self, x: pl.Expr, look_up: Lookup | None, state: State) -> pl.Expr:
        return x.cast(pl.Int32)

    def ids_of_numbers(self, state: State) -> IdsOfNumbers:
        def ids(x: np.ndarray) -> np.ndarray:
            if not ((x >= 0) & (x < self.rows) & (x == np.floor(x))).all():
                raise ValueError
            return x.astype(np.int32)

        return ids

    def values_of_rows(self, vocabulary: pl.DataFrame) -> pl.DataFrame:
        return pl.DataFrame({"value": [str(i) for i in range(self.rows)], "id": range(self.rows)})


@dataclass(frozen=True)
class Quantiles(Encoder):
    """Buckets of numbers, from 1, with the same number of training rows; a missing number has a bucket of its own.

    A bucket is (lower bound, upper bound]; equal bounds are merged.
    """

    encode = chosen_by = "quantiles"
    quantiles: int

    @property
    def value_type(self) -> Number:
        return Number()

    @property
    def parsed_as(self) -> object:
        return True

    @property
    def known_rows(self) -> int:
        return self.quantiles + 2  # one row a bucket, row 0 (unused) and one for missing values

    @property
    def ranges(self) -> int:
        return self.quantiles

    def statistic(self) -> ValueSample:
        return ValueSample()

    def fit(self, seen: ValueSample) -> list[float]:
        """Return the bounds of the buckets."""
        return sorted(set(seen.quantiles([i / self.quantiles for i in range(1, self.quantiles)])))

    def ids(self, x: pl.Expr, look_up: Lookup | None, state: State) -> pl.Expr:
        edges = pl.Series([*state], dtype=pl.Float64)
        bucket = x.map_batches(
            lambda s: edges.search_sorted(s, side="left").cast(pl.Int32) + 1, return_dtype=pl.Int32, is_elementwise=True
        )
        return pl.when(x.is_null()).then(pl.lit(self.quantiles + 1, pl.Int32)).otherwise(bucket)

    def ids_of_numbers(self, state: State) -> IdsOfNumbers:
        edges = np.array([*state], np.float64)
        return lambda x: np.where(np.isnan(x), self.quantiles + 1, 1 + np.searchsorted(edges, x, side="left"))


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
            check_vectors_config(c.vectors, f"{key}.vectors")
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


ENCODERS: dict[str, type[Encoder]] = {e.encode: e for e in (Vocabulary, Hash, Identity, Quantiles)}
