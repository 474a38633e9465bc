"""Dense features: numbers that steps transform, values that are encoded as numbers, parts of times, and vectors."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar
from zoneinfo import available_timezones

import numpy as np
import polars as pl

from recsys.base.errors import UserError, did_you_mean
from recsys.data.features.blocks import LABEL, ROW, WEIGHT
from recsys.data.features.encoders import Lookup
from recsys.data.features.row_sources import Column, FeatureEntry, LookBack
from recsys.data.features.steps import FILLS, MinMax, Params, Quantile, Transform, parse_step
from recsys.data.features.training_statistics import Counts, Statistic
from recsys.data.features.value_index import mix
from recsys.data.features.value_types import Moment, Number, Text, Time, ValueType, Vector
from recsys.data.features.vectors import check_vectors
from recsys.interface.features import DenseFeature
from recsys.schema.data_schema import DenseConfig, VectorsConfig

# the number of hours, weekdays and months, and an expression that numbers them from 0
PARTS: dict[str, tuple[int, Callable[[pl.Expr], pl.Expr]]] = {
    "hour": (24, lambda t: t.dt.hour()),
    "day_of_week": (7, lambda t: t.dt.weekday() - 1),
    "month": (12, lambda t: t.dt.month() - 1),
}
WAVES = ("sin", "cos")
ROW_NORMS = ("l2", "layer")  # ways to normalise a vector of a row: nothing is fitted


class Count(Transform, name="count"):
    """ln(1 + count of the value in the training split); 0 for unseen values. A missing value counts as a value."""

    value_type = Text()
    learns = Counts

    def fit(self, seen: pl.DataFrame) -> Params:
        log = pl.col("count").cast(pl.Float64).log1p().alias("encoded")
        return {"table": seen.select("value", log)}

    def apply(self, x: pl.Expr, p: Params) -> pl.Expr:
        return pl.lit(pl.Series([0.0]).append(p["table"]["encoded"])).gather(x)


class Labels(Counts):
    """Count rows that have the (first) label, and sum weights and labels, by value and by the training row's fold."""

    keys = ("value", "fold")

    def __init__(self, folds: int) -> None:
        super().__init__()
        self._folds = folds

    def add(self, values: pl.Series, frame: pl.DataFrame) -> None:
        index = values.to_numpy().astype(np.int64) * self._folds + fold_of(frame[ROW].to_numpy(), self._folds)
        label = frame[LABEL].to_numpy().astype(np.float64)
        known = ~np.isnan(label)  # one of several labels may be missing
        weight = frame[WEIGHT].to_numpy().astype(np.float64) if WEIGHT in frame.columns else np.ones(len(label))
        self._sum("count", index[known], None)
        self._sum("weight", index[known], weight[known])
        self._sum("sum", index[known], (weight * label)[known])

    def table(self, values: pl.Series) -> pl.DataFrame:
        """Return the columns value, fold, count, weight, sum."""
        return self._rows(values, self._folds)


@dataclass(frozen=True)
class Target(Transform, name="target"):
    """The (weighted) mean label of the value in the training split, smoothed by `smoothing` rows of the overall mean.

    A training row gets its value's mean over all other folds, so that its own label does not leak into its input.
    A row's fold is a hash of its place. Rows outside the training split get the mean over all folds. Unseen values get
    the overall mean, which is the same number in training and later. A training that goes on from another one keeps the
    means, unless it has some of the rows again: then they are fitted to its own rows alone.
    """

    smoothing: float = 20.0
    folds: int = 5

    value_type = Text()

    def __post_init__(self) -> None:
        if not self.smoothing >= 0 or self.smoothing == float("inf"):
            raise ValueError("smoothing must be a finite number of at least 0")
        if not isinstance(self.folds, int) or not 2 <= self.folds <= 100:
            raise ValueError("folds must be 2 to 100")

    def statistic(self) -> Statistic:
        return Labels(self.folds)

    def fit(self, seen: pl.DataFrame) -> Params:
        """Return the overall mean and a table: each value's mean over all folds (`all`) and all but one (`but_0`)."""
        total = float(seen["weight"].sum()) or 1.0
        prior, of_one = float(seen["sum"].sum()) / total, total / float(seen["count"].sum())  # the weight of a row
        seen = seen.with_columns(pl.col("sum", "weight") / of_one)
        whole = pl.col("sum").sum(), pl.col("weight").sum()
        columns = [self._mean(*whole, prior).alias("all")]
        for fold in range(self.folds):
            own = pl.col("fold") == fold
            less = [w - pl.col(c).filter(own).sum() for w, c in zip(whole, ("sum", "weight"), strict=True)]
            columns.append(self._mean(less[0], less[1], prior).alias(f"but_{fold}"))
        return {"prior": prior, "table": seen.group_by("value", maintain_order=True).agg(columns)}

    def _mean(self, total: pl.Expr, rows: pl.Expr, prior: float) -> pl.Expr:
        mean = (total + self.smoothing * prior) / (rows.cast(pl.Float64) + self.smoothing)
        return pl.when(rows + self.smoothing > 1e-9).then(mean).otherwise(prior)  # 0 / 0 without smoothing

    def apply(self, x: pl.Expr, p: Params) -> pl.Expr:
        means = np.vstack([np.full(1 + self.folds, p["prior"]), p["table"].drop("value").to_numpy()])

        def pick(rows: pl.Series) -> pl.Series:
            at, place = rows.struct.field("index"), rows.struct.field("row")
            column = np.where(place.is_null(), 0, 1 + fold_of(place.fill_null(0).to_numpy(), self.folds))
            return pl.Series(means[at.to_numpy(), column])

        both: Any = pl.struct(x.alias("index"), pl.col(ROW).alias("row"))
        return both.map_batches(pick, return_dtype=pl.Float64, is_elementwise=True)  # type: ignore[no-any-return]


def fold_of(rows: np.ndarray, folds: int) -> np.ndarray:
    """Return the fold of each row, from 0, by a hash of its row number: (rows,) -> (rows,)."""
    return (mix(rows.astype(np.uint64)) % np.uint64(folds)).astype(np.int64)


@dataclass(frozen=True)
class Cyclic(Transform, name="cyclic"):
    """The sine or cosine of a part's angle on its circle; 0, the centre of the circle, if the time is missing."""

    part: str
    wave: str

    value_type = Time()

    def __post_init__(self) -> None:
        for given, valid in ((self.part, PARTS), (self.wave, WAVES)):
            if given not in valid:
                raise ValueError(f"{given!r} is not valid{did_you_mean(str(given), valid)}")

    def apply(self, x: pl.Expr, p: Params) -> pl.Expr:
        size, number = PARTS[self.part]
        angle = number(x).cast(pl.Float64) * (2 * math.pi / size)
        return (angle.sin() if self.wave == "sin" else angle.cos()).fill_null(0.0)


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
        check_vectors(own.vectors, vectors_key)
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
