"""Encode values (user, city) as floats, by their count or mean label in the training split, and parts of times."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from recsys.base.errors import did_you_mean
from recsys.data.features.column_names import LABEL, ROW
from recsys.data.features.hashing import mix
from recsys.data.features.steps import Params, Transform
from recsys.data.features.training_statistics import Counts, Statistic
from recsys.data.features.value_types import Text, Time

# the number of hours, weekdays and months, and an expression that numbers them from 0
PARTS: dict[str, tuple[int, Callable[[pl.Expr], pl.Expr]]] = {
    "hour": (24, lambda t: t.dt.hour()),
    "day_of_week": (7, lambda t: t.dt.weekday() - 1),
    "month": (12, lambda t: t.dt.month() - 1),
}
WAVES = ("sin", "cos")


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
    """Count rows that have the (first) label, and sum the label, by value and by the training row's fold."""

    keys = ("value", "fold")

    def __init__(self, folds: int) -> None:
        super().__init__()
        self._folds = folds

    def add(self, values: pl.Series, frame: pl.DataFrame) -> None:
        index = values.to_numpy().astype(np.int64) * self._folds + fold_of(frame[ROW].to_numpy(), self._folds)
        label = frame[LABEL].to_numpy().astype(np.float64)
        known = ~np.isnan(label)  # one of several labels may be missing
        self._sum("count", index[known], None)
        self._sum("sum", index[known], label[known])

    def table(self, values: pl.Series) -> pl.DataFrame:
        """Return the columns value, fold, count, sum."""
        return self._rows(values, self._folds)


@dataclass(frozen=True)
class Target(Transform, name="target"):
    """The mean label of the value in the training split, smoothed by `smoothing` extra rows of the overall mean.

    A training row gets its value's mean over all other folds, so that its own label does not leak into its input.
    A row's fold is a hash of its place. Rows outside the training split get the mean over all folds. Unseen values get
    the overall mean, which is the same number in training and later.
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
        prior = float(seen["sum"].sum()) / float(seen["count"].sum())
        whole = pl.col("sum").sum(), pl.col("count").sum()
        columns = [self._mean(*whole, prior).alias("all")]
        for fold in range(self.folds):
            own = pl.col("fold") == fold
            less = [w - pl.col(c).filter(own).sum() for w, c in zip(whole, ("sum", "count"), strict=True)]
            columns.append(self._mean(less[0], less[1], prior).alias(f"but_{fold}"))
        return {"prior": prior, "table": seen.group_by("value", maintain_order=True).agg(columns)}

    def _mean(self, total: pl.Expr, rows: pl.Expr, prior: float) -> pl.Expr:
        mean = (total + self.smoothing * prior) / (rows.cast(pl.Float64) + self.smoothing)
        return pl.when(rows + self.smoothing > 0).then(mean).otherwise(prior)  # 0 / 0 without smoothing

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
