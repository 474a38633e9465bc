"""Parse, check and fit the labels and the weight of a row."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import polars as pl

from recsys.base.errors import UserError, did_you_mean
from recsys.base.ranges import FLOAT32_MAX
from recsys.data.features.blocks import GROUP, POSITION, WEIGHT, label_column
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
    """Return the columns of labels, weight, position and group of parsed and prepared rows."""
    has = {WEIGHT: data.weight_column, POSITION: data.position_column, GROUP: data.together}
    return [*label_columns(data), *(column for column, given in has.items() if given)]


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
    if data.position_column is not None:
        place = as_number(data.source, schema, data.position_column)
        exprs.append(pl.when(place == place.floor()).then(place).cast(pl.Int32, strict=False).alias(POSITION))
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
    if data.position_column is not None:
        bad = ~(frame[POSITION] >= 0).fill_null(False)
        checks.append(Check(bad, data.position_column, "is not a whole number from 0 to 2,147,483,647", "position"))
    return checks


# --- fit -------------------------------------------------------------------------------------------------


def label_statistics(data: ResolvedData) -> Iterator[tuple[str, Moments]]:
    """Yield the columns of labels and weight that something is fitted to, with their statistic."""
    for column, c in label_columns(data).items():
        yield column, c.statistic()
    if data.weight_column is not None:
        yield WEIGHT, Moments()
    if data.position_column is not None:
        yield POSITION, Moments()


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


def with_first_position(data: ResolvedData, seen: Mapping[str, Any], before: int | None = None) -> ResolvedData:
    """Return the data with the position that predictions are for.

    Args:
        seen: as in `fit_labels`.
        before: that of the training that this one goes on from, which stays.

    Raises:
        UserError: all training rows have one position, or none is near the one that is given.
    """
    if data.position_column is None:
        return data
    low, high, given = int(seen[POSITION].min), int(seen[POSITION].max), data.position.first
    if before is None and low == high:
        why = f"all training rows have {low}; leave data.position out"
        raise UserError(f"{data.key}.position.column={data.position_column}: {why}")
    if before is None and given is not None and not low <= given <= high:
        why = f"the training rows have the positions {low} to {high}; name one of these"
        raise UserError(f"{data.key}.position.first={given}: {why}")
    first = next(x for x in (before, given, low) if x is not None)
    found = replace(data, position=replace(data.position, first=first))
    vars(found).update(key=data.key, item_vectors=data.item_vectors)
    return found


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
    check_position(data)
    if data.sample_negatives < 1 and [*map(type, data.label_kinds.values())] != [BinaryLabelColumn]:
        raise UserError(f"{data.key}.sample_negatives={data.sample_negatives}: needs one binary label")


def check_position(data: ResolvedData) -> None:
    """Check `position`. Raises UserError if it has a mistake."""
    c, key = data.position, f"{data.key}.position"
    for name in c.features:
        sparse = data.sparse_columns.get(name)
        if sparse is None or not sparse.model or sparse.is_list:
            fits = [n for n, s in data.sparse_columns.items() if s.model and not s.is_list]
            why = f"{name} is no sparse feature of one value a row"
            raise UserError(f"{key}.features: {why}{did_you_mean(name, fits)}")
    if c.column is None:
        return
    if not data.label_configs or data.item_feature is not None:
        why = "is a bias of the labels of rows, and this data has lists of items; leave it out"
        raise UserError(f"{key}.column={c.column}: {why}")
    taken: dict[str, str | None] = {data.label_key(n): own.column for n, own in data.label_configs.items()}
    taken[f"{data.key}.weight.column"] = data.weight_column
    taken[f"{data.key}.group.by"] = None if data.group is None else data.group.by
    if own := next((name for name, column in taken.items() if column == c.column), None):
        raise UserError(f"{key}.column={c.column}: is the column of {own}; name that of the places in lists")
    if c.column in {(f and f.column) or n for kind in (data.dense, data.sparse) for n, f in kind.items()}:
        why = "is a feature, too, which requests would have to name"
        raise UserError(f"{key}.column={c.column}: {why}; remove it from {data.key}.sparse and {data.key}.dense")
    if c.bias == "examination" and {*map(type, data.label_kinds.values())} != {BinaryLabelColumn}:
        raise UserError(f"{key}.bias=examination: is for binary labels; set bias=additive")
    if c.bias == "examination" and data.sample_negatives < 1:
        raise UserError(
            f"{key}.bias=examination: needs all negatives; set {data.key}.sample_negatives=1 or bias=additive"
        )
