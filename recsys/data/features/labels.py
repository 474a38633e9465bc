"""Parse, check and fit the labels and the weight of a row."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import polars as pl

from recsys.base.errors import UserError, did_you_mean
from recsys.data.features.blocks import BLANK
from recsys.data.features.column_names import GROUP, WEIGHT, label_column
from recsys.data.features.feature_specs import plain_labels
from recsys.data.features.resolved_data import ResolvedData
from recsys.data.features.training_statistics import Moments
from recsys.data.features.value_types import Check, as_number, as_value, is_missing
from recsys.features import Label
from recsys.ranges import FLOAT32_MAX
from recsys.schema.data_schema import LabelConfig

KINDS = ("binary", "regression", "classes")
TRUTH = {"true": 1.0, "false": 0.0}  # labels, as pandas and Python write them
MOST_CLASSES = 10_000


def label_columns(data: ResolvedData) -> dict[str, LabelConfig]:
    """Return the labels by their columns of parsed rows."""
    return {label_column(i, name): c for i, (name, c) in enumerate(data.label_configs.items())}


def kept_columns(data: ResolvedData) -> list[str]:
    """Return the columns of labels, weight and group of parsed and prepared rows."""
    return [*label_columns(data), *([WEIGHT] if data.weight_column else []), *([GROUP] if data.together else [])]


# --- parse -----------------------------------------------------------------------------------------------


def label_exprs(data: ResolvedData, schema: pl.Schema) -> list[pl.Expr]:
    """Return the expressions of the columns `kept_columns`, null for values that cannot be read."""
    exprs = [_value(data, schema, c).cast(pl.Float32).alias(column) for column, c in label_columns(data).items()]
    if data.weight_column is not None:
        exprs.append(as_number(data.source, schema, data.weight_column).cast(pl.Float32).alias(WEIGHT))
    return exprs


def _value(data: ResolvedData, schema: pl.Schema, c: LabelConfig) -> pl.Expr:
    """Return a label's value; null also in rows that do not have it."""
    value = _own_value(data, schema, c)
    if c.only_if is None:
        return value
    other = data.label_configs[c.only_if]
    return pl.when(_own_value(data, schema, other).cast(pl.Float32) == 1).then(value)


def _own_value(data: ResolvedData, schema: pl.Schema, c: LabelConfig) -> pl.Expr:
    column = c.column or ""
    if c.kind == "classes":
        text = as_value(schema, column).str.strip_chars(BLANK)
        return text.replace_strict({v: float(i) for i, v in enumerate(c.classes)}, default=None)
    if c.positive:
        return as_value(schema, column).str.strip_chars(BLANK).is_in([*c.positive])
    value = as_number(data.source, schema, column)
    if schema[column] == pl.String and c.kind == "binary":
        truth = pl.col(column).str.strip_chars(BLANK).str.to_lowercase()
        value = pl.coalesce(value, truth.replace_strict(TRUTH, default=None, return_dtype=pl.Float64))
    return value >= c.at_least if c.at_least is not None else value


def label_checks(data: ResolvedData, raw: pl.DataFrame, frame: pl.DataFrame) -> list[Check]:
    """Find rows whose labels or weight cannot be read.

    A single label must be known. One of several may be missing, but not have an invalid value.
    """
    checks = []
    for column, c in label_columns(data).items():
        value, problem = frame[column], _problem(c)
        valid = value.is_in([0.0, 1.0]) if c.kind == "binary" else value.is_finite()
        if c.log:
            valid = valid & (value >= 0)
        valid = valid.fill_null(False)
        if not data.labels:
            checks.append(Check(raw[c.column or ""].is_null(), c.column or "", "is missing", "label"))
        else:
            valid = valid | (value.is_null() & (is_missing(raw[c.column or ""]) | (c.only_if is not None)))
        checks.append(Check(~valid, c.column or "", problem, "label"))
    if data.weight_column is not None:
        weight = frame[WEIGHT]
        bad = ~((weight >= 0) & (weight <= FLOAT32_MAX)).fill_null(False)
        checks.append(Check(bad, data.weight_column, "is not a number of at least 0", "weight"))
    return checks


def _problem(c: LabelConfig) -> str:
    if c.kind == "classes":
        return "is not one of its classes"
    if c.log:
        return "is not a number of at least 0"
    if c.positive:
        return "is missing"
    return "is not a number" if c.kind == "regression" or c.at_least is not None else "is neither 0 nor 1"


# --- fit -------------------------------------------------------------------------------------------------


