"""Dense features: numbers that steps make of a column, and vectors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar
from zoneinfo import available_timezones

import polars as pl

from recsys.base.errors import UserError, did_you_mean
from recsys.data.features.encoders import Lookup
from recsys.data.features.row_sources import Column, FeatureEntry, LookBack
from recsys.data.features.steps import FILLS, WAVES, Cyclic, MinMax, Params, Quantile, Transform, parse_step
from recsys.data.features.value_types import Moment, Number, Text, Time, ValueType, Vector
from recsys.data.features.vectors import check_vectors_config
from recsys.interface.features import DenseFeature
from recsys.schema.data_schema import DenseConfig, VectorsConfig

ROW_NORMS = ("l2", "layer")  # ways to normalise a vector of a row: nothing is fitted


@dataclass(frozen=True)
class DenseColumn:
    """A dense feature that is one number: `steps` are applied in order to a column of parsed rows.

    key: its config key, for messages
    parsed: the column of parsed rows, named like the feature in YAML
    source: the raw column
    value_type: the type of the raw column's values
    look_back: what it takes of earlier rows; None if it reads its own row alone
    fill: the number that replaces missing values, unless it is fitted
    steps: the transforms
    """

    is_number: ClassVar[bool] = True  # False for a vector
    key: str = field(compare=False)
    parsed: str
    source: Column
    value_type: ValueType
    look_back: LookBack | None = None
    fill: float | None = None
    steps: tuple[Transform, ...] = ()

    @property
    def column(self) -> str:
        """The raw column."""
        return self.source.column

    @property
    def formless(self) -> str:
        """The part of the feature that ONNX cannot express; empty if there is none."""
        if any(isinstance(step, Quantile) for step in self.steps):
            return "quantile"
        names = {Text: "an encoding of values", Time: "a time"}
        return names.get(type(self.value_type), "") if self.is_number else "a vector"

    def spec(self, name: str, width: Callable[[str], int]) -> DenseFeature:
        """Return the feature that models see. width: returns the width of looked-up vectors from the feature's name"""
        unit = bool(self.steps) and isinstance(self.steps[-1], MinMax | Quantile)  # makes numbers from 0 to 1
        return DenseFeature(name, unit=unit)

    def transformed(self, params: Sequence[Params], look_up: Lookup | None) -> pl.Expr:
        """Return the column after missing values are filled and the first len(params) steps applied.

        look_up: the lookup of text; None if the column holds none, or its first step is not fitted yet
        """
        x = pl.col(self.parsed) if look_up is None else look_up(pl.col(self.parsed))
        x = x if self.fill is None else x.fill_null(self.fill)
        for step, p in zip(self.steps, params, strict=False):
            x = step.apply(x, p)
        return x

    def expr(self, params: Sequence[Params], look_up: Lookup | None) -> pl.Expr:
        """Return the model's input: Float32; of looked-up vectors, their rows; of a row's own vector, Array."""
        return self.transformed(params, look_up).cast(pl.Float32)


@dataclass(frozen=True)
class LookedUpVector(DenseColumn):
    """A pretrained vector that is looked up for the value of a column.

    vectors: the file that holds the vectors
    vectors_key: the config key of the file
    """

    is_number = False
    vectors: VectorsConfig = field(kw_only=True)
    vectors_key: str = field(default="", compare=False)

    def spec(self, name: str, width: Callable[[str], int]) -> DenseFeature:
        return DenseFeature(name, width(name), True)

    def expr(self, params: Sequence[Params], look_up: Lookup | None) -> pl.Expr:
        return self.transformed(params, look_up).cast(pl.Int32)


@dataclass(frozen=True)
class RowVector(DenseColumn):
    """A vector that a column holds in each row."""

    is_number = False
    value_type: Vector

    def spec(self, name: str, width: Callable[[str], int]) -> DenseFeature:
        return DenseFeature(name, self.value_type.width)

    def expr(self, params: Sequence[Params], look_up: Lookup | None) -> pl.Expr:
        return self.value_type.normalised(pl.col(self.parsed))


