"""The transforms of dense features, by their names in YAML.

A transform is one class: its fields are its options, `fit` says what it must know of the training split (from the
statistic that it `learns`), `apply` is its expression. `step` reads one from YAML:

    log      {clip: [0, 100]}      {clip: {quantiles: [0.01, 0.99]}}      {target: {smoothing: 20, folds: 5}}
"""

from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal

import polars as pl

from recsys.data.transforms.training_statistics import Moments, Sample, Statistic
from recsys.errors import UserError, did_you_mean

Params = dict[str, Any]  # what JSON holds, and at most one DataFrame: "table"
Reads = Literal["number", "value", "time"]
FLOAT32_MAX = 3.4e38
TRANSFORMS: dict[str, type["Transform"]] = {}


class Transform:
    """One step from a column to a float. The first one of a feature says how its column is read."""

    reads: ClassVar[Reads] = "number"  # value: text, null where missing; time: Datetime, likewise
    learns: ClassVar[type[Statistic] | None] = None

    def __init_subclass__(cls, name: str, **more: Any) -> None:
        super().__init_subclass__(**more)
        TRANSFORMS[name] = cls

    def statistic(self) -> Statistic | None:
        """What is to be gathered from the training split; None where nothing is."""
        return self.learns() if self.learns else None

    def fit(self, seen: Any) -> Params:
        """seen: the statistic, or where that is of counts the sum of its tables over all chunks."""
        return {}

    def apply(self, x: pl.Expr, p: Params) -> pl.Expr:
        """x: of what it reads. To one that reads values: 1 + the value's row in p["table"], 0 where it has none."""
        raise NotImplementedError


class Log(Transform, name="log"):
    """ln(x - min + 1), min that of the training split; smaller values count as min."""

    learns = Moments

    def fit(self, seen: Moments) -> Params:
        return seen.params()

    def apply(self, x: pl.Expr, p: Params) -> pl.Expr:
        return (x - p["min"] + 1).clip(lower_bound=1).log()


class Standardise(Log, name="standardise"):
    """(x - mean) / std of the training split."""

    def apply(self, x: pl.Expr, p: Params) -> pl.Expr:
        return ((x - p["mean"]) / (p["std"] or 1.0)).clip(-FLOAT32_MAX, FLOAT32_MAX)


class MinMax(Log, name="minmax"):
    """To [0, 1] over the training split's range."""

    def apply(self, x: pl.Expr, p: Params) -> pl.Expr:
        return ((x - p["min"]) / ((p["max"] - p["min"]) or 1.0)).clip(0, 1)


@dataclass(frozen=True)
class Clip(Transform, name="clip"):
    """To [lower, upper], or to two quantiles of the training split."""

    lower: float | None = None
    upper: float | None = None
    quantiles: list[float] | None = None

    def __post_init__(self) -> None:
        if (self.quantiles is None) == (self.lower is None and self.upper is None):
            raise ValueError("needs a lower or an upper bound, or quantiles")
        low, high = (self.lower, self.upper) if self.quantiles is None else check_quantiles(self.quantiles)
        if any(b is not None and not abs(b) <= FLOAT32_MAX for b in (low, high)):
            raise ValueError("its bounds must be numbers")
        if low is not None and high is not None and low > high:
            raise ValueError(f"{low} is above {high}")

    def statistic(self) -> Statistic | None:
        return Sample() if self.quantiles else None

    def fit(self, seen: Sample) -> Params:
        assert self.quantiles
        lower, upper = seen.quantiles(self.quantiles)
        return {"lower": lower, "upper": upper}

    def apply(self, x: pl.Expr, p: Params) -> pl.Expr:
        lower, upper = (p["lower"], p["upper"]) if self.quantiles else (self.lower, self.upper)
        x = x if lower is None else x.clip(lower_bound=lower)
        return x if upper is None else x.clip(upper_bound=upper)


def check_quantiles(given: Any) -> tuple[float, float]:
    if not isinstance(given, list) or len(given) != 2 or not all(0 <= q <= 1 for q in given):
        raise ValueError("quantiles are two shares from 0 to 1, such as [0.01, 0.99]")
    return given[0], given[1]


@dataclass(frozen=True)
class Fill:
    """The training split's mean or median where a value is missing; 0 where all are. Of `fill`, not of `transform`."""

    kind: str

    def statistic(self) -> Statistic:
        return Moments() if self.kind == "mean" else Sample()

    def fit(self, seen: Any) -> Params:
        return {"value": seen.params()["mean"] if self.kind == "mean" else seen.quantiles([0.5])[0]}

    def apply(self, x: pl.Expr, p: Params) -> pl.Expr:
        return x.fill_null(p["value"])


Step = Transform | Fill


def step(entry: Any, where: str) -> Transform:
    """The transform that an entry of YAML names. Raises UserError, beginning with `where`."""
    if not isinstance(entry, str) and not (isinstance(entry, dict) and len(entry) == 1):
        raise UserError(f"{where}: {entry!r} is neither a name nor one {{name: options}}")
    name, given = (entry, {}) if isinstance(entry, str) else next(iter(entry.items()))
    if name not in TRANSFORMS:
        raise UserError(f"{where}: no transform {name}{did_you_mean(str(name), TRANSFORMS)}")
    kind = TRANSFORMS[name]
    options = [f.name for f in fields(kind)] if hasattr(kind, "__dataclass_fields__") else []  # type: ignore[arg-type]
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
        told = str(e) if isinstance(e, ValueError) else f"{given!r} are not what it takes"
        raise UserError(f"{where}: {name}: {told}") from e
