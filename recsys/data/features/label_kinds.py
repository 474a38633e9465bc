"""The kinds of labels: how the column of a label is read, which of its values are valid, and what is fitted to it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar

import polars as pl

from recsys.base.errors import UserError
from recsys.data.features.blocks import BLANK, WEIGHT
from recsys.data.features.training_statistics import Moments
from recsys.data.features.value_types import as_number, as_value
from recsys.interface.labels import BinaryLabel, ClassLabel, Label, LabelKind, NumberLabel
from recsys.schema.data_schema import LabelConfig
from recsys.schema.source_schema import SourceConfig

TRUTH = {"true": 1.0, "false": 0.0}  # labels, as pandas and Python write them
MAX_CLASSES = 10_000


class LabelMoments(Moments):
    """Moments of a label. weight: the sum of the weights of the rows that have it, or their number"""

    weight = 0.0

    def add(self, values: pl.Series, frame: pl.DataFrame) -> None:
        super().add(values, frame)
        has = values.is_not_null()
        self.weight += float(frame[WEIGHT].cast(pl.Float64).filter(has).sum() if WEIGHT in frame.columns else has.sum())

    def merge(self, other: Moments) -> None:
        super().merge(other)
        self.weight += getattr(other, "weight", 0.0)  # the base class merges what it adds


class LogMoments(LabelMoments):
    """Moments of ln(1 + value)."""

    def add(self, values: pl.Series, frame: pl.DataFrame) -> None:
        super().add(values.cast(pl.Float64).log1p(), frame)


@dataclass(frozen=True)
class LabelColumn(ABC):
    """A label of a row. What is made of a config raises UserError if a key does not apply to its kind.

    key: its config key, for messages
    config: its config, with the name of its column
    """

    kind: ClassVar[LabelKind]
    keys: ClassVar[tuple[str, ...]] = ()  # the keys that only some kinds take, and that this one does
    is_calibrated: ClassVar[bool] = True  # whether its predictions can be calibrated
    key: str
    config: LabelConfig

    @staticmethod
    def from_config(c: LabelConfig, key: str) -> LabelColumn:
        """Return the label of a config."""
        for name in ("at_least", "positive", "log", "classes", "otherwise"):
            if getattr(c, name) != getattr(LabelConfig(), name) and name not in LABEL_KINDS[c.kind].keys:
                owner = next(kind.kind for kind in LABEL_KINDS.values() if name in kind.keys)
                raise UserError(f"{key}.{name}: applies only to kind {owner}; the kind of this label is {c.kind}")
        if c.otherwise is not None and c.only_if is None:
            raise UserError(
                f"{key}.otherwise={c.otherwise:g}: is the label of rows that only_if leaves out; set only_if"
            )
        if c.positive and c.at_least is not None:
            raise UserError(f"{key}: positive and at_least cannot be combined; remove one of them")
        label = LABEL_KINDS[c.kind](key, c)
        if c.otherwise is not None and not label.valid(pl.Series([c.otherwise])).all():
            raise UserError(f"{key}.otherwise={c.otherwise:g}: no label of kind {c.kind}{' with log' if c.log else ''}")
        return label

    @property
    def column(self) -> str:
        """The raw column."""
        return self.config.column or ""

    @property
    def is_text(self) -> bool:
        """True if its values are compared as text."""
        return False

    @property
    def problem(self) -> str:
        """The message about a value that is not valid."""
        return "is not a number"

    def value(self, source: SourceConfig, schema: pl.Schema) -> pl.Expr:
        """Return the label, null for values that cannot be read."""
        return as_number(source, schema, self.column)

    def valid(self, x: pl.Series) -> pl.Series:
        """Return which labels are valid, null for missing ones."""
        return x.is_finite()

    @abstractmethod
    def label(self, name: str, sampled: float) -> Label:
        """Return the label without what is fitted. sampled: the share of negatives that are kept for training"""

    def statistic(self) -> LabelMoments:
        """Return the statistic of the training rows that have the label."""
        return LabelMoments()

    def fitted(self, label: Label, seen: Moments, hint: str) -> Label:
        """Return the label with what is fitted to its statistic. hint: what to do if nothing can be fitted"""
        return label


class BinaryLabelColumn(LabelColumn):
    """0 or 1: read as such, or by a limit of a number, or by positive texts."""

    kind, keys = "binary", ("at_least", "positive", "otherwise")

    @property
    def is_text(self) -> bool:
        return bool(self.config.positive)

    @property
    def problem(self) -> str:
        if self.is_text:
            return "is missing"
        return "is neither 0 nor 1" if self.config.at_least is None else super().problem

    def value(self, source: SourceConfig, schema: pl.Schema) -> pl.Expr:
        if self.is_text:
            return as_value(schema, self.column).str.strip_chars(BLANK).is_in([*self.config.positive])
        x = super().value(source, schema)
        if schema[self.column] == pl.String:
            truth = pl.col(self.column).str.strip_chars(BLANK).str.to_lowercase()
            x = pl.coalesce(x, truth.replace_strict(TRUTH, default=None, return_dtype=pl.Float64))
        return x if self.config.at_least is None else x >= self.config.at_least

    def valid(self, x: pl.Series) -> pl.Series:
        return x.is_in([0.0, 1.0])

    def label(self, name: str, sampled: float) -> BinaryLabel:
        return BinaryLabel(name, sampled=sampled)

    def fitted(self, label: Label, seen: Moments, hint: str) -> Label:
        """Return the label. Raises UserError if all training rows have the same."""
        if seen.min != seen.max:
            return label
        other, value = ("negative", "1") if seen.max else ("positive", "0")
        c = self.config
        rule = f" by {self.key}.positive={c.positive}" if c.positive else ""
        rule = f" by {self.key}.at_least={c.at_least}" if c.at_least is not None else rule
        raise UserError(
            f"{self.key}: no training row is {other}: the label from column {c.column} is {value} in all of "
            f"them{rule}; {hint}"
        )


class NumberLabelColumn(LabelColumn):
    """A number, or its logarithm."""

    kind, keys = "regression", ("log", "otherwise")

    @property
    def problem(self) -> str:
        return "is not a number of at least 0" if self.config.log else super().problem

    def valid(self, x: pl.Series) -> pl.Series:
        return x.is_finite() & (x >= 0) if self.config.log else x.is_finite()

    def label(self, name: str, sampled: float) -> NumberLabel:
        return NumberLabel(name, log=self.config.log)

    def statistic(self) -> LabelMoments:
        return LogMoments() if self.config.log else LabelMoments()

    def fitted(self, label: Label, seen: Moments, hint: str) -> Label:
        assert isinstance(label, NumberLabel)
        statistics = seen.params()
        return replace(label, mean=statistics["mean"], std=statistics["std"] or 1.0)


@dataclass(frozen=True)
class ClassLabelColumn(LabelColumn):
    """One of several classes, by its place among them."""

    kind, keys = "classes", ("classes",)
    is_calibrated = False
    is_text = True  # type: ignore[assignment]
    problem = "is not one of its classes"  # type: ignore[assignment]

    def __post_init__(self) -> None:
        if not self.config.classes:
            raise UserError(f"{self.key}.classes: missing; list its values")
        if not 2 <= len(set(self.config.classes)) == len(self.config.classes) <= MAX_CLASSES:
            raise UserError(f"{self.key}.classes: must be 2 to {MAX_CLASSES} different values")

    def label(self, name: str, sampled: float) -> ClassLabel:
        return ClassLabel(name, tuple(self.config.classes))

    def value(self, source: SourceConfig, schema: pl.Schema) -> pl.Expr:
        text = as_value(schema, self.column).str.strip_chars(BLANK)
        return text.replace_strict({v: float(i) for i, v in enumerate(self.config.classes)}, default=None)


LABEL_KINDS: dict[str, type[LabelColumn]] = {
    k.kind: k for k in (BinaryLabelColumn, NumberLabelColumn, ClassLabelColumn)
}
