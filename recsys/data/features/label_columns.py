"""Parse, check and fit the labels and the weight of a row."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import polars as pl

from recsys.base.errors import UserError, did_you_mean
from recsys.base.ranges import FLOAT32_MAX
from recsys.data.features.blocks import GROUP, WEIGHT, label_column
from recsys.data.features.label_kinds import BinaryLabelColumn, LabelColumn
from recsys.data.features.resolved_data import ResolvedData, plain_labels
from recsys.data.features.training_statistics import Moments
from recsys.data.features.value_types import Check, as_number, is_missing
from recsys.interface.labels import Label
from recsys.schema.data_schema import LabelConfig


def label_columns(data: ResolvedData) -> dict[str, LabelColumn]:
    """Return the labels by their columns of parsed rows."""
    return {label_column(i, name): c for i, (name, c) in enumerate(data.label_kinds.items())}


def kept_columns(data: ResolvedData) -> list[str]:
    """Return the columns of labels, weight and group of parsed and prepared rows."""
    return [*label_columns(data), *([WEIGHT] if data.weight_column else []), *([GROUP] if data.together else [])]


# --- parse -----------------------------------------------------------------------------------------------


def label_exprs(data: ResolvedData, schema: pl.Schema) -> list[pl.Expr]:
    """Return the expressions of the columns `kept_columns`, null for values that cannot be read."""
    exprs = []
    for column, c in label_columns(data).items():
        value = c.value(data.source, schema)
        if (only_if := c.config.only_if) is not None:  # null also in rows that do not have the label
            other = data.label_kinds[only_if].value(data.source, schema).cast(pl.Float32)
            value = pl.when(other == 1).then(value).when(other == 0).then(pl.lit(c.config.otherwise))
        exprs.append(value.cast(pl.Float32).alias(column))
    if data.weight_column is not None:
        exprs.append(as_number(data.source, schema, data.weight_column).cast(pl.Float32).alias(WEIGHT))
    return exprs


def label_checks(data: ResolvedData, raw: pl.DataFrame, frame: pl.DataFrame) -> list[Check]:
    """Find rows whose labels or weight cannot be read.

    A single label must be known. One of several may be missing, but not have an invalid value.
    """
    checks = []
    for column, c in label_columns(data).items():
        value = frame[column]
        valid = c.valid(value).fill_null(False)
        if not data.labels:
            checks.append(Check(raw[c.column].is_null(), c.column, "is missing", "label"))
        else:
            valid = valid | (value.is_null() & (is_missing(raw[c.column]) | (c.config.only_if is not None)))
        checks.append(Check(~valid, c.column, c.problem, "label"))
    if data.weight_column is not None:
        weight = frame[WEIGHT]
        bad = ~((weight >= 0) & (weight <= FLOAT32_MAX)).fill_null(False)
        checks.append(Check(bad, data.weight_column, "is not a number of at least 0", "weight"))
    return checks


# --- fit -------------------------------------------------------------------------------------------------


def label_statistics(data: ResolvedData) -> Iterator[tuple[str, Moments]]:
    """Yield the columns of labels and weight that something is fitted to, with their statistic."""
    for column, c in label_columns(data).items():
        yield column, c.statistic()
    if data.weight_column is not None:
        yield WEIGHT, Moments()


def fit_labels(data: ResolvedData, rows: int, seen: Mapping[str, Any]) -> tuple[Label, ...]:
    """Return the labels.

    Args:
        seen: the statistics of `label_statistics`.

    Raises:
        UserError: no training row has one of the labels, or all have the same binary label.
    """
    labels = []
    for (column, c), label in zip(label_columns(data).items(), plain_labels(data), strict=True):
        moments = seen[column]
        if not moments.weight:
            raise UserError(f"{c.key}: no training row has this label; change data.split")
        hint = f"check {c.key} or {data.key}.split"
        if data.sample_negatives < 1:
            hint += f", or raise {data.key}.sample_negatives={data.sample_negatives:g}"
        if data.item_feature is not None and not data.labels:
            hint += f", or set {c.key}.column=null for a model that retrieves items"
        labels.append(c.fitted(label, moments, hint))
    return with_shares(labels, data, rows, seen)


def with_shares(labels: Iterable[Label], data: ResolvedData, rows: int, seen: Mapping[str, Any]) -> tuple[Label, ...]:
    """Return the labels with their shares of the rows; one that no row has keeps its own. seen: as in `fit_labels`"""
    weight, found = fit_weight(data, seen), []
    for column, label in zip(label_columns(data), labels, strict=True):
        share = 1.0 if seen[column].n == rows else seen[column].weight / (weight * rows)
        found.append(replace(label, known=share or label.known))
    return tuple(found)


def fit_weight(data: ResolvedData, seen: Mapping[str, Any]) -> float:
    """Return the mean weight of a row. Raises UserError if all weights are 0. seen: as in `fit_labels`"""
    mean = seen[WEIGHT].params()["mean"] if data.weight_column is not None else 1.0
    if not mean > 0:
        raise UserError(f"data.weight.column={data.weight_column}: the weights of all training rows are 0")
    return float(mean)


def check_known(data: ResolvedData, labels: Iterable[Label]) -> None:
    """Raise UserError if training rows lack a label that the model learns from all rows. labels: with their shares"""
    for label in labels:
        if label.known < 1:
            key, share = data.label_key(label.name), f"{1 - label.known:.1%} of the training rows lack this label"
            why = f"the model learns it from all rows; leave these out with {data.key}.where"
            raise UserError(f"{key}: {share}, and {why}, or, if it needs another label, set only_if and otherwise=0")


# --- check -----------------------------------------------------------------------------------------------


def check_labels(data: ResolvedData) -> None:
    """Check `label`, `labels`, `weight` and `sample_negatives`. Raises UserError if they have a mistake."""
    if data.weight.column is not None and not data.label_configs:
        why = "weighs the losses and metrics of labels, and these rows have none"
        hint = f"remove it, and leave rows out that should not count with {data.key}.where"
        raise UserError(f"{data.key}.weight.column={data.weight.column}: {why}; {hint}")
    for name, c in data.label_kinds.items():
        others = [n for n, other in data.label_kinds.items() if n != name and isinstance(other, BinaryLabelColumn)]
        if (only_if := c.config.only_if) is not None and only_if not in others:
            raise UserError(f"{c.key}.only_if={only_if}: must be another binary label{did_you_mean(only_if, others)}")
    if data.labels and (data.label != LabelConfig() and data.label.column is not None):
        raise UserError(f"{data.key}.label: is ignored with data.labels; remove one of them")
    if data.sample_negatives < 1 and [*map(type, data.label_kinds.values())] != [BinaryLabelColumn]:
        raise UserError(f"{data.key}.sample_negatives={data.sample_negatives}: needs one binary label")
