"""The transforms of dense features, by their names in YAML.

A transform is one class. Its fields are its options, `learns` is the statistic that it needs of the training split, and
`fit` turns that statistic into parameters. `apply_array` transforms numbers, both when columns are prepared and when
rows are served. A transform of other values overrides `apply`, which returns a polars expression. `parse_step` reads a
transform from YAML:

    log      {clip: [0, 100]}      {clip: {quantiles: [0.01, 0.99]}}      {target: {smoothing: 20, folds: 5}}
"""

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, ClassVar

import numpy as np
import polars as pl

from recsys.base.errors import UserError, did_you_mean
from recsys.base.ranges import FLOAT32_MAX
from recsys.data.features.blocks import ROW
from recsys.data.features.training_statistics import Counts, Labels, Moments, Statistic, ValueSample, fold_of
from recsys.data.features.value_types import Number, Text, Time, ValueType

Params = dict[str, Any]  # JSON values, and at most one DataFrame: "table"
Columns = Mapping[str, np.ndarray]  # the numbers of F features with the same transform: name -> (F, 1) float64
POLARS_FROM = 1000  # numbers; a call of polars costs about 0.1 ms, and above it is faster than a loop in Python
MAX_BINS = 1000
# the number of hours, weekdays and months, and an expression that numbers them from 0
PARTS: dict[str, tuple[int, Callable[[pl.Expr], pl.Expr]]] = {
    "hour": (24, lambda t: t.dt.hour()),
    "day_of_week": (7, lambda t: t.dt.weekday() - 1),
    "month": (12, lambda t: t.dt.month() - 1),
}
WAVES = ("sin", "cos")
TRANSFORMS: dict[str, type["Transform"]] = {}


@dataclass(frozen=True)
class Transform:
    """One step from a column to a float. The first step of a feature determines how its column is parsed."""

    value_type: ClassVar[ValueType] = Number()
    learns: ClassVar[type[Statistic] | None] = None

    def __init_subclass__(cls, name: str | None = None, **more: Any) -> None:
        super().__init_subclass__(**more)
        if name is not None:
            TRANSFORMS[name] = cls

    def statistic(self) -> Statistic | None:
        """Return the statistic to collect from the training split; None if the transform learns nothing."""
        return self.learns() if self.learns else None

    def fit(self, seen: Any) -> Params:
        """Return the parameters.

        seen: the collected statistic; a statistic of counts is one table, summed over all chunks
        """
        return {}

    def apply(self, x: pl.Expr, p: Params) -> pl.Expr:
        """Return the transformed column.

        Args:
            x: the column. For transforms that read values, it holds 1 + the row of the value in p["table"], or 0 if the
                value is unknown.
            p: the fitted parameters.
        """
        columns = stacked([self.numbers(p)])

        def transformed(values: pl.Series) -> pl.Series:
            with np.errstate(over="ignore"):
                numbers = self.apply_array(values.to_numpy()[None], columns)[0]
            return pl.Series(values.name, numbers, nan_to_null=True)

        return x.cast(pl.Float64).map_batches(transformed, return_dtype=pl.Float64, is_elementwise=True)

    def numbers(self, p: Params) -> dict[str, Any]:
        """Return what `apply_array` reads, from the fitted parameters: numbers, or arrays of numbers, by name."""
        return p

    @staticmethod
    def apply_array(x: np.ndarray, p: Columns) -> np.ndarray:
        """Transform the numbers of F features, NaN if missing: (F, rows) -> (F, rows) float64.

        An expression takes about 0.1 ms even for one row, so rows are served without one. A transform of numbers that
        overrides only `apply` gives the same results, but serves rows more slowly.
        """
        raise NotImplementedError


