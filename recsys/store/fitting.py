"""Values that fit into a store: JSON has neither NaN nor infinities, and a sum must not become one.

NaN of a file is a missing value, as pandas writes it. Infinities, and numbers so large that a sum of them could be
infinite, make their row a bad event. So does a time that is still to come: a store keeps one value of each entity, that
of the latest time.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import polars as pl

from recsys.base.append import append
from recsys.base.errors import UserError

MAX_SUMMED = 2.0**960  # 2 ** 63 values of this size have a finite sum
MAX_INTEGER = 2.0**53  # polars sums integers of 64 bits
MAX_TIME = 2.0**43  # seconds, whose microseconds are 64 bits
CLOCKS = 600  # seconds by which the clocks of two machines may differ
DAY = 86_400


def without_nan(types: Mapping[str, pl.DataType]) -> list[pl.Expr]:
    """Return the columns that hold floats, with missing values instead of NaN."""
    return [_without_nan(pl.col(name), dtype).alias(name) for name, dtype in types.items() if has_floats(dtype)]


def _without_nan(values: pl.Expr, dtype: pl.DataType) -> pl.Expr:
    if isinstance(dtype, pl.List):
        return values.list.eval(_without_nan(pl.element(), dtype.inner))  # type: ignore[arg-type]
    if isinstance(dtype, pl.Array):
        return _without_nan(values.arr.to_list(), pl.List(dtype.inner)).list.to_array(dtype.size)
    if isinstance(dtype, pl.Struct):
        made = [_without_nan(values.struct.field(f.name), f.dtype).alias(f.name) for f in dtype.fields]  # type: ignore[arg-type]
        return pl.when(values.is_not_null()).then(pl.struct(made))
    return values.fill_nan(None) if dtype.is_float() else values


def has_floats(dtype: pl.DataType) -> bool:
    """Return whether values of a type are floats, or hold some."""
    if isinstance(dtype, pl.Struct):
        return any(has_floats(f.dtype) for f in dtype.fields)  # type: ignore[arg-type]
    return has_floats(dtype.inner) if isinstance(dtype, pl.List | pl.Array) else dtype.is_float()  # type: ignore[arg-type]


def too_large(values: pl.Expr, dtype: pl.DataType, most: float = sys.float_info.max) -> pl.Expr:
    """Return whether values are, or hold, floats beyond a limit, (n,)."""
    if isinstance(dtype, pl.List):
        return values.list.eval(too_large(pl.element(), dtype.inner)).list.any()  # type: ignore[arg-type]
    if isinstance(dtype, pl.Array):
        return too_large(values.arr.to_list(), pl.List(dtype.inner))
    if isinstance(dtype, pl.Struct):
        floats = [f for f in dtype.fields if has_floats(f.dtype)]  # type: ignore[arg-type]
        return pl.any_horizontal(too_large(values.struct.field(f.name), f.dtype) for f in floats)  # type: ignore[arg-type]
    return values.cast(pl.Float64).fill_nan(None).abs() > most  # NaN would be the greatest of all


def latest_time(dtype: pl.DataType) -> float:
    """Return the latest time that a value may have now, in seconds since 1970. Numbers may have any."""
    return time.time() + CLOCKS if isinstance(dtype, pl.Date | pl.Datetime) else sys.float_info.max


def later_than_now(times: pl.Expr, dtype: pl.DataType) -> pl.Expr:
    """Return whether times or dates are still to come, (n,). In other time zones, a date begins up to a day earlier."""
    latest = latest_time(dtype) + (DAY if dtype == pl.Date else 0)
    return times.cast(pl.Datetime("us")).dt.epoch("us") > latest * 1e6


def reject(rejected: Path | None, view: str, where: str, why: str, text: str) -> None:
    """Append an event that cannot be read to a file. Raises UserError if `rejected` names no file.

    view, where, text: the view's name, file and line of the event, and the event as it was read
    """
    if rejected is None:
        raise UserError(f"{where}: {why}; correct it, or set rejected=FILE to go on and keep such events there")
    line = json.dumps({"view": view, "event": where, "why": why, "text": text}) + "\n"
    append(rejected, line.encode(), sync=False)


def check_rejected(rejected: Path | None) -> None:
    """Raise UserError if a file for rejected events cannot be written, or holds something else."""
    if rejected is None:
        return
    try:
        rejected.open("a").close()
        with rejected.open("rb") as file:
            first = file.readline(1 << 20)
    except OSError as e:
        raise UserError(f"rejected={rejected}: cannot be written ({e.strerror}); name another file") from e
    if first and not first.startswith(b'{"view": '):
        raise UserError(f"rejected={rejected}: holds something else than rejected events; name a new file")
