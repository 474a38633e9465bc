"""Write views as a repository for Feast, a feature store of its own. Feast itself is not needed to write it.

Feast joins the last row of a file at or before a time. It knows no order of rows of equal times and no windows, so the
repository holds files that need neither: each entity's values, one for each time, and aggregates at the times at which
they change. Between two of these times an aggregate stays as it is, so that Feast's join gives what recsys gives.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import polars as pl

from recsys.base.durations import microseconds_of_age, seconds_of_age
from recsys.base.errors import UserError
from recsys.files.atomic import whole_file, write_text
from recsys.files.outputs import check_output
from recsys.store.aggregates import (
    KEY,
    MICROSECONDS,
    TICK,
    at_times,
    ticks,
    ticks_per_second,
    window_ticks,
)
from recsys.store.views import View

MARK = '"""Views for Feast, written by `python -m recsys.feature_store feast`: run it again if files change."""'
CONFIG = """project: recsys
registry: registry.db
provider: local
offline_store: {type: file}
online_store: {type: sqlite, path: online_store.db}
entity_key_serialization_version: 3
"""
TIME = "feature_time"
BEGINNING = -2_208_988_800 * MICROSECONDS  # 1900: aggregates of no events, before an entity's first
STORED: Mapping[Any, tuple[pl.DataType, str]] = {  # polars type: as what it is written, Feast's name of it
    **{t: (pl.Int32(), "Int32") for t in (pl.Int8, pl.Int16, pl.Int32, pl.UInt8, pl.UInt16)},
    **{t: (pl.Int64(), "Int64") for t in (pl.Int64, pl.UInt32)},
    **{t: (pl.String(), "String") for t in (pl.String, pl.Categorical, pl.Enum)},
    pl.Float32: (pl.Float32(), "Float32"),
    pl.Float64: (pl.Float64(), "Float64"),
    pl.Boolean: (pl.Boolean(), "Bool"),
    pl.Binary: (pl.Binary(), "Bytes"),
}


@dataclass(frozen=True)
class _FeastTable:
    """A file of values and its feature view. frame: the key, TIME and the features"""

    name: str
    key: str
    frame: pl.DataFrame
    ttl: timedelta


def write_repository(views: Mapping[str, View], output: Path) -> list[str]:
    """Write a Feast repository: feature_store.yaml, features.py and the values that it reads.

    Return a line for each thing that Feast cannot hold, or gives in another way. Raises UserError if the folder holds
    something else, or a view nothing that Feast takes.

    output: a folder that does not exist yet, or a repository of this function, whose databases stay
    """
    check_output(output)
    code = output / "features.py"
    if output.exists() and not (code.is_file() and code.read_text(encoding="utf-8").startswith(MARK)):
        raise UserError(f"output={output}: already exists; name a folder that does not exist yet")
    tables: list[_FeastTable] = []
    lines: list[str] = []
    for view in views.values():
        made = [*_latest(view, lines), *_aggregates(view, [*views, *(t.name for t in tables)], lines)]
        if not made:
            raise UserError(f"{view.name}.columns: none has a type that Feast takes; leave the view out")
        tables += made
    keys: dict[str, pl.DataType] = {}  # whole numbers if all files have such, otherwise text
    for table in tables:
        values = table.frame[table.key]
        whole = values.cast(pl.Int64, strict=False).cast(pl.String).eq_missing(values).all()  # 007 and 7 are two keys
        keys[table.key] = pl.Int64() if whole and keys.get(table.key) != pl.String else pl.String()
    (output / "values").mkdir(parents=True, exist_ok=True)
    for table in tables:
        with whole_file(output / "values" / f"{_slug(table.name)}.parquet") as building:
            table.frame.with_columns(pl.col(table.key).cast(keys[table.key])).write_parquet(building)
    write_text(output / "feature_store.yaml", CONFIG)
    write_text(code, _code(tables, keys))
    return lines


def _latest(view: View, lines: list[str]) -> list[_FeastTable]:
    """Return the values of `columns`, of equal times the last, and say what differs in Feast."""
    rows, per_second = _rows(view, view.columns, lines)
    values = rows.sort(TICK, maintain_order=True).unique([view.key, TICK], keep="last", maintain_order=True)
    features = _features(view, values.select(view.columns), lines)
    if not features.width:
        return []
    ttl = timedelta(0)
    if view.max_age is not None and (seconds := seconds_of_age(view.max_age)) is not None:
        exact = microseconds_of_age(view.max_age)
        ttl = timedelta(microseconds=exact) if exact else timedelta(seconds=seconds)
        if not ttl:  # Feast takes 0 for no limit
            raise UserError(f"{view.name}.max_age={view.max_age}: Feast counts microseconds; write 1us or more")
    lines.append(
        f"{view.name}: Feast leaves out the rows of get_historical_features whose entity has only values that are later"
        f"{' or older than max_age' if ttl else ''}; recsys keeps them, with missing values"
    )
    if ttl:
        lines.append(f"{view.name}.max_age={view.max_age}: Feast's get_online_features returns older values, too")
    time = _timestamps(pl.col(TICK) * (MICROSECONDS // per_second))
    return [
        _FeastTable(view.name, view.key, pl.concat([values.select(view.key, time), features], how="horizontal"), ttl)
    ]


def _aggregates(view: View, names: Sequence[str], lines: list[str]) -> list[_FeastTable]:
    """Return the aggregates at each time at which one changes: after an event, and when an event leaves a window."""
    if not view.aggregates:
        return []
    events, per_second = _rows(view, view.event_columns, lines if not view.columns else [])
    events = events.rename({view.key: KEY})
    moments = events.select(KEY, TICK)
    windows = {window_ticks(a.window, per_second) for a in view.aggregates if a.window is not None}
    first = events.select(pl.col(KEY).unique()).select(KEY, pl.lit(BEGINNING // MICROSECONDS * per_second).alias(TICK))
    # events from t - window on and before t count: one at e does from e + 1 to e + window
    changes = [first, *(moments.with_columns(pl.col(TICK) + 1 + w) for w in sorted({0, *windows}))]
    asked = pl.concat(changes).unique().sort(KEY, TICK)
    features = _features(view, at_times(events, asked, view.aggregates, per_second), lines)
    if not features.width:
        return []
    time = _timestamps((pl.col(TICK) - 1) * (MICROSECONDS // per_second) + 1)  # just after, not a whole second later
    name = view.name if not view.columns else f"{view.name}_aggregates"
    while view.columns and name in names:
        name += "_"
    frame = pl.concat([asked.select(pl.col(KEY).alias(view.key), time), features], how="horizontal")
    lines.append(
        f"{view.name}.aggregates: Feast has no windows; {name} holds the values at the {frame.height:,} times at which "
        "they change, and get_online_features returns the values of the last materialize, however much later"
    )
    lines.append(f"{view.name}.aggregates: an entity that no file names has nulls in Feast; in recsys 0 or empty lists")
    return [_FeastTable(name, view.key, frame, timedelta(0))]


def _rows(view: View, columns: Sequence[str], lines: list[str]) -> tuple[pl.DataFrame, int]:
    """Return the rows of a view with the key as text and TICK, in the order of the files, and the ticks of a second."""
    frame = view.scan()
    dtype = frame.collect_schema()[view.time]
    if not dtype.is_temporal():
        how = "is a number; Feast gets it as seconds since 1970, as the server does"
        lines.append(f"{view.name}.time={view.time}: {how}")
    per_second = ticks_per_second(dtype)
    time = ticks(pl.col(view.time), dtype, per_second)
    if isinstance(dtype, pl.Datetime) and dtype.time_unit == "ns":  # no value counts before its time
        time = -(-pl.col(view.time).dt.epoch("ns")).floordiv(1000)
        frame = frame.sort(view.time, maintain_order=True)
    return frame.select(view.key, time.alias(TICK), *columns).collect(engine="streaming"), per_second


def _timestamps(microseconds: pl.Expr) -> pl.Expr:
    return microseconds.cast(pl.Datetime("us")).dt.replace_time_zone("UTC").alias(TIME)


def _features(view: View, values: pl.DataFrame, lines: list[str]) -> pl.DataFrame:
    """Return the columns whose types Feast keeps, in these types; say which are left out."""
    kept = []
    for column in values:
        where = f"{view.name}.{column.name}"
        dtype = column.dtype.inner if isinstance(column.dtype, pl.List) else column.dtype
        if type(dtype) not in STORED:
            lines.append(f"{where}: is left out, Feast has no type for {column.dtype}; write it as a number or text")
        elif isinstance(column.dtype, pl.List) and column.explode(empty_as_null=False, keep_nulls=False).has_nulls():
            lines.append(f"{where}: is left out, lists of Feast have no missing elements; fill them")
        elif column.name in (view.key, TIME):
            lines.append(f"{where}: is left out, the key and the time have this name in Feast; rename the column")
        else:
            stored = STORED[type(dtype)][0]
            kept.append(column.cast(pl.List(stored) if isinstance(column.dtype, pl.List) else stored))
    return pl.DataFrame(kept)


def _slug(name: str) -> str:
    return re.sub(r"\W", "_", name)


def _code(tables: Sequence[_FeastTable], keys: Mapping[str, pl.DataType]) -> str:
    """Return features.py."""
    lines = [MARK, "", "from datetime import timedelta", ""]
    lines += ["from feast import Entity, FeatureView, Field, FileSource, ValueType", "from feast import types", ""]
    for i, (key, dtype) in enumerate(keys.items()):
        kind = "INT64" if dtype == pl.Int64 else "STRING"
        lines.append(f"entity_{i} = Entity(name={key!r}, join_keys=[{key!r}], value_type=ValueType.{kind})")
    for i, table in enumerate(tables):
        fields = {n: keys.get(n, t) if n == table.key else t for n, t in table.frame.schema.items() if n != TIME}
        lines += ["", f"view_{i} = FeatureView(", f"    name={table.name!r},"]
        lines += [f"    entities=[entity_{list(keys).index(table.key)}],"]
        ttl = ", ".join(f"{unit}={getattr(table.ttl, unit)}" for unit in ("days", "seconds", "microseconds"))
        lines += [f"    ttl=timedelta({ttl}),"]
        schema = [f"        Field(name={n!r}, dtype={_type(t)})," for n, t in fields.items()]
        lines += ["    schema=[", *schema, "    ],"]
        path = f"values/{_slug(table.name)}.parquet"
        lines += [f"    source=FileSource(name={table.name!r}, path={path!r}, timestamp_field={TIME!r}),", ")"]
    return "\n".join(lines) + "\n"


def _type(dtype: pl.DataType) -> str:
    if isinstance(dtype, pl.List):
        return f"types.Array({_type(dtype.inner)})"  # type: ignore[arg-type]
    return f"types.{STORED[type(dtype)][1]}"
