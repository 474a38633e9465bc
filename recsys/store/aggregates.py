"""Aggregates of an entity's events in a window of time, by one definition for training sets and for requests.

An aggregate at time t reads the events from t - window on, and before t: an event is not part of its own features.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import polars as pl

from recsys.base.errors import UserError

EVENTS = "*"  # the column of `count` that counts events, whatever they hold
MICROSECONDS = 1_000_000
MAX_SUM = 2**63 - 1
PER_SECOND = "__per_second__"  # ticks of a second, in what a store keeps of an entity
TICK, KEY, EVENT = "__tick__", "__key__", "__event__"

Function = Literal["count", "sum", "mean", "min", "max", "distinct", "last"]
FUNCTIONS: tuple[Function, ...] = get_args(Function)


@dataclass(frozen=True)
class Aggregate:
    """A feature that is computed from events.

    name: of the feature
    function: count (of values that are not missing), sum, mean, min, max, distinct (the number of different values) or
        last (the last value or, with `number`, the list of the last values, oldest first)
    column: the column of the events that it reads; * counts events
    window: seconds, for times that are numbers their unit; None reads all events before
    number: length of the list of `last`; None for one value
    unitless: whether the window was written without a unit, as for times that are numbers
    """

    name: str
    function: Function
    column: str
    window: float | None = None
    number: int | None = None
    unitless: bool = False

    def expression(self, dtype: pl.DataType) -> pl.Expr:
        """Return the aggregate of the events of a group, in the order of time. dtype: of the column"""
        if self.column == EVENTS:
            return pl.col(EVENT).count().cast(pl.Int64).alias(self.name)
        values = pl.col(self.column).drop_nulls()
        if self.function in ("sum", "mean") and dtype.is_float():
            values = values.cast(pl.Float64)  # as requests sum: a sum of Float32 could be infinite
        if self.function == "sum" and dtype.is_integer():
            values = values.cast(pl.Int128)  # a sum of 64 bits wraps without a word
        made = {
            "count": lambda: values.len().cast(pl.Int64),
            "sum": values.sum,
            "mean": values.mean,
            "min": values.min,
            "max": values.max,
            "distinct": lambda: values.n_unique().cast(pl.Int64),
            "last": lambda: values.last() if self.number is None else values.tail(self.number),
        }[self.function]()
        return made.alias(self.name)

    def of(self, values: Sequence[Any]) -> Any:
        """Return the aggregate of the values of events, in the order of time."""
        if self.column == EVENTS:
            return len(values)
        return ONLINE[self.function](self, [v for v in values if v is not None])


ONLINE: Mapping[str, Callable[[Aggregate, list[Any]], Any]] = {
    "count": lambda _, v: len(v),
    "sum": lambda _, v: sum(v),
    "mean": lambda _, v: math.fsum(v) / len(v) if v else None,
    "min": lambda _, v: min(v, default=None),
    "max": lambda _, v: max(v, default=None),
    "distinct": lambda _, v: len(set(v)),
    "last": lambda a, v: (v[-1] if v else None) if a.number is None else v[-a.number :],
}


def ticks_per_second(dtype: pl.DataType) -> int:
    """Return how many ticks a second, or a unit of a number, has: times are compared as whole numbers of ticks."""
    return 1 if dtype.is_integer() else MICROSECONDS


def common_time(theirs: pl.DataType, own: pl.DataType) -> pl.DataType | None:
    """Return the type in which times of two types compare without loss; None if they do not compare.

    A view's times are never cut to days or seconds because the rows have no finer ones: that would show a row values
    from later on its day.
    """
    moments = [t for t in (theirs, own) if isinstance(t, pl.Datetime)]
    if len(moments) + [theirs, own].count(pl.Date()) == 2:
        zones = {m.time_zone for m in moments} - {None, "UTC"}
        finest: Literal["ns", "us"] = "ns" if any(m.time_unit == "ns" for m in moments) else "us"
        return None if len(moments) < 2 and zones else pl.Datetime(finest)
    if theirs.is_integer() and own.is_integer():
        return pl.Int64()
    numbers = all(t.is_integer() or t.is_float() for t in (theirs, own))
    return pl.Float64() if numbers else None


def ticks(time: pl.Expr, dtype: pl.DataType, per_second: int) -> pl.Expr:
    """Return times as ticks since 1970 or, for numbers, since 0; those between two ticks are the later one."""
    if dtype.is_temporal():
        return time.cast(pl.Datetime("us")).dt.epoch("us")
    return time.cast(pl.Int64) if dtype.is_integer() and per_second == 1 else (time * per_second).ceil().cast(pl.Int64)


def window_ticks(window: float, per_second: int) -> int:
    """Return the length of a window in ticks, at least 1."""
    return max(1, math.floor(window * per_second))


def at_times(
    events: pl.DataFrame, rows: pl.DataFrame, aggregates: Sequence[Aggregate], per_second: int
) -> pl.DataFrame:
    """Return the aggregates at the time of each row, (n, aggregates).

    events: KEY, TICK and the columns of the aggregates
    rows: KEY and TICK of each row; a row that lacks one of them has no values
    """
    asked = rows.select(KEY, TICK).drop_nulls().unique()
    marked = events.with_columns(pl.lit(True).alias(EVENT))
    both = pl.concat([marked, asked], how="diagonal").sort(KEY, TICK, maintain_order=True)
    moments = both[TICK].to_numpy()
    span = int(moments.max() - moments.min()) + 1 if len(moments) else 1
    features = rows.select(KEY, TICK)
    for window in dict.fromkeys(a.window for a in aggregates):
        period = span if window is None else min(span, window_ticks(window, per_second))
        expressions = [a.expression(both.schema.get(a.column, pl.Null())) for a in aggregates if a.window == window]
        rolled = both.rolling(TICK, period=f"{period}i", closed="left", group_by=KEY).agg(expressions)
        values = rolled.join(asked, on=[KEY, TICK], how="semi").unique([KEY, TICK])  # equal times have equal values
        features = features.join(values, on=[KEY, TICK], how="left", maintain_order="left")
    wide = [name for name, dtype in features.schema.items() if dtype == pl.Int128]
    for name in wide:
        if features.select((pl.col(name).abs() > MAX_SUM).any()).item():
            hint = "divide the column, or cast it to floats"
            raise UserError(f"aggregates.{name}: a sum does not fit into 64 bits; {hint}")
    return features.with_columns(pl.col(wide).cast(pl.Int64)).select(a.name for a in aggregates)


def at_time(
    times: Sequence[int],
    values: Mapping[str, Sequence[Any]],
    aggregates: Sequence[Aggregate],
    now: int,
    per_second: int,
) -> dict[str, Any]:
    """Return the aggregates of one entity at a time. times: ticks of its events, ascending; now: in ticks"""
    stop, features = bisect_left(times, now), {}
    for a in aggregates:
        start = 0 if a.window is None else bisect_left(times, now - window_ticks(a.window, per_second))
        features[a.name] = a.of(times[start:stop] if a.column == EVENTS else values[a.column][start:stop])
    return features


def longest(aggregates: Sequence[Aggregate]) -> float | None:
    """Return the longest window, None if an aggregate other than `last` reads all events."""
    windows = [a.window for a in aggregates if a.window is not None or a.function != "last"]
    return None if None in windows else max((w for w in windows if w is not None), default=0.0)


def lasts(aggregates: Sequence[Aggregate]) -> dict[str, int]:
    """Return how many of the last values of each column are needed however old they are."""
    found: dict[str, int] = {}
    for a in aggregates:
        if a.function == "last" and a.window is None:
            found[a.column] = max(found.get(a.column, 0), a.number or 1)
    return found