def stacked(features: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
    """Return the numbers, or arrays, of features as matrices; the last numbers of shorter arrays are repeated."""
    columns = {}
    for name in features[0]:
        arrays = [np.atleast_1d(np.asarray(f[name], np.float64)) for f in features]
        longest = max(map(len, arrays))
        columns[name] = np.stack([np.pad(x, (0, longest - len(x)), mode="edge") for x in arrays])
    return columns


class Log(Transform, name="log"):
    """ln(x - min + 1) with the minimum of the training split; smaller values count as the minimum."""

    learns = Moments

    def fit(self, seen: Moments) -> Params:
        return seen.params()

    @staticmethod
    def apply_array(x: np.ndarray, p: Columns) -> np.ndarray:
        x = np.maximum(x - p["min"] + 1, 1)
        # as the C library computes it; NumPy's result differs in the last bits
        if x.size > POLARS_FROM:
            return pl.Series(x.ravel()).log().to_numpy().reshape(x.shape)
        return np.fromiter(map(math.log, x.ravel().tolist()), np.float64, x.size).reshape(x.shape)


def _at_least(x: np.ndarray, lower: np.ndarray | float) -> np.ndarray:
    """Return the larger numbers. Unlike np.maximum, this keeps the sign of zero."""
    return np.where(x < lower, lower, x)


def _at_most(x: np.ndarray, upper: np.ndarray | float) -> np.ndarray:
    return np.where(x > upper, upper, x)


def _divisor(width: float) -> float:
    """Return `width`, or 1 if its inverse would be infinite."""
    return width if width >= sys.float_info.min else 1.0


class Standardise(Log, name="standardise"):
    """(x - mean) / std with the mean and standard deviation of the training split."""

    def numbers(self, p: Params) -> dict[str, float]:
        return {"mean": p["mean"], "factor": 1 / _divisor(p["std"])}

    @staticmethod
    def apply_array(x: np.ndarray, p: Columns) -> np.ndarray:
        return np.clip((x - p["mean"]) * p["factor"], -FLOAT32_MAX, FLOAT32_MAX)


class MinMax(Log, name="minmax"):
    """Scale the range of the training split to [0, 1]; values outside are clipped."""

    def numbers(self, p: Params) -> dict[str, float]:
        return {"min": p["min"], "factor": 1 / _divisor(p["max"] - p["min"])}

    @staticmethod
    def apply_array(x: np.ndarray, p: Columns) -> np.ndarray:
        return _at_most(_at_least((x - p["min"]) * p["factor"], 0), 1)


@dataclass(frozen=True)
class Quantile(Transform, name="quantile"):
    """The place of a number between quantiles of the training split, from 0 to 1: linear from knot to knot.

    A value that occurs in more than 1 / `bins` of the rows gets its own knot. The other knots divide the remaining rows
    evenly, so that a column of many zeros keeps its resolution. The places of the knots are evenly spaced from 0 to 1.
    """

    bins: int = 64

    def __post_init__(self) -> None:
        if not 1 <= self.bins <= MAX_BINS:
            raise ValueError(f"bins must be from 1 to {MAX_BINS}")

    def statistic(self) -> Statistic:
        return ValueSample()

    def fit(self, seen: ValueSample) -> Params:
        values, counts = np.unique(seen.values(), return_counts=True)
        frequent = counts * self.bins > counts.sum()
        others, left = np.repeat(values[~frequent], counts[~frequent]), self.bins + 1 - frequent.sum()
        knots = np.quantile(others, np.linspace(0, 1, max(left, 2))) if len(others) else others
        return {"knots": np.unique(np.concatenate([values[frequent], knots])).tolist() or [0.0]}

    def numbers(self, p: Params) -> dict[str, Any]:
        """Return the K knots, ascending, and their places."""
        return {"knots": p["knots"], "places": np.linspace(0, 1, len(p["knots"]))}

    @staticmethod
    def apply_array(x: np.ndarray, p: Columns) -> np.ndarray:
        return np.stack([np.interp(row, *own) for row, *own in zip(x, p["knots"], p["places"], strict=True)])


@dataclass(frozen=True)
class Clip(Transform, name="clip"):
    """Clip to [lower, upper], or to two quantiles of the training split."""

    lower: float | None = None
    upper: float | None = None
    quantiles: list[float] | None = None

    def __post_init__(self) -> None:
        if (self.quantiles is None) == (self.lower is None and self.upper is None):
            raise ValueError("needs either bounds (lower, upper) or quantiles")
        low, high = self.lower, self.upper
        if (given := self.quantiles) is not None:
            if not isinstance(given, list) or len(given) != 2 or not all(0 <= q <= 1 for q in given):
                raise ValueError("quantiles must be two numbers from 0 to 1, such as [0.01, 0.99]")
            low, high = given
        if any(b is not None and not abs(b) <= FLOAT32_MAX for b in (low, high)):
            raise ValueError("its bounds must be finite numbers")
        if low is not None and high is not None and low > high:
            raise ValueError(f"its lower bound {low} is above its upper bound {high}")

    def statistic(self) -> Statistic | None:
        return ValueSample() if self.quantiles else None

    def fit(self, seen: ValueSample) -> Params:
        assert self.quantiles
        lower, upper = seen.quantiles(self.quantiles)
        return {"lower": lower, "upper": upper}

    def numbers(self, p: Params) -> dict[str, float]:
        lower, upper = (p["lower"], p["upper"]) if self.quantiles else (self.lower, self.upper)
        return {"lower": -math.inf if lower is None else lower, "upper": math.inf if upper is None else upper}

    @staticmethod
    def apply_array(x: np.ndarray, p: Columns) -> np.ndarray:
        return _at_most(_at_least(x, p["lower"]), p["upper"])


@dataclass(frozen=True)
class FillMean(Transform):
    """Replace missing values by the mean of the training split; 0 if all are missing.

    The config sets it by `fill`, not by `transform`, so it has no name there.
    """

    by: ClassVar[str] = "mean"

    def statistic(self) -> Statistic:
        return Moments()

    def fit(self, seen: Any) -> Params:
        return {"value": seen.params()["mean"]}

    @staticmethod
    def apply_array(x: np.ndarray, p: Columns) -> np.ndarray:
        return np.where(np.isnan(x), p["value"], x)


class FillMedian(FillMean):
    """Replace missing values by the median of the training split."""

    by = "median"

    def statistic(self) -> Statistic:
        return ValueSample()

    def fit(self, seen: ValueSample) -> Params:
        return {"value": seen.quantiles([0.5])[0]}


class Count(Transform, name="count"):
    """ln(1 + count of the value in the training split); 0 for unseen values. A missing value counts as a value."""

    value_type = Text()
    learns = Counts

    def fit(self, seen: pl.DataFrame) -> Params:
        log = pl.col("count").cast(pl.Float64).log1p().alias("encoded")
        return {"table": seen.select("value", log)}

    def apply(self, x: pl.Expr, p: Params) -> pl.Expr:
        return pl.lit(pl.Series([0.0]).append(p["table"]["encoded"])).gather(x)


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


FILLS: dict[str, Transform] = {"mean": FillMean(), "median": FillMedian()}


def parse_step(entry: object, where: str) -> Transform:
    """Return the transform that an entry of YAML names.

    Args:
        entry: a name or {name: options}.
        where: the config key of the entry, which begins messages.

    Raises:
        UserError: the name or an option is wrong.
    """
    if not isinstance(entry, str) and not (isinstance(entry, dict) and len(entry) == 1):
        raise UserError(f"{where}: {entry!r} must be a name or one {{name: options}}")
    name, given = (entry, {}) if isinstance(entry, str) else next(iter(entry.items()))
    if name not in TRANSFORMS:
        raise UserError(f"{where}: no transform {name}{did_you_mean(str(name), TRANSFORMS)}")
    kind = TRANSFORMS[name]
    options: list[str] = [f.name for f in fields(kind)] if is_dataclass(kind) else []
    values = given if isinstance(given, list) else [] if isinstance(given, dict) else [given]
    if len(values) > len(options):
        raise UserError(f"{where}: {name} takes " + (f"at most {', '.join(options)}" if options else "no options"))
    named = dict(zip(options, values, strict=False)) | (given if isinstance(given, dict) else {})
    for option in named:
        if option not in options:
            raise UserError(f"{where}: {name} has no option {option}{did_you_mean(str(option), options)}")
    try:
        return kind(**named)
    except (ValueError, TypeError) as e:
        problem = str(e) if isinstance(e, ValueError) else f"its options {given!r} have the wrong type"
        raise UserError(f"{where}: {name}: {problem}") from e
