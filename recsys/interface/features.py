"""Description of a model's inputs after data preparation: the only information about the data that models use.

Preparing data writes a `FeatureSpec` as features.json; models, plans, checkpoints and serving read it.
Cardinalities come from here only.
"""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from recsys.interface.labels import BinaryLabel, Label

Pooling = Literal["sum", "mean"]
OUT_OF_VOCABULARY = 0  # id of rare and unseen values in every table


@dataclass(frozen=True)
class DenseFeature:
    """Dense feature: one float per row or, with `vectors`, a vector of `width` floats looked up for the row's value.

    unit: the numbers are from 0 to 1

    >>> DenseFeature("price").is_number
    True
    """

    name: str
    width: int = 1
    vectors: bool = False
    unit: bool = False

    @property
    def is_number(self) -> bool:
        """True if the feature is a single number."""
        return self.width == 1 and not self.vectors


@dataclass(frozen=True)
class SparseFeature:
    """One id for each row or, if multi_valued, a bag of ids, looked up in `table` of `cardinality` rows."""

    name: str
    cardinality: int
    table: str
    pooling: Pooling = "sum"
    multi_valued: bool = False
    sequence: bool = False  # the ids of a bag are ordered, as the ids of a history are
    frozen: bool = False  # the table starts from pretrained vectors and is not trained
    dim: int | None = None  # columns of the table; None for the model's dim


@dataclass(frozen=True)
class PositionBias:
    """What the position of a row does to its labels.

    first: the position that predictions are for
    features: names of the sparse features with which the bias differs
    bias: additive or examination; see PositionConfig
    """

    first: int
    features: tuple[str, ...] = ()
    bias: Literal["additive", "examination"] = "additive"


@dataclass(frozen=True)
class FeatureSpec:
    """The columns of a Batch, in order: dense (B, D), sparse (F keys), labels (B, T).

    weighted: rows have weights, whose mean over the training rows is 1
    grouped: rows of a group follow each other, and batches have their groups
    position: what the position of a row does to its labels; None if rows have none

    Single-valued sparse features come first, so that their ids are contiguous in a batch.

    Data for retrieval has two more fields:
    item: the sparse feature whose values are the candidates
    items: features of each candidate other than its id (recsys.interface.candidates)
    item_ids: whether an item's vector has a part that is learned for its id

    >>> user, item = SparseFeature("user", 1000, "user"), SparseFeature("item", 500, "item")
    >>> seen = SparseFeature("seen", 500, "item", pooling="mean", multi_valued=True)
    >>> spec = FeatureSpec(dense=(DenseFeature("price"),), sparse=(user, item, seen))
    >>> spec.dense_width, spec.logits, {table: len(features) for table, features in spec.tables.items()}
    (1, 1, {'user': 1, 'item': 2})
    """

    dense: tuple[DenseFeature, ...]
    sparse: tuple[SparseFeature, ...]
    labels: tuple[Label, ...] = (BinaryLabel("label"),)
    item: str | None = None
    items: "FeatureSpec | None" = None
    item_ids: bool = True
    weighted: bool = False
    grouped: bool = False
    position: PositionBias | None = None

    def __post_init__(self) -> None:
        names = [f.name for f in self.dense] + [f.name for f in self.sparse] + [x.name for x in self.labels]
        twice = sorted(n for n, count in Counter(names).items() if count > 1)
        if twice:
            raise ValueError(f"several features have the same name: {', '.join(twice)}")
        if list(self.sparse) != sorted(self.sparse, key=lambda f: f.multi_valued):
            raise ValueError("single-valued sparse features must come before multi-valued ones")
        rows: dict[str, int] = {}
        for f in self.sparse:
            if rows.setdefault(f.table, f.cardinality) != f.cardinality:
                raise ValueError(f"table {f.table}: its features disagree on the number of rows")
        if self.item is not None and self.item not in {f.name for f in self.sparse}:
            raise ValueError(f"item: no sparse feature is named {self.item}")

    @property
    def dense_width(self) -> int:
        """D, the number of columns of a Batch's dense part."""
        return sum(f.width for f in self.dense)

    @property
    def logits(self) -> int:
        """The number of logits of a ranking model: one for each label, or for each class of a label of classes."""
        return sum(label.width for label in self.labels)

    def feature(self, name: str) -> SparseFeature:
        return next(f for f in self.sparse if f.name == name)

    @property
    def tables(self) -> dict[str, tuple[SparseFeature, ...]]:
        """Features by the table that they share, in order of first use."""
        tables: dict[str, tuple[SparseFeature, ...]] = {}
        for f in self.sparse:
            tables[f.table] = (*tables.get(f.table, ()), f)
        return tables

    def to_json(self) -> dict[str, Any]:
        value = {"version": 1, **asdict(self), "labels": [label.to_json() for label in self.labels]}
        if self.items is not None:
            value["items"] = {k: v for k, v in self.items.to_json().items() if k != "version"}
        for feature in value["sparse"]:
            if not feature["frozen"]:
                feature.pop("frozen")
        for name in ("weighted", "grouped"):
            if not value[name]:
                value.pop(name)
        if self.item_ids:
            value.pop("item_ids")
        if self.position is None:
            value.pop("position")
        return value

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "FeatureSpec":
        return cls(
            dense=tuple(DenseFeature(**f) for f in value["dense"]),
            sparse=tuple(SparseFeature(**f) for f in value["sparse"]),
            labels=tuple(Label.from_json(x) for x in value["labels"]),
            item=value.get("item"),
            items=None if value.get("items") is None else cls.from_json(value["items"]),
            item_ids=value.get("item_ids", True),
            weighted=value.get("weighted", False),
            grouped=value.get("grouped", False),
            position=PositionBias(**{**p, "features": tuple(p["features"])}) if (p := value.get("position")) else None,
        )

    def save(self, path: Path, more: Mapping[str, Any] = MappingProxyType({})) -> None:
        """Write a JSON file. more: further keys, such as the types of raw columns"""
        path.write_text(json.dumps(self.to_json() | dict(more), indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> "FeatureSpec":
        return cls.from_json(json.loads(path.read_text(encoding="utf-8")))