class LogMoments(Moments):
    """Moments of ln(1 + value)."""

    def add(self, values: pl.Series, frame: pl.DataFrame) -> None:
        super().add(values.cast(pl.Float64).log1p(), frame)


def label_statistics(data: ResolvedData) -> Iterator[tuple[str, Moments]]:
    """Yield the columns of labels and weight that something is fitted to, with their statistic."""
    for column, c in label_columns(data).items():
        if data.labels or c.kind != "classes":
            yield column, LogMoments() if c.log else Moments()
    if data.weight_column is not None:
        yield WEIGHT, Moments()


def fit_labels(data: ResolvedData, rows: int, seen: Mapping[str, Any]) -> tuple[tuple[Label, ...], float]:
    """Return the labels, and the mean weight of a row.

    Args:
        data: the data config.
        rows: the number of training rows.
        seen: the statistics of `label_statistics`.

    Raises:
        UserError: no training row has one of the labels, all have the same binary label, or all weights are 0.
    """
    labels = []
    for column, label in zip(label_columns(data), plain_labels(data), strict=True):
        if column in seen:
            moments = seen[column]
            if not moments.n:
                raise UserError(f"{data.label_key(label.name)}: no training row has this label; change data.split")
            if label.kind == "binary" and moments.min == moments.max:
                raise UserError(_constant(data, label.name, bool(moments.max)))
            if data.labels or label.kind == "regression":
                label = replace(label, known=moments.n / rows)
            if label.kind == "regression":
                statistics = moments.params()
                label = replace(label, mean=statistics["mean"], std=statistics["std"] or 1.0)
        labels.append(label)
    mean = seen[WEIGHT].params()["mean"] if data.weight_column is not None else 1.0
    if not mean > 0:
        raise UserError(f"data.weight.column={data.weight_column}: the weights of all training rows are 0")
    return tuple(labels), mean


def _constant(data: ResolvedData, name: str, positive: bool) -> str:
    """Return the message for a binary label that is the same in all training rows."""
    where, c = data.label_key(name), data.label_configs[name]
    other, value = ("negative", "1") if positive else ("positive", "0")
    rule = f" by {where}.positive={c.positive}" if c.positive else ""
    rule = f" by {where}.at_least={c.at_least}" if c.at_least is not None else rule
    hint = f"check {where} or {data.key}.split"
    if data.item_feature is not None and not data.labels:
        hint += f", or set {where}.column=null for a model that retrieves items"
    return (
        f"{where}: no training row is {other}: the label from column {c.column} is {value} in all of them{rule}; {hint}"
    )


# --- check -----------------------------------------------------------------------------------------------


def check_labels(data: ResolvedData) -> None:
    """Check `label`, `labels`, `weight` and `sample_negatives`. Raises UserError if they have a mistake."""
    for name, c in data.label_configs.items():
        _check_label(data, name, c)
    if data.labels and (data.label != LabelConfig() and data.label.column is not None):
        raise UserError(f"{data.key}.label: is ignored with data.labels; remove one of them")
    if data.sample_negatives < 1:
        kinds = [c.kind for c in data.label_configs.values()]
        if kinds != ["binary"]:
            raise UserError(f"{data.key}.sample_negatives={data.sample_negatives}: needs one binary label")


def _check_label(data: ResolvedData, name: str, c: LabelConfig) -> None:
    where = data.label_key(name)
    if c.kind not in KINDS:
        raise UserError(f"{where}.kind={c.kind}: unknown{did_you_mean(c.kind, KINDS)}")
    if c.positive and c.at_least is not None:
        raise UserError(f"{where}: positive and at_least cannot be combined; remove one of them")
    for key in ("at_least", "positive"):
        if getattr(c, key) not in (None, []) and c.kind != "binary":
            raise UserError(f"{where}.{key}: applies only to binary labels; the kind of this one is {c.kind}")
    if c.log and c.kind != "regression":
        raise UserError(f"{where}.log: applies only to kind regression; the kind of this label is {c.kind}")
    if (c.kind == "classes") != bool(c.classes):
        problem = "missing; list its values" if c.kind == "classes" else "applies only to kind classes; remove it"
        raise UserError(f"{where}.classes: {problem}")
    if len(set(c.classes)) < len(c.classes) or (c.classes and not 2 <= len(c.classes) <= MOST_CLASSES):
        raise UserError(f"{where}.classes: must be 2 to {MOST_CLASSES} different values")
    if c.only_if is not None:
        others = [n for n, o in data.label_configs.items() if n != name and o.kind == "binary"]
        if c.only_if not in others:
            raise UserError(
                f"{where}.only_if={c.only_if}: must be another binary label{did_you_mean(c.only_if, others)}"
            )