def dense_columns(entry: FeatureEntry[DenseConfig], vectors_key: str | None = None) -> dict[str, DenseColumn]:
    """Return the dense features of an entry: one, or with `cyclic` two for each part of a time.

    vectors_key: the config key of its vectors, if they are not in the entry
    """
    name, key, own = entry.name, entry.key, entry.own
    source, look_back = Column(own.column or name), LookBack.from_config(own, key)
    if own.cyclic is not None:
        where = f"{key}.cyclic"
        if own.fill is not None or own.transform is not None:
            raise UserError(f"{where}: takes neither fill nor transform; a missing time becomes 0 and 0")
        if not own.cyclic:
            raise UserError(f"{where}: is empty; list parts of a time, such as [hour, day_of_week, month]")
        if twice := [part for part in own.cyclic if own.cyclic.count(part) > 1]:
            raise UserError(f"{where}: names {twice[0]} twice")
        if own.difference is not None:
            raise UserError(f"{key}.difference: the difference of times is a number of seconds; remove cyclic")
        zone = entry.full.time_zone
        if zone is not None and zone not in (zones := available_timezones()):
            raise UserError(f"{key}.time_zone={zone}: unknown{did_you_mean(zone, sorted(zones))}")
        return {
            f"{name}_{step.part}_{step.wave}": DenseColumn(key, name, source, Time(zone), look_back, steps=(step,))
            for part in own.cyclic
            for wave in WAVES
            if isinstance(step := parse_step({"cyclic": [part, wave]}, where), Cyclic)
        }
    if own.time_zone is not None:
        raise UserError(f"{key}.time_zone={own.time_zone}: applies to parts of a time; set cyclic, or remove it")
    if own.width is not None or own.vectors is not None:
        for k in ("fill", "transform", "lag", "difference"):
            if getattr(own, k) not in (None, []):
                raise UserError(f"{key}.{k}: does not apply to a vector; a missing vector becomes zeros")
    if own.width == 1:
        raise UserError(f"{key}: a vector of one number, which is read as a number; remove width, split and normalise")
    if own.width is not None:
        normalise = tuple(own.normalise or ())
        for way in normalise:
            if way not in ROW_NORMS:
                raise UserError(f"{key}.normalise: {way} is unknown{did_you_mean(way, ROW_NORMS)}")
        return {name: RowVector(key, name, source, Vector(own.width, own.split, normalise))}
    if own.vectors is not None:
        vectors_key = vectors_key or f"{key}.vectors"
        check_vectors_config(own.vectors, vectors_key)
        return {name: LookedUpVector(key, name, source, Text(), vectors=own.vectors, vectors_key=vectors_key)}
    return {name: _number(entry, source, look_back)}


def _number(entry: FeatureEntry[DenseConfig], source: Column, look_back: LookBack | None) -> DenseColumn:
    name, key, own, c = entry.name, entry.key, entry.own, entry.full
    entries = c.transform or []
    steps = tuple(parse_step(given, f"{key}.transform") for given in entries)
    number = Number()
    for given, step in list(zip(entries, steps, strict=True))[1:]:
        if step.value_type != number:
            raise UserError(f"{key}.transform: {_step_name(given)} reads the raw column; put it first")
    value_type = steps[0].value_type if steps else number
    if value_type != number:
        for k, given in (("fill", own.fill), ("difference", own.difference)):
            if given is not None:
                transform = _step_name(entries[0])
                why = "takes missing times" if isinstance(value_type, Time) else "encodes missing values, too"
                raise UserError(f"{key}.{k}={given}: is ignored with {transform}, which {why}; remove {k}")
        return DenseColumn(key, name, source, value_type, look_back, steps=steps)
    if look_back is not None and look_back.is_difference:
        value_type = Moment()
    if isinstance(c.fill, str):
        return DenseColumn(key, name, source, value_type, look_back, steps=(FILLS[c.fill], *steps))
    fill = 0.0 if c.fill is None else float(c.fill)
    if not abs(fill) < float("inf"):
        raise UserError(f"{key}.fill={c.fill}: must be finite")
    return DenseColumn(key, name, source, value_type, look_back, fill, steps)


def _step_name(entry: str | Mapping[str, Any]) -> str:
    """Return the name of the transform in `log` or `{clip: [0, 1]}`."""
    return entry if isinstance(entry, str) else str(next(iter(entry)))
